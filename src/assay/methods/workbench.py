"""Where shards are computed: one in each process, with the recordings of the prompt block that it is at."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.engine.baseline import PlainRuns, measure_baseline
from assay.engine.batches import Batch, Direction, make_batches, recording_bytes
from assay.engine.cost import CostMeter
from assay.engine.memory import Portions
from assay.engine.response import Response, Source
from assay.engine.savings import EVERY_SAVING, NO_SAVING
from assay.errors import InterventionError, ModelError
from assay.methods.elsewhere import Elsewhere
from assay.methods.own_code import own_code
from assay.methods.plan import Shard
from assay.model import Model
from assay.model.attention import exclusive
from assay.model.backward import installed
from assay.scale import Advance
from assay.sites import Component

if TYPE_CHECKING:
    from assay.methods.method import Method, Setting


@dataclass(frozen=True)
class Computed:
    """What a shard gave: values (C', R) in float64, and what that took."""

    values: np.ndarray
    cost: dict[str, Any]


class Workbench:
    """Computes shards. What comes out depends on the shard alone, not on what was computed before.

    Args:
        setting: its cost meter is charged with all that is done here.
        measured: batches as `measure_baseline` gives them, with their plain logits; what is missing is measured.
        recorded: the batches' responses, in their order, where their runs were recorded before.
    """

    def __init__(
        self,
        method: Method,
        setting: Setting,
        batches: Sequence[Batch],
        direction: Direction,
        skip: bool,
        advance: Advance,
        measured: Sequence[tuple[Batch, PlainRuns]] = (),
        recorded: Sequence[Response] = (),
    ) -> None:
        self.method, self.setting, self.batches = method, setting, batches
        self.direction: Direction = direction
        self.skip = skip
        self.advance = advance
        self._rows = Portions()
        self._swept = 0
        self.measured = dict(enumerate(measured))
        self._source: Source | None = None
        self._responses: dict[tuple[int, int, int], Response] = {}
        """Those whose recordings fit into memory together."""
        for number, response in enumerate(recorded):
            self._responses[number, 0, response.batch.rows] = self._adopt(response)

    def __call__(self, shard: Shard) -> Computed:
        """The shard's values.

        Raises:
            InterventionError: a proof failed, or a value is not finite.
        """
        cost, model = self.setting.cost, self.setting.model
        before = deepcopy(cost)
        with exclusive(model.hf), installed(model, self.method.rules):
            if self.method.source is not None and self._source is None:
                with cost.stage("source"):
                    self._source = self.method.source(self.setting)
            if shard.batch not in self.measured:
                with cost.stage("baseline"):
                    self.measured[shard.batch] = self._measure(self.batches[shard.batch])
            with cost.stage(self.method.name):
                values = self._compute(shard, *self.measured[shard.batch])
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            number = (shard.components * self.method.outputs)[int(finite.argmin())]
            name = self.setting.components[number].name
            raise InterventionError(f"The {self.method.name} value of {name} is not finite; check the weights.")
        return Computed(values, asdict(cost.since(before)))

    def _compute(self, shard: Shard, batch: Batch, plain: PlainRuns) -> np.ndarray:
        values = np.zeros((self.method.outputs * len(shard.components), batch.rows))
        components = [self.setting.components[number] for number in shard.components]

        def of_rows(part: slice) -> None:
            if self.method.by_component:
                response = self._kept(shard.batch, batch, part).of(components)
            else:
                kept = self._responses.pop((shard.batch, part.start, part.stop), None)
                same = kept is not None and kept.components == components
                response = kept if kept is not None and same else self._respond(batch.part(part), components)
            values[:, part] = self._values(response)
            response.require_same_as(plain.part(part))

        self._rows.run(batch.rows, of_rows)
        return values

    def _kept(self, number: int, batch: Batch, rows: slice) -> Response:
        """Some rows of a batch with their recordings, which are kept for the next shard."""
        at = number, rows.start, rows.stop
        if at not in self._responses:
            part = batch.part(rows)
            held = sum(_recorded(response.batch, self.setting.model) for response in self._responses.values())
            if rows.stop - rows.start < batch.rows or held + _recorded(part, self.setting.model) > self.setting.memory:
                self._responses.clear()  # let go of other rows' recordings before new ones are made
            self._responses[at] = self._respond(part, self.setting.components)
        return self._responses[at]

    def _values(self, response: Response) -> np.ndarray:
        values: np.ndarray = self.method.compute(response, self.setting).double().cpu().numpy()
        return values

    def _adopt(self, response: Response) -> Response:
        """Recordings that are there already; from now on what they serve is charged and told here."""
        adopted = copy(response)
        adopted.cost, adopted.advance = self.setting.cost, self._sweep
        return adopted

    def _respond(self, batch: Batch, components: Sequence[Component]) -> Response:
        setting = self.setting
        return Response(
            setting.model,
            batch,
            setting.metric,
            components,
            source=self._source,
            savings=EVERY_SAVING if self.skip else NO_SAVING,
            memory=setting.memory,
            cost=setting.cost,
            advance=self._sweep,
        )

    def _sweep(self, done: int) -> None:
        """A method that asks for everything several times is done with a part after the last of them."""
        whole, self._swept = divmod(self._swept + done, self.method.sweeps)
        self.advance(whole)

    def _measure(self, batch: Batch) -> tuple[Batch, PlainRuns]:
        """The plain run of one batch, and what must agree with it, measured in this process."""
        examples = int(batch.examples.max()) + 1
        _, (completed,), (plain,) = measure_baseline(
            self.setting.model, [batch], self.direction, examples, self.setting.metric, self.setting.cost
        )
        return completed, plain


@dataclass(frozen=True)
class Order:
    """A run as another process is told of it: a `assay.scale.Workshop`."""

    method: Method
    setting: Setting
    """Without its model."""
    direction: Direction
    skip: bool
    by_start: bool
    model: Elsewhere
    code: list[str | None]
    """`own_code` of metric and method, as it is in this process."""

    @classmethod
    def of(cls, method: Method, setting: Setting, direction: Direction, skip: bool, *, by_start: bool) -> Order:
        """An order for other processes.

        Raises:
            OptionError: the model cannot be loaded again there as it is here.
        """
        stripped = replace(setting, model=None)  # type: ignore[arg-type]  # put back where it is loaded
        model = Elsewhere.of(setting.model, setting.rows[0].clean)
        return cls(method, stripped, direction, skip, by_start, model, _code(method, setting))

    def __call__(self, advance: Advance) -> Workbench:
        model = self.model()
        if _code(self.method, self.setting) != self.code:
            raise ModelError(
                "The code of the metric or the method is not the same in a worker process: something that it reads was "
                "changed after it was imported. Let it be part of the file, or leave jobs at 1."
            )
        setting = replace(self.setting, model=model, cost=CostMeter())
        batches = make_batches(model, setting.rows, self.direction, setting.memory, by_start=self.by_start)
        return Workbench(self.method, setting, batches, self.direction, self.skip, advance)


def _recorded(batch: Batch, model: Model) -> int:
    return batch.rows * recording_bytes(model, batch.positions)


def _code(method: Method, setting: Setting) -> list[str | None]:
    return [own_code(function) for function in (setting.metric.row_values, method.compute)]
