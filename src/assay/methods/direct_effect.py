"""Direct effect: what a component's own change does at the unembedding, with everything between left alone.

Direct logit attribution (Elhage et al. 2021; Wang et al., arXiv 2211.00593) of the *difference* between source and
base: the change of the component's contribution to the residual stream at the answer's positions, through the
final norm with its factor frozen at the base run, dotted with the metric's gradient there. For a logit difference
that gradient is W_U[answer] - W_U[wrong answer]; other metrics are linearised at the base.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from assay.engine.gradients import objective_of, unscaled
from assay.engine.response import Response
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.model.norms import frozen_norm
from assay.scores import Scores


def direct(response: Response, _: Setting) -> Tensor:
    model, batch = response.model, response.batch
    residual = response.base.residuals[-1]
    index = batch.targets.positions.unsqueeze(-1).expand(-1, -1, residual.shape[-1])
    at_answers = residual.gather(1, index)
    with model.frozen(), torch.enable_grad():
        normed = model.final_norm(at_answers).detach().requires_grad_(True)
        tokens = batch.targets.pair if response.metric.reads == "tokens" else None
        logits = model.logits_of_normed(normed, tokens)
        objective, scale = objective_of(model, response.metric, logits, batch.targets)[1:]
        gradient = unscaled(torch.autograd.grad(objective, normed)[0], scale)
    with torch.no_grad():
        through_norm = frozen_norm(model.final_norm, at_answers)
        effects = torch.zeros(len(response.components), batch.rows, dtype=torch.float64, device=model.device)
        for site, layer, delta, numbers in response.deltas():
            if site == "heads":
                change = model.head_contributions(layer, delta, at=response.base.heads[layer])
            else:
                change = delta * model.residual_multiplier
            units = change.shape[2]
            change = change.gather(1, index.unsqueeze(2).expand(-1, -1, units, -1))
            for number in numbers:
                unit = response.components[number].unit or 0
                effects[number] = (through_norm(change[:, :, unit]) * gradient).double().sum((1, 2))
    response.advance(effects.numel())
    return effects


METHOD = Method(
    name="direct-effect",
    description="direct logit attribution: each component's change, straight to the unembedding",
    source_note="Elhage et al. 2021; Wang et al., arXiv 2211.00593",
    compute=direct,
    estimates_effect=False,
    uses_gradients=True,
    through_layers=False,
    kinds=("heads", "attention", "mlps"),
    takes_model_apart=True,
    at_positions=False,  # only the answer's positions are read in any case
)


def direct_effect(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Direct effects of heads, attention layers and MLPs; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
