"""Edge scores that need no gradient: exact patching, information flow routes, and random ones to compare with."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from assay.circuits.contrast import Contrast
from assay.circuits.graph import Graph
from assay.circuits.method import EdgeMethod
from assay.circuits.work import Values
from assay.engine.gradients import read_metric


def exact() -> EdgeMethod:
    """What the metric loses when one edge carries the counterfactual, every edge by an intervention of its own."""

    def compute(contrast: Contrast) -> Tensor:
        with torch.no_grad():
            clean = read_metric(contrast.model, contrast.base.residuals[-1], contrast.batch, contrast.metric)
        values = []
        for layer, content in enumerate(_layers(contrast.graph)):
            values.append(contrast.piece(content, "exact", partial(_into_layer, contrast, layer)))
            contrast.work.advance(contrast.batch.rows)
        return (clean.double().cpu() - torch.from_numpy(np.concatenate(values))).T

    return EdgeMethod(
        "exact", compute, pieces=(_layers, _into_layer), sweeps=lambda graph: graph.n_layers + 1, gradients=False,
        exact=True, ablations=("patch", "zero", "mean"), description="every edge patched by itself",
        source="Goldowsky-Dill et al., arXiv 2304.05969",
    )  # fmt: skip


def _layers(graph: Graph) -> list[str]:
    return [f"edges into layer {layer}" for layer in range(graph.n_layers + 1)]


def _into_layer(contrast: Contrast, layer: int) -> Values:
    """(e, R) the metric with each edge into a layer patched; into the logits after the last."""
    graph, patch, differences = contrast.graph, contrast.edge_patch, contrast.differences
    if layer == graph.n_layers:
        return _numbers(patch.of_logits(differences))
    first = graph.first_destination(layer)
    of_readers = patch.of_readers(layer, differences[: graph.reach[first]])
    of_mlp = patch.of_mlp(layer, differences[: graph.reach[first + graph.readers]])
    return _numbers(torch.cat([of_readers.flatten(0, 1), of_mlp]))


def _numbers(values: Tensor) -> Values:
    found: Values = values.double().cpu().numpy()
    return found


def information_flow_routes() -> EdgeMethod:
    """How near a source is to what its reader reads, as a share of all sources, averaged over positions.

    Proximity = max(0, |y|_1 - |y - x_u|_1) for a stream y that sums what its sources x_u write (Ferrando & Voita, arXiv
    2403.00824, section 2.2; the clean run's stream before the norm, as in MIB). No metric, no counterfactual.
    """

    def compute(contrast: Contrast) -> Tensor:
        graph, clean = contrast.graph, contrast.clean
        values = torch.zeros(clean.shape[1], graph.n_edges, dtype=torch.float64, device=clean.device)
        until = contrast.batch.targets.positions.amax(1, keepdim=True)
        positions = torch.arange(contrast.start, contrast.batch.positions, device=clean.device)
        prompt = (positions <= until).double()
        shares: dict[int, Tensor] = {}
        for destination, reach in enumerate(graph.reach.tolist()):
            if reach not in shares:
                of_reach = _proximity(contrast, reach)
                total = of_reach.sum(0, keepdim=True)
                share = torch.where(total > 0, of_reach / total.clamp(min=1e-300), 0.0)
                shares = {reach: (share * prompt).sum(2) / prompt.sum(1) * _once(contrast)}
            values[:, graph.offsets[destination] : graph.offsets[destination + 1]] = shares[reach].T
        return values

    return EdgeMethod(
        "information-flow-routes", compute, gradients=False, estimates_effect=False, has_unit=False,
        clean_only=True, description="nearness of source and stream; no metric, no counterfactual",
        source="Ferrando & Voita, arXiv 2403.00824",
    )  # fmt: skip


def _once(contrast: Contrast) -> Tensor:
    """(R,) 1, but 0 for the second row of an example that is read on two."""
    return (contrast.batch.targets.sign > 0).double()


def _proximity(contrast: Contrast, reach: int) -> Tensor:
    """(s, R, t)"""
    graph, per_layer = contrast.graph, contrast.graph.n_heads + 1
    layer, rest = divmod(reach - 1, per_layer)
    stream = contrast.base.residuals[layer][:, contrast.start :].double()
    if rest:
        assert rest == graph.n_heads
        added = contrast.base.attentions[layer][:, contrast.start :].double()
        stream = stream + added * contrast.model.residual_multiplier
    size = stream.abs().sum(-1)
    apart = torch.stack([(stream - of_source).abs().sum(-1) for of_source in contrast.clean[:reach].double()])
    return (size - apart).clamp(min=0)


def random(seed: int = 0) -> EdgeMethod:
    """Standard normal scores, one for each edge whatever the example: the yardstick that any method must beat."""

    def compute(contrast: Contrast) -> Tensor:
        drawn = np.random.default_rng(seed).standard_normal(contrast.graph.n_edges)
        return _once(contrast).cpu().unsqueeze(1) * torch.from_numpy(drawn)

    return EdgeMethod(
        "random", compute, gradients=False, estimates_effect=False, has_unit=False, parameters={"seed": seed},
        description="standard normal: the yardstick",
    )  # fmt: skip
