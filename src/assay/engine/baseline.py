"""Can the model do the task at all? Measured before anything is attributed, and held against plain forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from assay.data.baseline import Baseline
from assay.data.metrics import METRICS, Metric
from assay.engine.batches import Batch, Direction
from assay.engine.cost import CostMeter
from assay.errors import DataError
from assay.model import Model
from assay.model.checks import plain_logits
from assay.model.recording import record


@dataclass(frozen=True)
class PlainLogits:
    """What Hugging Face gives for R rows: what recordings and replays must agree with."""

    pair: Tensor
    """(R, P, 2) logits of the answer's and the wrong answer's token."""
    scale: float
    """Root mean square of all logits at the answers' positions."""


@dataclass(frozen=True)
class PlainRuns:
    """The plain logits of a batch's base and source rows: of all of them, or of the first alone."""

    base: PlainLogits
    source: PlainLogits

    def part(self, rows: slice) -> PlainRuns:
        return PlainRuns(*(replace(plain, pair=plain.pair[rows]) for plain in (self.base, self.source)))


class Recorded(Protocol):
    """The recorded runs of a batch, to be read instead of running the prompts once more."""

    def logits(self) -> tuple[Tensor, Tensor]:
        """(R, P, V) of the base and the source rows at the answers' positions."""
        ...

    def require_same_as(self, plain: PlainRuns) -> None:
        """The recorded runs must give these logits of plain forward passes."""
        ...


@torch.no_grad()
def measure_baseline(
    model: Model,
    batches: Sequence[Batch],
    direction: Direction,
    n_examples: int,
    metric: Metric,
    cost: CostMeter,
    recorded: Callable[[Batch], Recorded] | None = None,
) -> tuple[Baseline, list[Batch], list[PlainRuns]]:
    """Measure every clean and corrupted prompt once, by plain passes with the user's own attention and hooks.

    Args:
        recorded: gives runs of assay's own, to be read instead. Then only the first pair of the longest prompts is
            also run plainly, and must give the same.

    Returns:
        The baseline; the batches, with the clean run's distribution if the metric compares with it; and per batch
        the plain logits of its base and of its source rows.

    Raises:
        DataError: a logit that the metric reads is not finite.
    """
    results = {name: np.zeros(n_examples) for name in ("clean", "corrupted", "clean_right", "corrupted_right")}
    plain, completed = [], []
    sides = ("corrupted", "clean") if direction == "denoise" else ("clean", "corrupted")
    longest = max(batches, key=lambda batch: batch.positions)
    for batch in batches:
        examples = batch.examples.cpu().numpy()
        answer_rows = batch.targets.sign.cpu().numpy() > 0
        ids = (batch.base, batch.source)
        runs = None if recorded is None else recorded(batch)
        if runs is None:
            logits_of = tuple(_answer_logits(model, side, batch) for side in ids)
            cost.forward(2 * batch.rows, batch.positions, model.n_layers)
        else:
            logits_of = runs.logits()
        found = dict(zip(sides, zip(ids, logits_of, strict=True), strict=True))
        if metric.compares_with_clean:
            batch = replace(batch, targets=replace(batch.targets, clean=found["clean"][1].log_softmax(-1)))
        completed.append(batch)
        for name, (side, logits) in found.items():
            pair = logits.gather(-1, batch.targets.pair)
            read = pair if metric.reads == "tokens" else logits
            if not torch.isfinite(read).all():
                raise DataError(
                    f"{model.name} gives logits that are not finite on the {name} prompts; the first value that is not "
                    f"finite is in {_first_not_finite(model, side)}. Check its weights and dtype."
                )
            np.add.at(results[name], examples, metric.values(read, batch.targets).double().cpu().numpy())
            right = METRICS["exact-match"].row_values(logits, batch.targets).cpu().numpy()
            results[f"{name}_right"][examples[answer_rows]] = right[answer_rows]
        if runs is not None:
            logits_of = logits_of[0][:0], logits_of[1][:0]
            if batch is longest:
                both = _answer_logits(model, torch.cat([batch.base[:1], batch.source[:1]]), batch)
                cost.forward(2, batch.positions, model.n_layers)
                logits_of = both[:1], both[1:]
        plain.append(PlainRuns(*(_plain(logits, batch) for logits in logits_of)))
        if runs is not None:
            runs.require_same_as(plain[-1])
    return Baseline(**results), completed, plain


def _plain(logits: Tensor, batch: Batch) -> PlainLogits:
    pair = logits.gather(-1, batch.targets.pair[: len(logits)])
    return PlainLogits(pair, logits.double().square().mean().sqrt().item())


def _answer_logits(model: Model, ids: Tensor, batch: Batch) -> Tensor:
    """(R, P, V) in float32 or better; an answer is read at the last P positions of its row."""
    count = batch.targets.positions.shape[1]
    # Somebody's hook on the head may treat positions by their number: then it must see them all.
    logits = plain_logits(model, ids, keep=0 if model.has_foreign_hooks else count)[:, -count:]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _first_not_finite(model: Model, ids: Tensor) -> str:
    """The first site, in the order of computation, that holds something not finite."""
    recording = record(model, ids)
    for layer in range(model.n_layers):
        for site in ("residual-pre", "q", "k", "v", "heads", "attention", "mlps"):
            if not torch.isfinite(recording.site(site, layer)).all():
                return f"{site} of layer {layer}"
    last = "residual-post" if not torch.isfinite(recording.residuals[-1]).all() else None
    return f"{last} of layer {model.n_layers - 1}" if last else "the final norm or the unembedding"
