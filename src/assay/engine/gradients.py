"""Gradients of the metric at the base run, for all components in one backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.data.metrics import Metric
from assay.engine.batches import Batch
from assay.engine.cost import CostMeter
from assay.errors import InterventionError
from assay.model import Model
from assay.model.recording import Recording, record


@dataclass(frozen=True)
class SiteGradients:
    """Gradients of each row's metric; keys are layers. Only what was asked for is there."""

    heads: dict[int, Tensor]
    """(R, T, H, D)"""
    mlps: dict[int, Tensor]
    """(R, T, M)"""


def site_gradients(
    model: Model, batch: Batch, metric: Metric, wanted: set[tuple[str, int]], cost: CostMeter
) -> tuple[Recording, SiteGradients, Tensor]:
    """Base recording (detached), gradients at the wanted (site, layer) pairs, and metric values (R,).

    Raises:
        InterventionError: the metric does not depend on a site (its gradient is None).
    """
    recording = record(model, batch.base, gradients=True)
    cost.forward(batch.rows, batch.positions, model.n_layers)
    keys = sorted(wanted)
    tensors = [(recording.heads if site == "heads" else recording.mlps)[layer] for site, layer in keys]
    with model.frozen():
        values = read_metric(model, recording.residuals[-1], batch, metric)
        for key, tensor in zip(keys, tensors, strict=True):
            _require_dependence(*key, found=tensor.requires_grad)
        gradients = torch.autograd.grad(values.sum(), tensors, allow_unused=True)
    cost.backward(batch.rows, batch.positions, model.n_layers)
    found: dict[str, dict[int, Tensor]] = {"heads": {}, "mlps": {}}
    for (site, layer), gradient in zip(keys, gradients, strict=True):
        _require_dependence(site, layer, found=gradient is not None)
        found[site][layer] = gradient
    for tensors in (recording.residuals, recording.heads, recording.mlps, recording.attentions):
        tensors[:] = [tensor.detach() for tensor in tensors]
    return recording, SiteGradients(found["heads"], found["mlps"]), values.detach()


def _require_dependence(site: str, layer: int, *, found: bool) -> None:
    if not found:
        raise InterventionError(f"The metric does not depend on the {site} of layer {layer}: no gradient reaches it.")


def read_metric(
    model: Model, residual: Tensor, batch: Batch, metric: Metric, rows: Tensor | None = None, start: int = 0
) -> Tensor:
    """Metric of each sequence from its final residual stream.

    Args:
        residual: (N, t, M), positions from ``start`` on.
        rows: (N,) the batch's row of each sequence; the rows in order if None.

    Returns:
        (N,) row values.
    """
    targets = batch.targets if rows is None else batch.targets.rows(rows)
    positions = (targets.positions - start).unsqueeze(-1).expand(-1, -1, residual.shape[-1])
    read = residual.gather(1, positions)
    logits = model.logits(read, targets.pair if metric.reads == "tokens" else None)
    return metric.row_values(logits, targets)
