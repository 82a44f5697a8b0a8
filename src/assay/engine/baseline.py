"""Can the model do the task at all? Measured before anything is attributed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from assay.data.baseline import Baseline
from assay.data.encoding import Row
from assay.data.metrics import METRICS, Metric
from assay.engine.batches import Batch, make_batches
from assay.engine.cost import CostMeter
from assay.errors import DataError
from assay.model import Model
from assay.model.recording import record


def measure_baseline(
    model: Model, rows: Sequence[Row], n_examples: int, metric: Metric, memory: int, cost: CostMeter
) -> Baseline:
    """Run every clean and corrupted prompt once, unpatched.

    Raises:
        DataError: the metric is not finite on a prompt.
    """
    results = {name: np.zeros(n_examples) for name in ("clean", "corrupted", "clean_right", "corrupted_right")}
    for batch in make_batches(model, rows, "noise", memory):
        for name, ids in (("clean", batch.base), ("corrupted", batch.source)):
            values, right = _read(model, Batch(ids, ids, batch.start, batch.targets, batch.examples), metric, cost)
            np.add.at(results[name], batch.examples.cpu().numpy(), values)
            answer_rows = batch.targets.sign.cpu().numpy() > 0
            results[f"{name}_right"][batch.examples.cpu().numpy()[answer_rows]] = right[answer_rows]
    for name in ("clean", "corrupted"):
        if not np.isfinite(results[name]).all():
            bad = int(np.flatnonzero(~np.isfinite(results[name]))[0])
            raise DataError(
                f"{metric.name} is {results[name][bad]} on the {name} prompt of pair number {bad}. The model's weights "
                "or activations are not finite."
            )
    return Baseline(**results)


@torch.no_grad()
def _read(model: Model, batch: Batch, metric: Metric, cost: CostMeter) -> tuple[np.ndarray, np.ndarray]:
    residual = record(model, batch.base).residuals[-1]
    cost.forward(batch.rows, batch.positions, model.n_layers)
    positions = batch.targets.positions.unsqueeze(-1).expand(-1, -1, residual.shape[-1])
    logits = model.logits(residual.gather(1, positions))
    right = METRICS["exact-match"].row_values(logits, batch.targets)
    read = logits.gather(-1, batch.targets.pair) if metric.reads == "tokens" else logits
    return metric.row_values(read, batch.targets).double().cpu().numpy(), right.cpu().numpy()
