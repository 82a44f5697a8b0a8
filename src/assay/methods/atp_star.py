"""AtP*: attribution patching made robust to saturated attention and to effects that cancel.

Kramar et al., arXiv 2403.00745. *QK fix*: the effect of a query or key is the change of its attention pattern, with the
softmax computed anew, dotted with the gradient at the pattern; only what follows is linear. It applies to the sites
``q`` and ``k``, whose patch goes through a softmax at once. The output of a head has no softmax of its own after it, so
``heads``, like all other sites, are estimated as by attribution patching. *GradDrop*: for every layer a backward pass
in which no gradient goes through what that layer adds to the residual stream; the absolute estimates of all passes are
added up and divided by L - 1, since a component has no gradient in the pass of its own layer. The importance is the
mean over prompt pairs of the absolute effect.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from assay.engine.attention_changes import Change, changes
from assay.engine.grad_drop import gradients_dropping
from assay.engine.response import Response
from assay.errors import OptionError
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure, under
from assay.model import Model, RuleSet
from assay.scores import Scores

# Parts of a layer: only of these is one layer's pass empty, so that L - 1 are averaged.
KINDS = ("heads", "mlps", "attention", "neurons", "neurons-pre", "q", "k", "v")


def method_with(qk_fix: bool = True, grad_drop: bool = True, rules: str | RuleSet = "plain") -> Method:
    """AtP* with or without its two parts; without both, absolute attribution patching.

    Backward rules hold on the way down to a component. The QK fix takes the place of those of the softmax that the
    component itself goes through.
    """

    def absolute(response: Response, setting: Setting) -> Tensor:
        _require_one_row_each(setting)
        layers = response.model.n_layers
        if grad_drop and layers == 1:
            raise OptionError("GradDrop needs at least two layers. Use --no-grad-drop.")
        found = changes(response, through_softmax=qk_fix)
        total = torch.zeros(len(response.components), response.batch.rows, dtype=torch.float64)
        dropped: list[int | None] = list(range(layers)) if grad_drop else [None]
        for gradients in gradients_dropping(response, {change.place for change in found}, dropped):
            total += _estimates(response, found, gradients).abs().cpu()
        response.advance(total.numel())
        return total / (layers - 1 if grad_drop else 1)

    method = Method(
        name="atp-star",
        description="absolute first-order estimate with QK fix and GradDrop (--no-qk-fix, --no-grad-drop)",
        source_note="Kramar et al., arXiv 2403.00745",
        compute=absolute,
        signed=False,
        uses_gradients=True,
        kinds=KINDS,
        arguments={"qk_fix": qk_fix, "grad_drop": grad_drop},
        configure=method_with,
        backward_passes=lambda components, layers: layers if grad_drop else 1,
    )
    return under(method, rules)


def _estimates(response: Response, found: list[Change], gradients: dict[tuple[str, int], Tensor]) -> Tensor:
    shape = (len(response.components), response.batch.rows)
    estimates = torch.zeros(shape, dtype=torch.float64, device=response.model.device)
    for change in found:
        estimates[change.numbers] = change.products(response, gradients[change.place])
    return estimates


def _require_one_row_each(setting: Setting) -> None:
    if len({row.example for row in setting.rows}) < len(setting.rows):
        raise OptionError(
            f"atp-star takes the absolute effect of a pair, but {setting.metric.name} is measured on a row for each of "
            "its two answers. Use log-prob, or logit-diff with answers of one token."
        )


METHOD = method_with()


def atp_star(
    model: Model,
    pairs: AnyPairs,
    *,
    qk_fix: bool = True,
    grad_drop: bool = True,
    rules: str | RuleSet = "plain",
    **options: Unpack[MeasureOptions],
) -> Scores:
    """Absolute estimates by AtP*, by gradients under ``rules``; other options as in `assay.measure`."""
    return measure(method_with(qk_fix, grad_drop, rules), model, pairs, **options)
