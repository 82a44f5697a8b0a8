"""Exact effects of nodes, one by one and two by two: what a single ablation cannot show."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Unpack

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.circuits.contrast import Ablation
from assay.circuits.edges import EdgeOptions
from assay.circuits.graph import Graph
from assay.circuits.runs import run_circuits
from assay.data.readers import AnyPairs
from assay.model import Model


@dataclass(frozen=True, eq=False)
class NodeEffects:
    """What the metric loses when nodes carry the counterfactual to all that read them; means over examples."""

    names: list[str]
    single: NDArray[np.float64]
    """(S,)"""
    joint: NDArray[np.float64]
    """(S, S) of both; on the diagonal of the one."""

    @property
    def interaction(self) -> NDArray[np.float64]:
        """(S, S) joint effect less both single ones: above 0 where two stand in for each other."""
        found: NDArray[np.float64] = self.joint - self.single[:, None] - self.single[None, :]
        np.fill_diagonal(found, 0)
        return found

    def to_pandas(self) -> pd.DataFrame:
        """One row per pair, largest absolute interaction first."""
        first, second = np.triu_indices(len(self.names), 1)
        frame = pd.DataFrame(
            {
                "first": np.array(self.names)[first],
                "second": np.array(self.names)[second],
                "effect_first": self.single[first],
                "effect_second": self.single[second],
                "joint": self.joint[first, second],
                "interaction": self.interaction[first, second],
            }
        )
        return frame.sort_values("interaction", key=abs, ascending=False, kind="stable", ignore_index=True)


def node_effects(
    model: Model, pairs: AnyPairs, *, ablation: Ablation = "patch", **options: Unpack[EdgeOptions]
) -> NodeEffects:
    """Patch every node and every pair of nodes of a (small) model: S (S + 1) / 2 runs.

    Args:
        ablation, options: as in `assay.circuits.run_circuits`.
    """
    graph = Graph.of(model)
    couples = [(i, i) for i in range(graph.n_sources)] + list(combinations(range(graph.n_sources), 2))
    kept = np.ones((len(couples), graph.n_sources), bool)
    for row, couple in enumerate(couples):
        kept[row, list(couple)] = False
    found = run_circuits(model, pairs, graph, graph.nodes(kept), ablation=ablation, **options)
    lost = found.full.mean() - found.values.mean(0)
    joint = np.zeros((graph.n_sources, graph.n_sources))
    for (first, second), value in zip(couples, lost, strict=True):
        joint[first, second] = joint[second, first] = value
    return NodeEffects(graph.source_names, joint.diagonal().copy(), joint)
