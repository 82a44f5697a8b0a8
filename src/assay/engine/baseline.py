"""Can the model do the task at all? Measured by plain forward passes, before anything is attributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """The plain logits of a batch's base and source rows."""

    base: PlainLogits
    source: PlainLogits

    def part(self, rows: slice) -> PlainRuns:
        return PlainRuns(*(replace(plain, pair=plain.pair[rows]) for plain in (self.base, self.source)))


@torch.no_grad()
def measure_baseline(
    model: Model, batches: Sequence[Batch], direction: Direction, n_examples: int, metric: Metric, cost: CostMeter
) -> tuple[Baseline, list[Batch], list[PlainRuns]]:
    """Run every clean and corrupted prompt once, as Hugging Face would, with the user's attention and hooks.

    Returns:
        The baseline; the batches, with the clean run's distribution if the metric compares with it; and per batch
        the plain logits of its base and of its source rows.

    Raises:
        DataError: a logit that the metric reads is not finite.
    """
    results = {name: np.zeros(n_examples) for name in ("clean", "corrupted", "clean_right", "corrupted_right")}
    plain, completed = [], []
    sides = ("corrupted", "clean") if direction == "denoise" else ("clean", "corrupted")
    for batch in batches:
        examples = batch.examples.cpu().numpy()
        answer_rows = batch.targets.sign.cpu().numpy() > 0
        found = {}
        for name, ids in zip(sides, (batch.base, batch.source), strict=True):
            found[name] = ids, _answer_logits(model, ids, batch)
            cost.forward(batch.rows, batch.positions, model.n_layers)
        if metric.compares_with_clean:
            batch = replace(batch, targets=replace(batch.targets, clean=found["clean"][1].log_softmax(-1)))
        completed.append(batch)
        logits_of = []
        for name, (ids, logits) in found.items():
            pair = logits.gather(-1, batch.targets.pair)
            read = pair if metric.reads == "tokens" else logits
            if not torch.isfinite(read).all():
                raise DataError(
                    f"{model.name} gives logits that are not finite on the {name} prompts; the first value that is not "
                    f"finite is in {_first_not_finite(model, ids)}. Check its weights and dtype."
                )
            logits_of.append(PlainLogits(pair, logits.double().square().mean().sqrt().item()))
            np.add.at(results[name], examples, metric.values(read, batch.targets).double().cpu().numpy())
            right = METRICS["exact-match"].row_values(logits, batch.targets).cpu().numpy()
            results[f"{name}_right"][examples[answer_rows]] = right[answer_rows]
        plain.append(PlainRuns(*logits_of))
    return Baseline(**results), completed, plain


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
