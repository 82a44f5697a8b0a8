"""Edge scores as files of a run folder: one row per edge and example, one row per edge, the values as a tensor."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from assay.circuits.graph import Graph
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import AssayError, StoreError
from assay.scores import KEYS
from assay.store import RunFiles

if TYPE_CHECKING:
    from assay.circuits.edges import EdgeScores

KIND = "edge-scores"
SITE = "edges"
FIELDS = ("method", "metric", "unit", "exact", "estimates_effect", "cost", "configuration", "provenance")


def files_of_edges(scores: EdgeScores) -> RunFiles:
    """What `assay.store.write_run` writes."""
    pairs = scores.pairs
    run = {
        "kind": KIND,
        "label": scores.label,
        "graph": asdict(scores.graph),
        **{name: getattr(scores, name) for name in FIELDS},
        "task": None if pairs is None else {"name": pairs.task, "metric": pairs.metric, "options": pairs.options},
    }
    per_example, per_edge = edge_frames(scores)
    prompts = [] if pairs is None else pairs.to_records()
    return RunFiles(run, per_example, per_edge, prompts, {"scores.values": scores.values})


def edge_frames(scores: EdgeScores) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per edge and example, and one row per edge."""
    keys, n = _keys(scores), len(scores.values)
    per_example = keys.loc[keys.index.repeat(n)].reset_index(drop=True)
    per_example["example"] = np.tile(np.arange(n), scores.graph.n_edges)
    per_example["value"] = scores.values.T.reshape(-1)
    per_example["label"] = scores.label
    per_edge = keys
    per_edge["mean"] = per_edge["importance"] = scores.mean  # of an edge the value is its importance
    per_edge["stderr_prompts"] = scores.values.std(0, ddof=1) / n**0.5 if n > 1 else np.nan
    for name in ("lower", "upper"):
        per_edge[name] = per_edge["mean"] if scores.exact else np.nan
    per_edge["reliability"] = np.nan
    unchecked = "unresolved" if scores.estimates_effect else "none"
    per_edge["verdict"] = "verified" if scores.exact else unchecked
    per_edge["label"] = scores.label
    return per_example, per_edge


def _keys(scores: EdgeScores) -> pd.DataFrame:
    graph = scores.graph
    empty = pd.array([None] * graph.n_edges, dtype="Int64")
    return pd.DataFrame(
        {
            "method": scores.method,
            "site": SITE,
            "layer": empty,
            "unit": empty,
            "source": pd.array(np.array(graph.source_names)[graph.edge_sources], dtype="string"),
            "destination": pd.array(np.array(graph.destination_names)[graph.edge_destinations], dtype="string"),
            "position": pd.array([None] * graph.n_edges, dtype="string"),
        }
    )[KEYS]


def edges_of_files(files: RunFiles, folder: str) -> dict[str, Any]:
    """The fields of `EdgeScores`.

    Raises:
        StoreError: a run of something else, or files that do not fit together.
    """
    run = files.run
    if run.get("kind") != KIND and run.get("circuit", {}).get("level") != "edge":
        raise StoreError(f"{folder} holds no edge scores.")
    try:
        graph, values = Graph(**run["graph"]), files.tensors["scores.values"]
        names = files.components["source"] + "->" + files.components["destination"]
        pairs = None
        if run["task"] is not None:
            task = run["task"]
            read = tuple(PromptPair(**prompt) for prompt in files.prompts)
            pairs = PromptPairs(read, task["name"], task["metric"], task["options"])
        if list(names) != graph.edge_names or values.shape[1:] != (graph.n_edges,):
            raise ValueError("the edges are not those of the graph")
        if len(values) not in (1, len(files.prompts)):  # of an import there is the mean alone
            raise ValueError("there is not one value for each prompt")
        if not np.isfinite(values).all():
            raise ValueError("a value is not finite")
        if not np.array_equal(values.T.reshape(-1), files.scores["value"].to_numpy(float)):
            raise ValueError("scores.parquet has other values than tensors.safetensors")
        return {"graph": graph, "values": values, "pairs": pairs, **{name: run[name] for name in FIELDS}}
    except (KeyError, TypeError, ValueError, AssayError) as error:
        raise StoreError(f"The files of {folder} do not fit together: {error}") from error
