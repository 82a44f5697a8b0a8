"""One row of attention: what each key adds to the metric, and what is left when scores are ablated.

A head's output at a query is z = sum_j p_j v_j. With G = dM/dz, the metric's gradient there, key j contributes
c_j = p_j (v_j . G); over all keys these add up to z . G, the head's contribution at that query.

Axes: R sequences, H heads, T queries, S keys, D head width, K key-value heads, n rows of attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.engine.response import Response
from assay.errors import InterventionError
from assay.model.attention import tapped
from assay.model.checks import LIMITS, relative_difference

MASKED = -30_000.0
"""Scores below are masked: a mask adds the lowest number of its dtype, -65504 in float16."""


@dataclass(frozen=True, eq=False)
class LayerScores:
    """Scores of one layer in the base run, as the softmax gets them, in float32 or better."""

    scores: Tensor
    """(R, H, T, S)"""
    sinks: Tensor | None
    """(H,)"""

    @property
    def pattern(self) -> Tensor:
        sinks = None if self.sinks is None else self.sinks.view(1, -1, 1, 1)
        return softmax(self.scores, sinks)


def softmax(scores: Tensor, sink: Tensor | None) -> Tensor:
    """Over the last axis; a sink (with a last axis of 1) takes its share and is left out."""
    if sink is None:
        return scores.softmax(-1)
    sink = sink.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


def ablated(scores_nS: Tensor, keys_nk: Tensor) -> Tensor:
    """The scores with those of the given keys set to the row's mean unmasked score."""
    return scores_nS.scatter(-1, keys_nk, mean_score(scores_nS).expand(keys_nk.shape).to(scores_nS.dtype))


def mean_score(scores_nS: Tensor) -> Tensor:
    """(n, 1) mean of a row's unmasked scores; a sink is no key and not among them."""
    scores = scores_nS.to(torch.promote_types(scores_nS.dtype, torch.float32))
    seen = scores > MASKED
    return scores.where(seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)


@torch.no_grad()
def layer_scores(response: Response, layer: int) -> LayerScores:
    """The scores of a layer, taken from assay's own attention function as it runs on the recorded input.

    Raises:
        InterventionError: their softmax does not give the recorded head outputs.
    """
    model, base = response.model, response.base
    rows = torch.arange(response.batch.rows, device=model.device)
    args, kwargs = base.arguments[layer].select(rows, 0)
    with tapped(model.hf, _Reading()), model.frozen():
        try:
            model.layers[layer].module(base.residuals[layer], *args, **kwargs)
        except _ReachedScores as reached:
            found = reached.scores
        else:
            raise InterventionError(f"Layer {layer} ran without its attention function.")
    response.cost.forward(response.batch.rows, response.batch.positions)
    z_RHTD = found.pattern @ per_head(base.v[layer], model.n_heads).to(found.scores.dtype)
    off = relative_difference(z_RHTD.transpose(1, 2), base.heads[layer])
    if not off <= LIMITS[model.dtype]:
        raise InterventionError(
            f"The attention pattern of layer {layer} does not give its head outputs: relative deviation {off:.3g}."
        )
    return found


def per_head(x_RSKD: Tensor, heads: int) -> Tensor:
    """(R, H, S, D): key-value heads repeated for the query heads that share them."""
    return x_RSKD.transpose(1, 2).repeat_interleave(heads // x_RSKD.shape[2], 1)


class _ReachedScores(Exception):  # noqa: N818
    def __init__(self, scores: LayerScores) -> None:
        self.scores = scores


class _Reading:
    """Stops at the scores."""

    def attention_inputs(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v

    def attention_scores(self, layer: int, scores_BHTS: Tensor, sinks_H: Tensor | None) -> Tensor:
        precision = torch.promote_types(scores_BHTS.dtype, torch.float32)
        raise _ReachedScores(LayerScores(scores_BHTS.to(precision), None if sinks_H is None else sinks_H.detach()))

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor:
        return z_BTHD


@dataclass(frozen=True, eq=False)
class Rows:
    """n rows of attention, of one layer."""

    scores: Tensor
    """(n, S)"""
    sink: Tensor | None
    """(n, 1)"""
    values: Tensor
    """(n, S) v_j . G: what a whole unit of attention to key j would add to the metric."""

    @property
    def pattern(self) -> Tensor:
        return softmax(self.scores, self.sink)

    @property
    def contributions(self) -> Tensor:
        return self.pattern * self.values

    @property
    def keys(self) -> Tensor:
        """(n, 2): the two keys of largest contribution, the larger first."""
        return self.contributions.topk(2).indices

    def effects(self) -> Tensor:
        """(n, 3): what the metric loses, by the frozen gradient, without the first key, the second, both.

        Equation of arXiv 2505.17630: E = sum_j (p_j - p'_j) (v_j . G), p' the softmax of the ablated scores.
        """
        before, both = self.contributions.sum(-1), self.keys
        without = [
            (softmax(ablated(self.scores, keys), self.sink) * self.values).sum(-1)
            for keys in (both[:, :1], both[:, 1:], both)
        ]
        return torch.stack([before - after for after in without], dim=-1)

    def first_order(self, temperature: float) -> Tensor:
        """(n,) what the gradient of the two scores says that ablating both takes away.

        The scores' gradient is p_T (g - sum p_T g) with p_T = softmax(scores / T), arXiv 2505.17630, without a factor
        1/T; T = 1 is the true one.
        """
        sink = None if self.sink is None else self.sink / temperature
        pattern = softmax(self.scores / temperature, sink)
        gradient = pattern * (self.values - (pattern * self.values).sum(-1, keepdim=True))
        moved = self.scores - mean_score(self.scores)
        return (gradient * moved).gather(-1, self.keys).sum(-1)
