"""Groups of components cut into parts of about equal work, which several processes may compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.engine.cost import CostMeter
from assay.errors import ModelError
from assay.methods.elsewhere import Elsewhere
from assay.methods.own_code import own_code
from assay.methods.plan import LANES
from assay.scale import Advance

if TYPE_CHECKING:
    from assay.interactions.joint_ablation import AblatedRuns


@dataclass(frozen=True)
class Part:
    """Some groups on the rows of one batch."""

    batch: int
    numbers: tuple[int, ...]
    """Of the groups, among all."""
    groups: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return f"groups {self.numbers[0]} to {self.numbers[-1]} on prompt block {self.batch}"


def parts_of(runs: AblatedRuns, groups: Sequence[Sequence[int]]) -> list[Part]:
    """Groups that begin with the same components stay together, since they share the run of these."""
    entries = [component.entry for component in runs.components]
    beginnings: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, group in enumerate(groups):
        first = min(entries[member] for member in group)
        beginnings[tuple(sorted(member for member in group if entries[member] == first))].append(number)
    ordered = sorted(beginnings.items(), key=lambda item: (entries[item[0][0]], item[0]))
    parts = []
    for batch, (prompts, _) in enumerate(runs.measured):
        numbers: list[int] = []
        for place, (_, sharing) in enumerate(ordered, 1):
            numbers += sharing
            if len(numbers) * prompts.rows >= LANES or place == len(ordered):
                parts.append(Part(batch, tuple(numbers), tuple(tuple(groups[number]) for number in numbers)))
                numbers = []
    return parts


def carried_out(
    runs: AblatedRuns, parts: Sequence[Part], advance: Advance
) -> Generator[tuple[Part, np.ndarray], None, None]:
    """(G, R) losses of each part, as they come; what they cost is charged to the runs."""
    crew = runs.run.processes
    if crew is None:
        for part in parts:
            yield part, runs.losses_of(part, advance)
        return
    setting = runs.run.setting
    order = _Order(Elsewhere.of(setting.model, setting.rows[0].clean), runs.given, _code(runs))

    def here(advance: Advance) -> _Bench:
        return _Bench(runs, advance, ExitStack())

    with closing(crew.run(order, parts, advance, here)) as results:
        for part, (values, spent, is_here) in results:
            if not is_here:
                runs.cost.add(CostMeter(**spent))
            yield part, values


@dataclass(frozen=True)
class _Order:
    """Ablated runs as another process is told of them: a `assay.scale.Workshop`."""

    model: Elsewhere
    given: dict[str, Any]
    code: str | None
    """Of the metric, as it is in the process that asks."""

    def __call__(self, advance: Advance) -> _Bench:
        from assay.interactions.joint_ablation import ablated_runs

        held = ExitStack()
        try:
            runs = held.enter_context(ablated_runs(model=self.model(), **self.given))
            if _code(runs) != self.code:
                raise ModelError(
                    "The code of the metric is not the same in a worker process: something that it reads was changed "
                    "after it was imported. Let it be part of the file, or leave jobs at 1."
                )
        except BaseException:
            held.close()
            raise
        return _Bench(runs, advance, held, is_here=False)


def _code(runs: AblatedRuns) -> str | None:
    return own_code(runs.run.setting.metric.row_values)


class _Bench:
    def __init__(self, runs: AblatedRuns, advance: Advance, held: ExitStack, *, is_here: bool = True) -> None:
        self._runs, self._advance, self._held, self._is_here = runs, advance, held, is_here

    def __call__(self, part: Part) -> tuple[np.ndarray, dict[str, Any], bool]:
        """Losses, what they cost, and whether the runs of the process that asks are charged already."""
        before = deepcopy(self._runs.cost)
        values = self._runs.losses_of(part, self._advance)
        return values, asdict(self._runs.cost.since(before)), self._is_here

    def close(self) -> None:
        """Let go of the model."""
        self._held.close()
