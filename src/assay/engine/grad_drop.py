"""Gradients with one layer's contribution to the residual stream cut out of the backward pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from assay.engine.gradients import answer_logits, charge_gradient, objective_of, require_dependence, unscaled
from assay.engine.response import Response
from assay.model.recording import as_units


def gradients_dropping(
    response: Response, wanted: Collection[tuple[str, int]], dropped: Sequence[int | None]
) -> Iterator[dict[tuple[str, int], Tensor]]:
    """Gradients (R, T, U, D) at the wanted (site, layer) pairs, once for each layer in ``dropped``.

    They are on the model's device. In that layer's pass nothing flows back through what its attention and MLP add
    (None: everything does).

    Raises:
        InterventionError: the metric does not depend on a site.
    """
    response.require_differentiable()
    model, batch, cost = response.model, response.batch, response.cost
    places = sorted(wanted)
    recording, start = response.record_graph()
    tensors, factors = zip(*(recording.graph_tensor(*place) for place in places), strict=True)
    with model.frozen(), torch.enable_grad():
        logits = answer_logits(model, recording.residuals[-1], batch.targets, response.metric, start)
        _, total, scale = objective_of(model, response.metric, logits, batch.targets)
    for layer in dropped:
        cut = [] if layer is None else [recording.attentions[layer], recording.mlps[layer]]
        handles = [tensor.register_hook(torch.zeros_like) for tensor in cut]  # type: ignore[no-untyped-call]
        try:
            with model.frozen():
                gradients = torch.autograd.grad(total, tensors, retain_graph=True, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        charge_gradient(model, cost, batch.rows, batch.positions - start)
        found = {}
        for place, gradient, factor in zip(places, gradients, factors, strict=True):
            require_dependence(*place, found=gradient is not None)
            if place in (("attention", layer), ("mlps", layer)):
                gradient = torch.zeros_like(gradient)  # autograd takes it before the hook cuts it
            of_units = unscaled(as_units(place[0], gradient).to(model.device), scale) * factor
            found[place] = F.pad(of_units, (0, 0, 0, 0, start, 0))  # nothing is patched before
        yield found
