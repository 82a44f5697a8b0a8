"""What is in a chosen circuit, by name: MIB's names, at every level (``input``, ``a0.h1``, ``m0``), and for an MLP's
neurons ``m0.n17``."""

from __future__ import annotations

import numpy as np

from assay.circuits.edges import EdgeScores
from assay.circuits.found import FoundCircuit
from assay.sites import Component


def item_name(component: Component) -> str:
    """Of a component that was scored as a node or neuron."""
    names = {"embeddings": "input", "mlps": f"m{component.layer}", "neurons": f"m{component.layer}.n{component.unit}"}
    return names.get(component.site, f"a{component.layer}.h{component.unit}")


def nodes_of(found: FoundCircuit) -> list[str]:
    """Names of the nodes in the circuit, in the order in which they write; the logits last."""
    graph = found.graph
    if isinstance(found.scores, EdgeScores):
        return [graph.source_names[i] for i in np.unique(graph.edge_sources[found.kept])] + ["logits"]
    sources, neurons = found.kept[: graph.n_sources].copy(), found.kept[graph.n_sources :]
    if len(neurons):
        per_layer = neurons.reshape(graph.n_layers, -1).any(1)
        sources[graph.n_heads + 1 :: graph.n_heads + 1] = per_layer
    return [name for name, kept in zip(graph.source_names, sources, strict=True) if kept] + ["logits"]


def neurons_of(found: FoundCircuit) -> dict[str, int]:
    """How many neurons of each MLP are in the circuit, where neurons were scored."""
    neurons = found.kept[found.graph.n_sources :]
    if isinstance(found.scores, EdgeScores) or not len(neurons):
        return {}
    return {f"m{layer}": int(n) for layer, n in enumerate(neurons.reshape(found.graph.n_layers, -1).sum(1))}


def items_in(found: FoundCircuit) -> list[str]:
    """Names of the edges, or of the nodes and neurons, in the circuit; largest absolute score first."""
    scores = found.scores
    if isinstance(scores, EdgeScores):
        edges = np.flatnonzero(found.kept)
        return [
            scores.graph.edge_name(int(edge)) for edge in edges[np.argsort(-np.abs(scores.mean[edges]), kind="stable")]
        ]
    graph = found.graph
    width = (len(found.kept) - graph.n_sources) // graph.n_layers
    names = []
    for i in np.argsort(-np.abs(scores.importance), kind="stable"):
        component = scores.components[i]
        name = item_name(component)
        at = graph.n_sources + component.layer * width + (component.unit or 0)
        if found.kept[at if component.site == "neurons" else graph.source_names.index(name)]:
            names.append(name)
    return names
