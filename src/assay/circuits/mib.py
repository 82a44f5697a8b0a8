"""Edge scores in the JSON of MIB and the EAP-IG package: ``cfg``, ``nodes``, ``edges``.

Every query head has keys and values of its own there, so a graph whose heads share them is scored with ``ungrouped``.
What that layout has no place for (what the scores are, and on which prompts they were made) stands under ``assay``,
which other readers pass over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from assay.circuits.edges import EdgeScores, label_of
from assay.circuits.graph import Flags, Graph
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import AssayError, DataError, OptionError
from assay.model import Model

IMPORTED = "imported"
POSITIVE = "positive: the metric falls when the counterfactual is patched in"
_MODEL = ("name", "weights_sha256")
_ASSAY = ("method", "metric", "unit", "exact", "estimates_effect", "configuration", "provenance")


def can_be_exported(graph: Graph) -> bool:
    """Whether every query head has keys and values of its own in the graph."""
    return graph.kv_units == graph.n_heads


def require_exportable(graph: Graph) -> None:
    """Refuse (`OptionError`) a graph whose heads share keys and values."""
    if not can_be_exported(graph):
        raise OptionError(
            f"MIB's files have keys and values for every query head; in this graph {graph.n_heads} heads share "
            f"{graph.n_kv_heads}. Score with --ungrouped (in Python: ungrouped=True)."
        )


def write_mib(scores: EdgeScores, path: str | Path, kept: Flags | None = None, ranking: str | None = None) -> None:
    """Write mean scores, and a circuit if there is one.

    Scores that came from a file that says nothing of them are written as they came, without ``assay``.

    Args:
        kept: (E,) the edges of a circuit.
        ranking: that chose them: ``signed`` or ``absolute``.

    Raises:
        OptionError: a graph whose heads share keys and values.
    """
    graph = scores.graph
    require_exportable(graph)
    inside = np.zeros(graph.n_edges, bool) if kept is None else kept
    nodes = {graph.source_names[source] for source in np.unique(graph.edge_sources[inside])}
    d_model = scores.provenance.get("model", {}).get("d_model", 0)  # 0: not known, as of an ensemble of imports
    content: dict[str, Any] = {
        "cfg": scores.configuration.get("cfg") or describe_shape(graph, d_model),
        "nodes": {name: {"in_graph": name in nodes} for name in graph.source_names} | {"logits": {"in_graph": True}},
        "edges": {
            name: {"score": float(score), "in_graph": bool(there)}
            for name, score, there in zip(graph.edge_names, scores.mean, inside, strict=True)
        },
    }
    if scores.method != IMPORTED:
        sign = POSITIVE if scores.unit != "none" else None
        said = {name: getattr(scores, name) for name in _ASSAY}
        content["assay"] = {"label": scores.label, "sign": sign, "ranking": ranking, **said}
        if scores.pairs is not None:
            content["assay"] |= describe_pairs(scores.pairs)
    Path(path).write_text(json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_mib(path: str | Path, model: Model) -> EdgeScores:
    """Mean scores of every edge of a model's graph, from a file of `write_mib`, MIB or the EAP-IG package.

    Args:
        model: whose graph the file must be of.

    Raises:
        DataError: not such a file, or one of another model or of other edges.
    """
    content, graph = read_content(path, model)
    if any("score" in node for node in content["nodes"].values()):
        raise DataError(f"{path} has scores of nodes, not of edges. In Python: assay.circuits.read_mib_nodes.")
    if unknown := set(content["edges"]) ^ set(graph.edge_names):
        raise DataError(
            f"{path} has not the edges of {model.name}: {len(unknown)} differ, such as {min(unknown)!r}. Every edge "
            "needs a score."
        )
    try:
        values = np.array([[number(content["edges"][name]["score"]) for name in graph.edge_names]])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: an edge has no score that is a number ({error}).") from error
    if not np.isfinite(values).all():
        edge = int(np.flatnonzero(~np.isfinite(values[0]))[0])
        raise DataError(f"{path}: the score of {graph.edge_name(edge)} is not finite.")
    return _described(graph, values, content, path)


def number(value: Any) -> float:
    """A JSON number.

    Raises:
        TypeError: text, true or false, or null.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def read_mib_circuit(path: str | Path, model: Model) -> Flags:
    """(E,) the edges of a model's graph that a file of MIB has ``in_graph``.

    Raises:
        DataError: as `read_mib`.
    """
    content, graph = read_content(path, model)
    try:
        return np.array([content["edges"][name]["in_graph"] is True for name in graph.edge_names])
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: an edge does not say whether it is in the circuit ({error}).") from error


