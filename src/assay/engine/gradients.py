"""Gradients of the metric at the base run, for all components in one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from assay.data.metrics import Metric, Targets
from assay.engine.batches import Batch
from assay.engine.cost import CostMeter
from assay.errors import InterventionError
from assay.model import Model
from assay.model.recording import Recording, as_units

Place = tuple[str, int]
"""Site and layer."""


def stream_gradients(
    model: Model,
    batch: Batch,
    metric: Metric,
    recording: Recording,
    start: int,
    wanted: Collection[Place],
    receive: Callable[[Place, Tensor], None],
    cost: CostMeter,
) -> Tensor:
    """One backward pass through a recording; each site's gradient is handed over once and not kept.

    Args:
        recording: of the base run, with its graph, of t positions from ``start`` on.
        wanted: the (site, layer) pairs whose gradients are wanted.
        receive: gets a pair and its gradient (R, t, U, D) on the model's device, in the order of the backward pass.

    Returns:
        (R,) metric values.

    Raises:
        InterventionError: the metric does not depend on a site (no gradient reaches it).
    """
    waiting = set(wanted)

    def handing_over(place: Place, factor: float) -> Callable[[Tensor], None]:
        def hand_over(gradient: Tensor) -> None:
            waiting.remove(place)
            receive(place, unscaled(as_units(place[0], gradient).to(model.device), scale) * factor)

        return hand_over

    with model.frozen(), torch.enable_grad():
        logits = answer_logits(model, recording.residuals[-1], batch.targets, metric, start)
        values, objective, scale = objective_of(model, metric, logits, batch.targets)
        for place in sorted(wanted):
            tensor, factor = recording.graph_tensor(*place)
            if tensor.requires_grad:
                tensor.register_hook(handing_over(place, factor))  # type: ignore[no-untyped-call]
        if objective.requires_grad:
            torch.autograd.grad(objective, recording.embeddings[0], allow_unused=True)
    charge_gradient(model, cost, batch.rows, batch.positions - start)
    for place in sorted(waiting):
        require_dependence(*place, found=False)
    return values.detach()


def charge_gradient(model: Model, cost: CostMeter, rows: int, positions: int) -> None:
    """A pass back through a graph of the whole model; what is not kept runs forward again."""
    cost.backward(rows, positions, model.n_layers)
    if model.checkpointing:
        cost.forward(rows, positions, model.n_layers)


def require_dependence(site: str, layer: int, *, found: bool) -> None:
    """Refuse a site that no gradient reaches.

    Raises:
        InterventionError: it was not found.
    """
    if not found:
        raise InterventionError(f"The metric does not depend on the {site} of layer {layer}: no gradient reaches it.")


def read_metric(
    model: Model,
    residual: Tensor,
    batch: Batch,
    metric: Metric,
    rows: Tensor | None = None,
    start: int = 0,
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


HALF_SCALE = 1.0


def objective_of(
    model: Model, metric: Metric, logits: Tensor, targets: Targets
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The metric of `answer_logits`, and a scalar to differentiate once in its place.

    In float16 the gradient of a small metric vanishes on its way back, and that of a large one overflows. There each
    row's gradient at the logits is brought to about `HALF_SCALE` by a power of two, to be divided out by `unscaled`.

    Returns:
        (N,) row values, the scalar, and (N,) scales (None: 1).
    """
    values = metric.values(logits, targets)
    if model.dtype != torch.float16 or not values.requires_grad or not logits.requires_grad:
        return values, values.sum(), None
    (at_logits,) = torch.autograd.grad(values.sum(), logits)
    largest = at_logits.flatten(1).abs().amax(1)
    scale = torch.where(largest > 0, torch.exp2(torch.log2(HALF_SCALE / largest).round()), 1.0)
    weights = at_logits * scale.view(-1, *[1] * (logits.ndim - 1))
    return values, (logits * weights).sum(), scale


def unscaled(gradient: Tensor, scale: Tensor | None) -> Tensor:
    """The gradient (N, ...) with the rows' scales taken out, in float32."""
    return gradient if scale is None else gradient.float() / scale.view(-1, *[1] * (gradient.ndim - 1))


def answer_logits(
    model: Model, residual: Tensor, targets: Targets, metric: Metric, start: int = 0, only_read: bool = True
) -> Tensor:
    """What the metric reads: (N, P, 2) logits of two tokens, or (N, P, V) of the whole vocabulary.

    Args:
        residual: (N, t, M), positions from ``start`` on.
        only_read: compute no logits but those that the metric reads.
    """
    positions = (targets.positions - start).unsqueeze(-1)
    if model.has_foreign_hooks:
        # A hook on norm or head may treat positions by their number, so both see all positions.
        logits = model.logits(residual)
        logits = logits.gather(1, positions.expand(-1, -1, logits.shape[-1]))
        return logits.gather(-1, targets.pair) if metric.reads == "tokens" else logits
    read = residual.gather(1, positions.expand(-1, -1, residual.shape[-1]))
    if metric.reads == "tokens" and not only_read:
        return model.logits(read).gather(-1, targets.pair)
    return model.logits(read, targets.pair if metric.reads == "tokens" else None)
