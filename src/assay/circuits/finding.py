"""From prompts to a tested circuit: scores on some pairs, circuits run on others, one circuit chosen."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Literal, Unpack, cast, get_args

import numpy as np

from assay.circuits.checks import halves, prompts_of, require_level_of, require_model, shared_prompts
from assay.circuits.edges import EdgeOptions, EdgeScores, edge_scores
from assay.circuits.faithfulness import CircuitValues
from assay.circuits.found import FoundCircuit
from assay.circuits.graph import Flags
from assay.circuits.method import EdgeMethod
from assay.circuits.nodes import best_items, node_curve, run_items, scored_items
from assay.circuits.registry import EDGE_METHODS, edge_method
from assay.circuits.runs import circuit_curve, run_circuits, smallest_circuit
from assay.circuits.selection import number_of, top
from assay.data.pairs import PromptPairs
from assay.errors import DataError, OptionError, instead_of, require_seed
from assay.methods.method import Method, measure
from assay.methods.provenance import describe_environment, describe_model
from assay.methods.registry import method_named
from assay.model import Model
from assay.scores import Scores

Level = Literal["edge", "node", "neuron"]
LEVELS: tuple[Level, ...] = get_args(Level)
SITES = {"node": "heads,mlps,embeddings", "neuron": "heads,neurons,embeddings"}
"""What is scored at each level; see `assay.circuits.nodes`."""
DEFAULT_METHODS = {"edge": "eap-ig-inputs", "node": "attribution-patching", "neuron": "attribution-patching"}
SIZE = 0.01
"""Share of the graph that is shown."""


def require_level(level: str, **parameters: Any) -> Method | None:
    """The method of nodes or neurons with its parameters, checked; None for edges, whose method is checked too.

    Raises:
        OptionError: no such level or method, or a parameter that the method does not take.
    """
    if level not in LEVELS:
        raise OptionError(f"There is no level {level!r}. {instead_of(level, LEVELS)}")
    method = parameters.pop("method") or DEFAULT_METHODS[level]
    if level == "edge":
        edge_method(method, **parameters)
        return None
    chosen = method_named(method, **parameters)
    if "noise" not in chosen.directions:
        raise OptionError(
            f"{method} has no direction noise, and a circuit of {level}s puts corrupted activations into the clean "
            "run. Use attribution-patching, integrated-gradients, hvp or activation-patching."
        )
    return chosen


def split_pairs(pairs: PromptPairs, n: int | None = None) -> tuple[PromptPairs, PromptPairs]:
    """The first pairs, for scores, and those after them that are not among the first, for circuits.

    Args:
        n: how many are for scores. If None, half of them, and pairs that share a prompt stay on one side, unless that
            leaves less than a quarter for the scores.

    Raises:
        DataError: fewer than two pairs are left for circuits.
    """
    first, others = halves(pairs) if n is None else (list(pairs.pairs[:n]), list(pairs.pairs[n:]))
    seen = {prompts_of(pair) for pair in first}
    rest = [pair for pair in others if prompts_of(pair) not in seen]
    if (n is not None and n < 1) or not first or len(rest) < 2:
        raise DataError(
            f"There are {len(pairs)} prompt pairs; {len(first) if n is None else n} of them are for the scores, and "
            f"{len(rest)} others are left. A circuit is run on prompts that did not choose it, at least two: give more "
            "pairs."
        )
    return replace(pairs, pairs=tuple(first)), replace(pairs, pairs=tuple(rest))


def find_circuit(
    model: Model,
    pairs: PromptPairs,
    evaluation: PromptPairs,
    level: Level = "edge",
    method: str | None = None,
    *,
    scores: EdgeScores | Scores | None = None,
    size: float | None = None,
    faithfulness: float | None = None,
    seed: int = 0,
    parameters: dict[str, Any] | None = None,
    **options: Unpack[EdgeOptions],
) -> FoundCircuit:
    """Score, run the circuits of MIB's sizes by both rankings, and choose one circuit by absolute score.

    Args:
        pairs: that scores are made on.
        evaluation: that circuits are run on; none of ``pairs``.
        method: of `assay.circuits.registry.EDGE_METHODS`, or of `assay.methods` for nodes and neurons.
        scores: made before, instead of ``method``; they must be of this model and level.
        size: of the circuit that is chosen, a share of what was scored (default 0.01).
        faithfulness: instead of a size: the smallest circuit found that reaches it.
        seed: of random prompts, probes and scores, and of the bootstrap.
        parameters: of the method, such as ``steps``.
        options: as in `assay.circuits.edge_scores`; ``ungrouped`` is for edges alone.

    Raises:
        DataError: evaluation prompts that the scores have seen, or circuits whose faithfulness means nothing.
        ModelError: scores of other weights.
        OptionError: options that do not fit together, or scores of another level or direction.
    """
    require_choice(level, size, faithfulness)
    require_seed(seed)
    given = parameters or {}
    if scores is None:
        chosen = require_level(level, method=method, **given)
        if chosen is None:
            scores = edge_scores(model, pairs, _edge_method(method or DEFAULT_METHODS["edge"], seed, given), **options)
        else:
            if options.pop("ungrouped", False):
                raise OptionError("--ungrouped is for --level edge: nodes have no edges of their own.")
            common = cast(dict[str, Any], options)
            scores = measure(chosen, model, pairs, sites=SITES[level], direction="noise", seed=seed, **common)
    require_level_of(level, scores)
    require_model(model, scores)
    if isinstance(scores, Scores) and scores.direction != "noise":
        raise OptionError(
            f"These scores have the direction {scores.direction!r}. A circuit puts corrupted activations into the "
            "clean run: it takes scores of the direction noise."
        )
    shared = shared_prompts(model, evaluation, scores.pairs, chat=options.get("chat", False))
    share = SIZE if size is None else size
    if isinstance(scores, EdgeScores):
        options.pop("ungrouped", None)
        signed, absolute = (
            circuit_curve(model, evaluation, scores, absolute=by_absolute, seed=seed, **options)
            for by_absolute in (False, True)
        )
        graph = scores.graph
        if faithfulness is None:
            kept = graph.pruned(top(scores.mean, number_of(share, graph.n_edges), absolute=True))
        else:
            kept, _ = smallest_circuit(model, evaluation, scores, faithfulness, absolute=True, **options)
        values = run_circuits(model, evaluation, graph, [kept], **options)
    else:
        options.pop("ungrouped", None)
        signed, absolute = (
            node_curve(model, evaluation, scores, absolute=by_absolute, seed=seed, **options)
            for by_absolute in (False, True)
        )
        kept, values = _best(model, evaluation, scores, share, options)
    return FoundCircuit(
        level, scores, evaluation, signed, absolute, kept, values, share if faithfulness is None else None,
        faithfulness, seed, shared_prompts=shared, provenance=_provenance(model, scores),
    )  # fmt: skip


def _edge_method(name: str, seed: int, parameters: dict[str, Any]) -> EdgeMethod:
    """With the seed, where the method draws anything."""
    draws = name in EDGE_METHODS and "seed" in inspect.signature(EDGE_METHODS[name]).parameters
    return edge_method(name, **({"seed": seed} if draws else {}) | parameters)


def _provenance(model: Model, scores: EdgeScores | Scores) -> dict[str, Any]:
    """Of the scores, where it is known; the model is the one that circuits were run on."""
    made = scores.provenance or describe_environment(model)
    return {**made, "model": describe_model(model, model.weight_hash)}


def require_choice(level: str, size: float | None, faithfulness: float | None) -> None:
    """Refuse (`OptionError`) what does not say which circuit is to be chosen."""
    if size is not None and faithfulness is not None:
        raise OptionError("Give --size or --faithfulness: one of them chooses the circuit.")
    if size is not None and not 0 < size <= 1:
        raise OptionError(f"--size is a share of the graph, above 0 and at most 1, not {size:g}.")
    if faithfulness is not None and level != "edge":
        raise OptionError("--faithfulness is for --level edge; choose a circuit of nodes or neurons by --size.")
    if faithfulness is not None and not 0 < faithfulness < 1:
        raise OptionError(f"--faithfulness must be between 0 and 1, as in 0.85, not {faithfulness:g}.")


def _best(
    model: Model, evaluation: PromptPairs, scores: Scores, share: float, options: EdgeOptions
) -> tuple[Flags, CircuitValues]:
    """(items,) flags of sources, then of neurons, and what the circuit gives."""
    count = number_of(share, scored_items(model, scores))
    sources, neurons = best_items(model, scores, [count], absolute=True)
    values = run_items(model, evaluation, sources, neurons, **options)
    flags = sources[0] if neurons is None else np.concatenate([sources[0], neurons[0].ravel()])
    return flags, values