def read_content(path: str | Path, model: Model) -> tuple[dict[str, Any], Graph]:
    """What the file holds, and the graph of the model that it is of.

    Raises:
        DataError: no file of MIB's layout, or one of another model.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key), dict) for key in ("cfg", "nodes", "edges")
    ):
        raise DataError(f"{path} is no circuit of MIB: it needs cfg, nodes and edges.")
    graph = Graph.of(model, ungrouped=model.n_kv_heads != model.n_heads)
    expected = describe_shape(graph, model.d_model)
    found = {name: content["cfg"].get(name) for name in expected}
    found["d_model"] = found["d_model"] or model.d_model  # some writers leave it out
    if found != expected:
        raise DataError(f"{path} is of another model: it has {found}, and {model.name} has {expected}.")
    return content, graph


def describe_shape(graph: Graph, d_model: int) -> dict[str, Any]:
    """MIB's ``cfg``."""
    return {
        "n_layers": graph.n_layers,
        "n_heads": graph.n_heads,
        "parallel_attn_mlp": graph.parallel,
        "d_model": d_model,
    }


def describe_pairs(pairs: PromptPairs) -> dict[str, Any]:
    """What scores were made on."""
    task = {"name": pairs.task, "metric": pairs.metric, "options": pairs.options}
    return {"task": task, "prompts": pairs.to_records()}


def _require_types(said: Any) -> None:
    """Refuse (`ValueError`) what is not of the type that `write_mib` writes."""
    if not isinstance(said, dict):
        raise ValueError(f"it is a {type(said).__name__}, not an object")
    types = {"method": str, "metric": str, "unit": str, "exact": bool, "estimates_effect": bool}
    types |= {"configuration": dict, "provenance": dict}
    for name, expected in types.items():
        if not isinstance(said[name], expected):
            raise ValueError(f"its {name} is {said[name]!r}")
    model = said["provenance"].get("model", {})
    if not isinstance(model, dict) or (model and not all(isinstance(model.get(key), str) for key in _MODEL)):
        raise ValueError(f"its model has no {' and '.join(_MODEL)}")


def _described(graph: Graph, values: np.ndarray, content: dict[str, Any], path: str | Path) -> EdgeScores:
    """With what the file says of its scores; of a foreign file nothing is known, so nothing is claimed."""
    said = content.get("assay")
    if said is None:
        configuration = {"cfg": content["cfg"]}
        return EdgeScores(graph, values, None, IMPORTED, "unknown", "unknown", False, False, configuration)
    try:
        _require_types(said)
        pairs = None
        if "prompts" in said:
            read = tuple(PromptPair(**prompt) for prompt in said["prompts"])
            pairs = PromptPairs(read, said["task"]["name"], said["task"]["metric"], said["task"]["options"])
        if said["label"] != label_of(exact=said["exact"]):
            raise ValueError(f"its label is {said['label']!r}")
        return EdgeScores(graph, values, pairs, **{name: said[name] for name in _ASSAY})
    except (KeyError, TypeError, ValueError, AssayError) as error:
        raise DataError(f"{path}: what stands under 'assay' is damaged: {error}") from error
