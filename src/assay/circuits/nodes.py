"""Circuits of whole nodes: heads, MLPs and the input, each kept with all its edges out, or not at all.

Nodes are scored by any method of `assay.methods` on the sites ``heads``, ``mlps`` and, for the input, ``embeddings``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from assay.circuits.checks import require_model
from assay.circuits.contrast import Ablation
from assay.circuits.edges import EdgeOptions
from assay.circuits.faithfulness import SIZES, CircuitValues
from assay.circuits.graph import Flags, Graph
from assay.circuits.runs import CircuitCurve, curve_of, require_unseen, run_circuits, run_neuron_circuits
from assay.circuits.selection import numbers_of, top
from assay.data.readers import AnyPairs, as_pairs
from assay.errors import OptionError
from assay.model import Model
from assay.scores import Scores

SITES = {"heads", "mlps", "embeddings"}


def node_scores(graph: Graph, scores: Scores) -> NDArray[np.float64]:
    """(S,) importance of every source; NaN where a node was not scored.

    Raises:
        OptionError: scores of what is no node, or at positions.
    """
    found = np.full(graph.n_sources, np.nan)
    for component, value in zip(scores.components, scores.importance, strict=True):
        if component.site == "neurons" and component.position is None:
            continue
        if component.site not in SITES or component.position is not None:
            raise OptionError(f"{component.name} is no node of a circuit. Nodes are {', '.join(sorted(SITES))}.")
        first = 1 + component.layer * (graph.n_heads + 1)
        at = {"embeddings": 0, "mlps": first + graph.n_heads}.get(component.site, first + (component.unit or 0))
        found[at] = value
    return found


def neuron_scores(model: Model, scores: Scores) -> NDArray[np.float64]:
    """(layers, F) importance of every MLP neuron (the site ``neurons``); NaN where it was not scored."""
    found = np.full((model.n_layers, model.d_mlp), np.nan)
    for component, value in zip(scores.components, scores.importance, strict=True):
        if component.site == "neurons" and component.position is None:
            found[component.layer, component.unit or 0] = value
    return found


def node_curve(
    model: Model,
    pairs: AnyPairs,
    scores: Scores | NDArray[np.float64],
    *,
    sizes: Sequence[float] = SIZES,
    absolute: bool = False,
    ablation: Ablation = "patch",
    seed: int = 0,
    **options: Unpack[EdgeOptions],
) -> CircuitCurve:
    """Faithfulness over the size of the circuits that scores of nodes or neurons choose.

    Args:
        scores: of ``heads,mlps``, with or without ``embeddings``; or of ``neurons``, with or without ``heads`` and
            ``embeddings``. What was not scored is always kept. Or (S,) scores of sources made elsewhere, NaN where
            there is none.
        sizes: shares of what was scored; otherwise as `assay.circuits.runs.circuit_curve`.

    Raises:
        OptionError: neurons and MLPs at once; otherwise as `assay.circuits.runs.circuit_curve`.
    """
    if isinstance(scores, Scores):
        require_model(model, scores)
    seen, method = (scores.pairs, scores.method) if isinstance(scores, Scores) else (None, "imported")
    chosen = require_unseen(model, as_pairs(pairs, model, seed), seen, chat=options.get("chat", False))
    counts = numbers_of(sizes, scored_items(model, scores))
    sources, neurons = best_items(model, scores, counts, absolute=absolute)
    found = run_items(model, chosen, sources, neurons, ablation=ablation, **options)
    level = "nodes" if neurons is None else "neurons"
    settings = {"scores": method, "ranking": "absolute" if absolute else "signed", "level": level}
    return curve_of(sizes, found, counts, counts, {**settings, "ablation": ablation}, seed=seed)


def scored_items(model: Model, scores: Scores | NDArray[np.float64]) -> int:
    """How many nodes and neurons were scored.

    Raises:
        OptionError: neurons and MLPs at once; otherwise as `node_scores`.
    """
    return int((~np.isnan(item_scores(model, scores))).sum())


def best_items(
    model: Model, scores: Scores | NDArray[np.float64], counts: Sequence[int], *, absolute: bool
) -> tuple[Flags, Flags | None]:
    """(C, S) sources and, where neurons were scored, (C, layers, F) neurons: so many of the best, and all unscored."""
    items = item_scores(model, scores)
    scored = ~np.isnan(items)
    kept = np.ones((len(counts), len(items)), bool)
    for row, n in enumerate(counts):
        kept[row, scored] = top(items[scored], n, absolute=absolute)
    n_sources = Graph.of(model).n_sources
    if len(items) == n_sources:
        return kept, None
    return kept[:, :n_sources], kept[:, n_sources:].reshape(-1, model.n_layers, model.d_mlp)


def run_items(
    model: Model,
    pairs: AnyPairs,
    sources: Flags,
    neurons: Flags | None,
    *,
    ablation: Ablation = "patch",
    **options: Unpack[EdgeOptions],
) -> CircuitValues:
    """The metric of circuits as `best_items` gives them."""
    if neurons is not None:
        return run_neuron_circuits(model, pairs, sources, neurons, ablation=ablation, **options)
    graph = Graph.of(model)
    return run_circuits(model, pairs, graph, graph.nodes(sources), ablation=ablation, **options)


def item_scores(model: Model, scores: Scores | NDArray[np.float64]) -> NDArray[np.float64]:
    """Importance of every source and, where neurons were scored, of every neuron; NaN where there is none."""
    if not isinstance(scores, Scores):
        if scores.shape != (Graph.of(model).n_sources,):
            raise OptionError(
                f"{model.name} has {Graph.of(model).n_sources} sources, and these scores are {scores.shape}."
            )
        return scores
    kinds = {component.site for component in scores.components}
    nodes = node_scores(Graph.of(model), scores)
    if {"neurons", "mlps"} <= kinds:
        raise OptionError("Scores of both mlps and neurons: an MLP is its neurons. Score one of the two.")
    return np.concatenate([nodes, neuron_scores(model, scores).ravel()]) if "neurons" in kinds else nodes
