"""Scores of nodes and neurons, and a circuit of them, as JSON: ``cfg``, ``nodes``, ``assay``.

A node has the names of MIB's files (``input``, ``a0.h1``, ``m0``). Those have edges besides, which a circuit of nodes
has none of its own of; and their neurons are coordinates of the residual stream, where these are an MLP's hidden units.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from assay.circuits.edges import label_of
from assay.circuits.graph import Flags, Graph
from assay.circuits.nodes import node_scores
from assay.scores import Scores


def write_nodes(scores: Scores, path: str | Path, graph: Graph, kept: Flags) -> None:
    """Write mean scores and the circuit.

    Args:
        kept: (S,) sources, or (S + layers F,) sources and after them neurons; see `assay.circuits.FoundCircuit.kept`.
    """
    sources = kept[: graph.n_sources]
    neurons = kept[graph.n_sources :].reshape(graph.n_layers, -1)
    nodes: dict[str, dict[str, Any]] = {}
    for name, score, there in zip(graph.source_names, node_scores(graph, scores), sources, strict=True):
        nodes[name] = {"score": None if np.isnan(score) else float(score), "in_graph": bool(there)}
    if neurons.size:
        of_neurons = np.full(neurons.shape, np.nan)
        for component, value in zip(scores.components, scores.importance, strict=True):
            if component.site == "neurons":
                of_neurons[component.layer, component.unit or 0] = value
        for layer, (values, inside) in enumerate(zip(of_neurons, neurons, strict=True)):
            nodes[f"m{layer}"] = {
                "score": None,
                "in_graph": bool(inside.any()),
                "neurons_scores": [None if np.isnan(value) else float(value) for value in values],
                "neurons": inside.tolist(),
            }
    content = {
        "cfg": {"n_layers": graph.n_layers, "n_heads": graph.n_heads},
        "nodes": {**nodes, "logits": {"score": None, "in_graph": True}},
        "assay": {
            "label": label_of(exact=scores.exact),
            **{name: getattr(scores, name) for name in ("method", "metric", "unit", "exact", "estimates_effect")},
            "configuration": scores.configuration,
            "provenance": scores.provenance,
        },
    }
    Path(path).write_text(json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
