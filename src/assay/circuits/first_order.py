"""First-order edge scores: a difference between two runs times a gradient where it is read.

score(u -> v) = sum over positions of (counterfactual_u - clean_u) . gradient of the loss -metric at what v reads, so a
positive score means that patching the edge hurts. The methods differ in where the gradient is taken:

- ``eap``: at the clean run (Syed et al., arXiv 2310.10348).
- ``eap-ig-inputs``: averaged over runs whose embeddings lie between corrupted and clean (Hanna et al., arXiv
  2403.17806), by a quadrature rule of `assay.methods.integrated_gradients`.
- ``clean-corrupted``: the mean of the two ends, which is that with the trapezoid's two points.
- ``eap-ig-activations``: averaged over runs in which what the edge's own source block (embeddings, an attention layer,
  an MLP) writes lies between corrupted and clean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from assay.circuits.contrast import Contrast
from assay.circuits.method import EdgeMethod
from assay.engine.contributions import sources_of
from assay.engine.edge_gradients import Rules, no_rules
from assay.methods.integrated_gradients import quadrature
from assay.model import Model
from assay.model.backward import RuleSet, installed, rule_set

STEPS = 5
"""Gradients that an integral takes by default."""
AnyRules = Rules | RuleSet | str
_EAP_IG = "Hanna et al., arXiv 2403.17806"


class Products:
    """Sums over positions and width of what sources differ by, times gradients where it is read, in float64."""

    def __init__(self, contrast: Contrast) -> None:
        self.graph = contrast.graph
        differences = contrast.differences
        rows = differences.shape[1]
        self.differences_RSX = differences.transpose(0, 1).flatten(2).double()
        self.scores = torch.zeros(rows, self.graph.n_edges, dtype=torch.float64, device=differences.device)

    def add(self, layer: int, gradients: Tensor, weight: float, sources: slice = slice(None)) -> None:
        """Add ``weight`` times the products of some sources with one layer's (U + 1, R, t, M) gradients.

        Args:
            layer: the number of layers for the logits' one gradient.
        """
        graph = self.graph
        first = graph.first_destination(layer)
        most = int(graph.reach[first : first + len(gradients)].max())
        first_source, end, _ = sources.indices(most)
        if first_source >= end:
            return
        flat = gradients.transpose(0, 1).flatten(2).double()
        found = torch.bmm(flat, self.differences_RSX[:, first_source:end].transpose(1, 2)) * weight  # (R, U + 1, s)
        for number in range(len(gradients)):
            reach, offset = int(graph.reach[first + number]), int(graph.offsets[first + number])
            upto = min(end, reach)
            if first_source < upto:
                self.scores[:, offset + first_source : offset + upto] += found[:, number, : upto - first_source]


def eap(rules: AnyRules = no_rules) -> EdgeMethod:
    """Gradient at the clean run.

    Args:
        rules: of the backward pass, by name or as a function from a model to a context; the scores are then no
            estimates of effects.
    """
    compute = partial(_between_embeddings, points=[(1.0, 1.0)], rules=_as_context(rules))
    return EdgeMethod(
        "eap", compute, ablations=("patch", "zero", "mean"), description="gradient at the clean run",
        source="Syed et al., arXiv 2310.10348", **_under(rules),
    )  # fmt: skip


def eap_ig_inputs(rule: str = "midpoint", steps: int = STEPS, rules: AnyRules = no_rules) -> EdgeMethod:
    """Gradient averaged over runs with embeddings between corrupted and clean.

    Args:
        rule: of `assay.methods.integrated_gradients.RULES`; the reference code of MIB has ``left``.
        steps: gradients taken.
        rules: as in `eap`.
    """
    compute = partial(_between_embeddings, points=quadrature(rule, steps), rules=_as_context(rules))
    return EdgeMethod(
        "eap-ig-inputs", compute, description="mean gradient over runs between the embeddings of both prompts",
        source=_EAP_IG, sweeps=lambda _: steps, **_under(rules, rule=rule, steps=steps),
    )  # fmt: skip


def _as_context(rules: AnyRules) -> Rules:
    return partial(_installed, rule_set(rules)) if isinstance(rules, (str, RuleSet)) else rules


def _installed(rules: RuleSet, model: Model) -> AbstractContextManager[object]:
    return installed(model, rules)


def _under(rules: AnyRules, **parameters: Any) -> dict[str, Any]:
    named = isinstance(rules, (str, RuleSet))
    if rules is no_rules or (named and rule_set(rules).is_plain):  # type: ignore[arg-type]
        return {"parameters": parameters}
    name = str(rule_set(rules)) if named else getattr(rules, "__qualname__", repr(rules))  # type: ignore[arg-type]
    return {
        "parameters": {**parameters, "rules": name},
        "estimates_effect": False,
    }


def clean_corrupted() -> EdgeMethod:
    """Mean of the gradients at the clean and at the corrupted run."""
    ends = eap_ig_inputs("trapezoid", 2)
    return EdgeMethod(
        "clean-corrupted", ends.compute, description="mean of the gradients at both ends", source=_EAP_IG,
        sweeps=ends.sweeps,
    )  # fmt: skip


def _between_embeddings(contrast: Contrast, points: Sequence[tuple[float, float]], rules: Rules) -> Tensor:
    """(R, E) with gradients of runs at these points between corrupted (0) and clean (1), and their weights."""
    products, gradients = Products(contrast), contrast.gradients(rules)
    for a, weight in points:
        gradients.of_run(partial(products.add, weight=-weight), contrast.stream(a))
        contrast.work.advance(contrast.batch.rows)
    return products.scores


def eap_ig_activations(rule: str = "midpoint", steps: int = STEPS, *, pooled: bool = False) -> EdgeMethod:
    """Gradient averaged over runs in which the source's block is set between corrupted and clean.

    Args:
        rule, steps: as in `eap_ig_inputs`; the reference code of MIB has ``right``.
        pooled: give every edge the average over the runs of *all* blocks, as that code does, not over those of its own
            source alone.
    """
    points = quadrature(rule, steps)

    def compute(contrast: Contrast) -> Tensor:
        products = Products(contrast)
        gradients = contrast.gradients()
        blocks = _blocks(contrast)
        share = 1 / len(blocks) if pooled else 1.0
        for site, layer, sources in blocks:
            for a, weight in points:
                add = partial(products.add, weight=-weight * share, sources=slice(None) if pooled else sources)
                if site == "input":
                    gradients.of_run(add, contrast.stream(a))
                else:
                    first = 0 if pooled else layer
                    stream = contrast.base.residuals[first][:, contrast.start :]
                    gradients.of_run(add, stream, _setting(site, layer, _between(contrast, site, layer, a)), first)
            contrast.work.advance(contrast.batch.rows)
        return products.scores

    return EdgeMethod(
        "eap-ig-activations", compute, parameters={"rule": rule, "steps": steps, "pooled": pooled},
        description="mean gradient over runs with the source's block between both prompts", source=_EAP_IG,
        sweeps=lambda graph: 1 + 2 * graph.n_layers,
    )  # fmt: skip


def _blocks(contrast: Contrast) -> list[tuple[str, int, slice]]:
    """What is interpolated at once, and the sources in it."""
    blocks = [("input", 0, slice(0, 1))]
    for layer in range(contrast.model.n_layers):
        heads, mlp = sources_of(contrast.model, layer)
        blocks += [("attention", layer, heads), ("mlps", layer, slice(mlp, mlp + 1))]
    return blocks


def _between(contrast: Contrast, site: str, layer: int, a: float) -> Tensor:
    """(R, t, M) what a block writes, between corrupted (0) and clean (1)."""
    ends = (contrast.response.source(site, layer), contrast.base.site(site, layer))
    corrupted, clean = (end[:, contrast.start :, 0] for end in ends)
    return torch.lerp(corrupted, clean, a)


def _setting(site: str, layer: int, target: Tensor) -> Callable[[str, int, Tensor], Tensor]:
    def change(at_site: str, at_layer: int, value: Tensor) -> Tensor:
        # Gradients go on through what is set, to what reads it; nothing before matters.
        return target.detach().requires_grad_(True) if (at_site, at_layer) == (site, layer) else value

    return change
