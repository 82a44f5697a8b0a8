"""Local curvature: attribution patching with the curvature of the activation function alone.

Effect ~ g'(0) + 1/2 sum over positions of dM/dh phi''(x) delta^2, for a neuron x before its activation function phi
and h = phi(x) (times the gate's other factor, held fixed). It leaves out how the rest of the network bends. Zhang &
Wang, arXiv 2606.09899, put it up as the cheap remedy and find that it does not track the error; it is here for that.
"""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from assay.engine.gradients import charge_gradient, read_metric, require_dependence
from assay.engine.response import Response
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.scores import Scores

SITE = "neurons-pre"


def with_local_curvature(response: Response, _: Setting) -> Tensor:
    model, batch = response.model, response.batch
    recording, start = response.record_graph(also=("neurons",))
    layers = sorted({component.layer for component in response.components})
    before, after = ([site[layer] for layer in layers] for site in (recording.neurons_pre, recording.neurons))
    with model.frozen(), torch.enable_grad():
        values = read_metric(model, recording.residuals[-1], batch, response.metric, start=start)
        gradients = torch.autograd.grad(values.sum(), before + after, retain_graph=True, allow_unused=True)
        bends = [_second_derivative(h, x) for h, x in zip(after, before, strict=True)]
    charge_gradient(model, response.cost, batch.rows, batch.positions - start)
    estimates = torch.zeros(len(response.components), batch.rows, dtype=torch.float64, device=model.device)
    for _site, layer, delta, numbers in response.deltas():
        i = layers.index(layer)
        slope, at_output = gradients[i], gradients[len(layers) + i]
        require_dependence(SITE, layer, found=slope is not None and at_output is not None)
        change = delta[:, start:].squeeze(3).double()
        slope, at_output, bend = (part.to(change) for part in (slope, at_output, bends[i]))
        terms = slope * change + at_output * bend * change.square() / 2
        estimates[numbers] = response.reduce(F.pad(terms, (0, 0, start, 0)), numbers)
    response.advance(estimates.numel())
    return estimates


def _second_derivative(h: Tensor, x: Tensor) -> Tensor:
    """Of an elementwise function; 0 where it is a straight line."""
    (first,) = torch.autograd.grad(h.sum(), x, create_graph=True)
    if not first.requires_grad:
        return torch.zeros_like(x)
    (second,) = torch.autograd.grad(first.sum(), x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if second is None else second


METHOD = Method(
    name="local-curvature",
    description="first-order estimate plus the activation function's own curvature; for neurons-pre",
    source_note="the local remedy that arXiv 2606.09899 refutes",
    compute=with_local_curvature,
    uses_gradients=True,
    second_order=True,
    kinds=(SITE,),
    backward_passes=lambda components, layers: 1,
)


def local_curvature(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Estimates with the activation function's curvature, for ``neurons-pre``; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
