"""Pieces of a circuit run that other processes compute before this one comes to them, the same to the byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from assay.circuits.contrast import Contrast, Study, studied
from assay.circuits.work import Values, Work
from assay.errors import ModelError
from assay.methods.elsewhere import Elsewhere
from assay.methods.own_code import own_code
from assay.scale import Advance

Compute = Callable[[Contrast, Any], Values]


@dataclass(frozen=True)
class Piece:
    """What `Contrast.piece` will be asked for."""

    block: int
    """Of `Study.blocks`."""
    part: Any
    """Of the work on these rows, as the function that computes it knows it."""
    content: str

    def __str__(self) -> str:
        return self.content


def compute_ahead(study: Study, pieces: Sequence[Piece], compute: Compute, stage: str) -> None:
    """Have a run's crew compute the pieces that are not there yet; nothing where the run has none.

    Args:
        compute: a function that can be sent to other processes.
        stage: of the cost.
    """
    work = study.work
    missing = [piece for piece in pieces if not work.has(piece.content)]
    if work.crew is None or not missing:
        return
    order = _Order(
        Elsewhere.of(study.model, study.prepared.setting.rows[0].clean), study.given, compute, stage, _code(study)
    )
    with (
        work.progress(len(missing), "pieces"),
        closing(work.crew.run(order, missing, lambda _: None, partial(_here, study, compute, stage))) as results,
    ):
        for piece, (values, spent) in results:
            work.hand_over(piece.content, values, spent)
            work.advance(1)


@dataclass(frozen=True)
class _Order:
    """A run on a graph as another process is told of it: a `assay.scale.Workshop`."""

    model: Elsewhere
    given: dict[str, Any]
    compute: Compute
    stage: str
    code: str | None
    """Of the metric, as it is in the process that asks."""

    def __call__(self, advance: Advance) -> _Bench:
        held = ExitStack()
        try:
            study = held.enter_context(studied(self.model(), **self.given, work=Work()))
            if _code(study) != self.code:
                raise ModelError(
                    "The code of the metric is not the same in a worker process: something that it reads was changed "
                    "after it was imported. Let it be part of the file, or leave jobs at 1."
                )
        except BaseException:
            held.close()
            raise
        return _Bench(study, self.compute, self.stage, held)


def _here(study: Study, compute: Compute, stage: str, _: Advance) -> _Bench:
    return _Bench(study, compute, stage, ExitStack())


def _code(study: Study) -> str | None:
    return own_code(study.metric.row_values)


class _Bench:
    """Computes pieces, with the recordings of the rows that it is at."""

    def __init__(self, study: Study, compute: Compute, stage: str, held: ExitStack) -> None:
        self._study, self._compute, self._stage, self._held = study, compute, stage, held
        self._at: tuple[int, Contrast] | None = None

    def __call__(self, piece: Piece) -> tuple[Values, dict[str, Any]]:
        """Values and what they cost."""
        if self._at is None or self._at[0] != piece.block:
            self._at = None  # let go of its recordings before others are made
            self._at = piece.block, self._study.contrast(piece.block)
        contrast, cost = self._at[1], self._study.cost
        before = deepcopy(cost)
        with cost.stage(self._stage):
            values = self._compute(contrast, piece.part)
        contrast.require_same()
        spent = asdict(cost.since(before))
        return values, spent

    def close(self) -> None:
        """Let go of the model."""
        self._at = None
        self._held.close()
