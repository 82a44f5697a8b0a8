"""Second-order edge scores: the response of each edge to second order, its curvature sampled for all edges at once.

The response of an edge u -> v is g(a), with v reading the clean stream + a (counterfactual_u - clean_u). Exactly g''(0)
costs a product with the Hessian for each edge; one product along all edges' changes with random signs s gives every
edge an estimate, s_e change_e . (H sum_e' s_e' change_e')_v, without bias (Hutchinson; the idea of `hvp-sampled`,
Zhang & Wang, arXiv 2606.09899, on edges). There are many more edges than heads, so the noise of few probes may exceed
the term: hold the result against `exact`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from assay.circuits.contrast import Contrast
from assay.circuits.first_order import Products
from assay.circuits.method import EdgeMethod
from assay.engine.curvature import require_probes
from assay.engine.edge_curvature import EdgeHessian
from assay.errors import require_seed

PROBES = 8


def second_order(probes: int = PROBES, seed: int = 0) -> EdgeMethod:
    """-(g'(0) + g''(0) / 2), with g'' the mean of so many probes.

    Raises:
        OptionError: fewer than 2 probes.
    """
    require_probes(probes, None)
    require_seed(seed)

    def compute(contrast: Contrast) -> Tensor:
        hessian = EdgeHessian(contrast.gradients(), contrast.stream(1))
        slope = Products(contrast)
        for layer, gradient in enumerate(hessian.gradients):
            slope.add(layer, gradient, 1.0)
        curvature = torch.zeros_like(slope.scores)
        for signs in _signs(contrast, probes, seed):
            curvature += curvatures(contrast, hessian, signs.to(curvature.device)) / probes
            contrast.work.advance(contrast.batch.rows)
        return -(slope.scores + curvature / 2)

    return EdgeMethod(
        "second-order", compute, parameters={"probes": probes, "seed": seed}, second_order=True,
        sweeps=lambda _: probes,
        ablations=("patch", "zero", "mean"), description="slope plus half the sampled curvature",
        source="Hutchinson's estimate; hvp-sampled of Zhang & Wang, arXiv 2606.09899, on edges",
    )  # fmt: skip


def curvatures(contrast: Contrast, hessian: EdgeHessian, weights: Tensor) -> Tensor:
    """(R, E) weight_e change_e . (H sum of weighted changes), for weights (R, E)."""
    graph, products = contrast.graph, Products(contrast)
    changes = products.differences_RSX
    shape = contrast.differences.shape[1:]

    def direction(layer: int) -> Tensor:
        first = graph.first_destination(layer)
        count = 1 if layer == graph.n_layers else graph.readers + 1
        parts = []
        for destination in range(first, first + count):
            of_edges = weights[:, graph.offsets[destination] : graph.offsets[destination + 1]]
            parts.append(torch.bmm(of_edges.unsqueeze(1), changes[:, : graph.reach[destination]]).view(shape))
        return torch.stack(parts)

    for layer, product in enumerate(hessian.times(direction)):
        products.add(layer, product, 1.0)
    return products.scores * weights


def _signs(contrast: Contrast, probes: int, seed: int) -> Iterator[Tensor]:
    """(R, E) of +-1 for each probe, by the seed and the rows' tokens."""
    tokens = torch.cat([contrast.batch.base, contrast.batch.source], dim=1).tolist()
    for probe in range(probes):
        drawn = [
            np.random.default_rng([seed, probe, *row]).integers(0, 2, contrast.graph.n_edges) * 2 - 1 for row in tokens
        ]
        yield torch.from_numpy(np.stack(drawn)).double()
