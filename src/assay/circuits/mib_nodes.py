"""Scores of nodes in MIB's JSON: they stand at the nodes, and the edges are there without scores of their own.

A node without a score was not scored; it is kept in every circuit. What MIB calls neurons are coordinates of what a
node writes to the residual stream. assay has no such components, so files of those are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.circuits.edges import label_of
from assay.circuits.graph import Flags, Graph
from assay.circuits.mib import POSITIVE, describe_pairs, describe_shape, number, read_content
from assay.circuits.nodes import node_scores
from assay.errors import DataError, OptionError
from assay.model import Model
from assay.scores import Scores


def write_mib_nodes(
    scores: Scores, path: str | Path, *, parallel: bool = False, kept: Flags | None = None, ranking: str | None = None
) -> None:
    """Write mean importance of heads, MLPs and embeddings, and a circuit if there is one.

    Args:
        scores: of ``heads,mlps`` with or without ``embeddings``.
        parallel: MLP and attention of a layer read the same stream.
        kept: (S,) the sources of a circuit.
        ranking: that chose them: ``signed`` or ``absolute``.

    Raises:
        OptionError: scores of neurons, or of what is no node.
    """
    if any(component.site == "neurons" for component in scores.components):
        raise OptionError(
            "MIB's neurons are coordinates of what a node writes, not neurons of an MLP. Export scores of edges or "
            "nodes."
        )
    model = scores.provenance["model"]
    graph = Graph(model["layers"], model["heads"], model["heads"], parallel)
    values = node_scores(graph, scores)
    inside = np.zeros(graph.n_sources, bool) if kept is None else kept
    nodes: dict[str, Any] = {}
    for name, value, there in zip(graph.source_names, values, inside, strict=True):
        nodes[name] = {"in_graph": bool(there)} | ({} if np.isnan(value) else {"score": float(value)})
    edges = {
        name: {"score": 0.0, "in_graph": bool(there)}
        for name, there in zip(graph.edge_names, graph.nodes(inside), strict=True)
    }
    said = {"label": label_of(exact=scores.exact), "sign": POSITIVE if scores.unit != "none" else None}
    said |= {name: getattr(scores, name) for name in ("method", "metric", "unit", "exact", "estimates_effect")}
    content = {
        "cfg": describe_shape(graph, model["d_model"]),
        "nodes": nodes | {"logits": {"in_graph": True}},
        "edges": edges,
        "assay": {**said, "ranking": ranking, "provenance": scores.provenance, **describe_pairs(scores.pairs)},
    }
    Path(path).write_text(json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_mib_nodes(path: str | Path, model: Model) -> NDArray[np.float64]:
    """(S,) scores of a model's sources, NaN where a node has none; `assay.circuits.node_curve` takes them.

    Args:
        model: whose graph the file must be of.

    Raises:
        DataError: not such a file, one of another model, or one of edges or of MIB's neurons.
    """
    content, graph = read_content(path, model)
    nodes = content["nodes"]
    if any(isinstance(node, dict) and node.get("neurons_scores") for node in nodes.values()):
        raise DataError(f"{path} scores coordinates of the residual stream, which assay does not have as components.")
    if unknown := set(nodes) - {"logits"} ^ set(graph.source_names):
        raise DataError(f"{path} has not the nodes of {model.name}: {len(unknown)} differ, such as {min(unknown)!r}.")
    try:
        values = np.array([number(nodes[name].get("score", np.nan)) for name in graph.source_names])
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: a node has a score that is no number ({error}).") from error
    if np.isinf(values).any() or np.isnan(values).all():
        raise DataError(f"{path}: no node has a score, or one is infinite.")
    return values
