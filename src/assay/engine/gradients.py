"""Gradients of the metric at the base run, for all components in one backward pass."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from assay.data.metrics import Metric, Targets
from assay.engine.batches import Batch
from assay.engine.cost import CostMeter
from assay.errors import InterventionError
from assay.model import Model
from assay.model.recording import Recording, as_units, record


def site_gradients(
    model: Model,
    batch: Batch,
    metric: Metric,
    wanted: Collection[tuple[str, int]],
    keep: Collection[str],
    cost: CostMeter,
) -> tuple[Recording, dict[tuple[str, int], Tensor], Tensor]:
    """Base recording (detached), gradients (R, T, U, D) at the wanted (site, layer) pairs, metric values (R,).

    Raises:
        InterventionError: the metric does not depend on a site (its gradient is None).
    """
    recording = record(model, batch.base, gradients=True, keep=keep)
    cost.forward(batch.rows, batch.positions, model.n_layers)
    places = sorted(wanted)
    tensors, factors = zip(*(recording.graph_tensor(site, layer) for site, layer in places), strict=True)
    with model.frozen(), torch.enable_grad():
        values = read_metric(model, recording.residuals[-1], batch, metric)
        for place, tensor in zip(places, tensors, strict=True):
            require_dependence(*place, found=tensor.requires_grad)
        gradients = torch.autograd.grad(values.sum(), tensors, allow_unused=True)
    cost.backward(batch.rows, batch.positions, model.n_layers)
    found = {}
    for (site, layer), gradient, factor in zip(places, gradients, factors, strict=True):
        require_dependence(site, layer, found=gradient is not None)
        found[site, layer] = as_units(site, gradient) * factor
    return recording.detach(), found, values.detach()


def require_dependence(site: str, layer: int, *, found: bool) -> None:
    """Refuse a site that no gradient reaches.

    Raises:
        InterventionError: it was not found.
    """
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
    return metric.values(answer_logits(model, residual, targets, metric, start), targets)


def answer_logits(model: Model, residual: Tensor, targets: Targets, metric: Metric, start: int = 0) -> Tensor:
    """What the metric reads: (N, P, 2) logits of two tokens, or (N, P, V) of the whole vocabulary."""
    positions = (targets.positions - start).unsqueeze(-1)
    if model.has_foreign_hooks:
        # A hook on norm or head may treat positions by their number, so both see all positions.
        logits = model.logits(residual)
        logits = logits.gather(1, positions.expand(-1, -1, logits.shape[-1]))
        return logits.gather(-1, targets.pair) if metric.reads == "tokens" else logits
    read = residual.gather(1, positions.expand(-1, -1, residual.shape[-1]))
    return model.logits(read, targets.pair if metric.reads == "tokens" else None)
