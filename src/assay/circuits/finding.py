"""From prompts to a tested circuit: scores on some pairs, circuits run on others, one circuit chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Unpack, get_args

import numpy as np
import torch

from assay.circuits.checks import halves, prompts_of, require_level_of, require_model, shared_prompts
from assay.circuits.choosing import Items, items_of
from assay.circuits.contrast import Ablation, studied
from assay.circuits.edges import EdgeOptions, EdgeScores, edge_scores
from assay.circuits.faithfulness import SIZES, CircuitValues
from assay.circuits.found import FoundCircuit
from assay.circuits.graph import Flags
from assay.circuits.method import EdgeMethod
from assay.circuits.registry import EDGE_METHODS, edge_method
from assay.circuits.runs import (
    CircuitCurve,
    curve_of,
    require_unseen,
    run_circuits,
    run_neuron_circuits,
    smallest_circuit,
)
from assay.circuits.selection import number_of, numbers_of
from assay.circuits.work import Work
from assay.data.baseline import Baseline
from assay.data.metrics import Metric
from assay.data.pairs import PromptPairs
from assay.errors import DataError, OptionError, instead_of, require_seed
from assay.methods.method import Method, measure
from assay.methods.provenance import describe_environment, describe_model, what_rounds
from assay.methods.registry import method_named
from assay.methods.sharded import Jobs, processes_of_run, require_jobs, threads_of_run
from assay.model import Model
from assay.scores import Scores
from assay.store import RunFolder

Level = Literal["edge", "node", "neuron"]
LEVELS: tuple[Level, ...] = get_args(Level)
SITES = {"node": "heads,mlps,embeddings", "neuron": "heads,neurons,embeddings"}
"""What is scored at each level; see `assay.circuits.nodes`."""
DEFAULT_METHODS = {"edge": "eap-ig-inputs", "node": "attribution-patching", "neuron": "attribution-patching"}
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)
ENOUGH = 0.5
"""Faithfulness of the circuit that is chosen where nothing is said: of the curve's sizes the smallest that has it."""
Select = Literal["absolute", "top", "greedy", "threshold"]
SELECTS: tuple[Select, ...] = get_args(Select)
"""By absolute score; by signed score; by absolute score from the logits up; all of at least an absolute score."""


def require_level(level: str, **parameters: Any) -> Method | None:
    """The method of nodes or neurons with its parameters, checked; None for edges, whose method is checked too.

    Raises:
        OptionError: no such level or method, or a parameter that the method does not take.
    """
    if level not in LEVELS:
        raise OptionError(f"There is no level {level!r}. {instead_of(level, LEVELS)}")
    method = parameters.pop("method") or DEFAULT_METHODS[level]
    ablation = parameters.pop("ablation", "patch")
    require_ablation(ablation)
    if level == "edge":
        chosen_edge = edge_method(method, **parameters)
        if ablation not in chosen_edge.ablations and not chosen_edge.clean_only:
            takers = [name for name, make in EDGE_METHODS.items() if ablation in make().ablations]
            raise OptionError(
                f"{method} scores edges under {', '.join(chosen_edge.ablations)}, not under --ablation {ablation}. "
                f"Give --method {', '.join(takers)}, or scores made before (--from)."
            )
        return None
    chosen = method_named(method, **parameters)
    if "noise" not in chosen.directions:
        raise OptionError(
            f"{method} has no direction noise, and a circuit of {level}s puts corrupted activations into the clean "
            "run. Use attribution-patching, integrated-gradients, hvp or activation-patching."
        )
    return chosen


def require_ablation(ablation: str) -> Ablation:
    """What absent edges carry, if there is such an ablation."""
    if ablation not in ABLATIONS:
        raise OptionError(f"There is no ablation {ablation!r}. {instead_of(ablation, ABLATIONS)}")
    return ablation


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
    select: Select = "absolute",
    size: float | None = None,
    faithfulness: float | None = None,
    threshold: float | None = None,
    ablation: Ablation = "patch",
    completeness: bool = False,
    seed: int = 0,
    parameters: dict[str, Any] | None = None,
    run_folder: RunFolder | None = None,
    progress: bool = False,
    jobs: Jobs = None,
    on_ends: Callable[[Baseline, CircuitValues, Metric, str], object] = lambda *_: None,
    **options: Unpack[EdgeOptions],
) -> FoundCircuit:
    """Score, run the circuits of MIB's sizes by both rankings and random ones, and choose one circuit.

    The model and the empty circuit are measured on the evaluation prompts before anything is scored.

    Args:
        pairs: that scores are made on.
        evaluation: that circuits are run on; none of ``pairs``.
        method: of `assay.circuits.registry.EDGE_METHODS`, or of `assay.methods` for nodes and neurons.
        scores: made before, instead of ``method``; they must be of this model and level.
        select: how the chosen circuit is made: by ``absolute`` score, by signed score (``top``), by absolute score from
            the logits up (``greedy``, edges), or all of an absolute score of at least ``threshold``. With ``greedy``
            the curves are made so too.
        size: of the circuit that is chosen, a share of what was scored.
        faithfulness: instead of a size: the smallest circuit found that reaches it. Without either: the smallest of the
            curve that reaches 0.5.
        ablation: what is absent carries; see `assay.circuits.run_circuits`. Scores of edges are made under it too.
        completeness: also run the complements of the circuits by absolute score.
        seed: of random prompts, probes and scores, and of the bootstrap.
        parameters: of the method, such as ``steps``.
        run_folder: where to keep what is finished; the same call goes on from it.
        progress: say on standard error what is being done, and how far it is.
        jobs: as in `assay.measure`; scores and circuits are computed side by side, but for ``edge-masks``, which learns
            step by step.
        on_ends: called with the baseline of the evaluation prompts, the model and the empty circuit, the metric, and
            why it was chosen.
        options: as in `assay.circuits.edge_scores`; ``ungrouped`` is for edges alone.

    Raises:
        DataError: evaluation prompts that the scores have seen, or circuits whose faithfulness means nothing.
        ModelError: scores of other weights.
        OptionError: options that do not fit together, or scores of another level or direction.
    """
    require_choice(level, size, faithfulness, select, threshold)
    require_seed(seed)
    if scores is not None:
        _require_of(model, level, scores)
    seen = pairs if scores is None else scores.pairs
    require_unseen(model, evaluation, seen, chat=options.get("chat", False))
    given = parameters or {}
    if level != "edge" and options.get("ungrouped"):
        raise OptionError("--ungrouped is for --level edge: nodes have no edges of their own.")
    require_jobs(jobs)
    with threads_of_run(jobs, run_folder), processes_of_run(jobs, model) as crew:
        work = Work(run_folder, show=progress, crew=crew)
        options["work"] = work
        if run_folder is not None:
            run_folder.begin(_plan(model, run_folder))
        with work.stage("ends", f"The model and the empty circuit, {len(evaluation)} pairs"):
            baseline, setting, provenance = _ends(model, evaluation, level, ablation, options, on_ends)
        if scores is None:
            chosen = require_level(level, method=method, ablation=ablation, **given)
            name = method or DEFAULT_METHODS[level]
            with work.stage("scores", f"Scores by {name}, {len(pairs)} pairs"):
                if chosen is None:
                    scores = edge_scores(model, pairs, _edge_method(name, seed, given), ablation=ablation, **options)
                else:
                    scores = _node_scores(
                        model, pairs, chosen, level, seed, run_folder, progress, jobs if crew is None else crew, options
                    )
                    work.charge(scores.cost)
        items = items_of(model, scores)
        run = partial(items.run, model, evaluation, ablation=ablation, **options)
        ask = _Asked(level, scores.method, select, ablation, completeness, seed)
        curves = _curves(items, ask, work, run)
        with work.stage("chosen" if faithfulness is None else "search", "The chosen circuit"):
            share = size
            if threshold is not None:
                kept = items.above(threshold)
                if not items.count(kept):
                    raise OptionError(
                        f"No score reaches --threshold {threshold:g}: the largest absolute score is "
                        f"{np.abs(items.mean).max():.4g}."
                    )
            elif faithfulness is not None:
                assert isinstance(scores, EdgeScores)
                options.pop("ungrouped", None)
                kept, _ = smallest_circuit(
                    model, evaluation, scores, faithfulness, absolute=select != "top", ablation=ablation, **options
                )
            else:
                share = size or _enough(curves["signed" if select == "top" else "absolute"])
                wanted = number_of(share, len(items.mean))
                (kept,) = items.best(items.mean, [wanted], absolute=select != "top", from_the_logits=select == "greedy")
            circuits = items.pruned(kept[None])
            if completeness:
                circuits = np.concatenate([circuits, items.complements(circuits)])
            values = run(circuits)
    setting |= {
        "select": select,
        "threshold": threshold,
        "size_given": size is not None,
        "ablation": ablation,
        "parallel": model.is_parallel,
        "kept": items.count(circuits[0]),
        "scored": len(items.mean),
    }
    return FoundCircuit(
        level, scores, evaluation, curves["signed"], curves["absolute"], circuits[0], values, share, faithfulness, seed,
        shared_prompts(model, evaluation, scores.pairs, chat=options.get("chat", False)),
        provenance=_provenance(model, scores, provenance), random=curves["random"], baseline=baseline, setting=setting,
        costs=work.costs,
    )  # fmt: skip


def _require_of(model: Model, level: str, scores: EdgeScores | Scores) -> None:
    """Refuse scores that choose no circuit of this level in this model."""
    require_level_of(level, scores)
    require_model(model, scores)
    if isinstance(scores, Scores) and scores.direction != "noise":
        raise OptionError(
            f"These scores have the direction {scores.direction!r}. A circuit puts corrupted activations into the "
            "clean run: it takes scores of the direction noise."
        )


def _edge_method(name: str, seed: int, parameters: dict[str, Any]) -> EdgeMethod:
    """With the seed, where the method draws anything."""
    draws = name in EDGE_METHODS and "seed" in inspect.signature(EDGE_METHODS[name]).parameters
    return edge_method(name, **({"seed": seed} if draws else {}) | parameters)


def _provenance(model: Model, scores: EdgeScores | Scores, of_ends: dict[str, Any]) -> dict[str, Any]:
    """Of the scores, where it is known; the model is the one that circuits were run on."""
    return {**(scores.provenance or of_ends), "model": describe_model(model, model.weight_hash)}


@dataclass(frozen=True)
class _Asked:
    level: str
    method: str
    select: str
    ablation: str
    completeness: bool
    seed: int


def _curves(items: Items, asked: _Asked, work: Work, run: Callable[[Flags], CircuitValues]) -> dict[str, CircuitCurve]:
    """By score, by absolute score and of random scores; all their circuits run side by side."""
    greedily = asked.select == "greedy"
    counts = numbers_of(SIZES, len(items.mean))
    drawn = np.random.default_rng(asked.seed).standard_normal(len(items.mean))
    kept = {
        "signed": items.best(items.mean, counts, absolute=False, from_the_logits=greedily),
        "absolute": items.best(items.mean, counts, absolute=True, from_the_logits=greedily),
        "random": items.best(drawn, counts, absolute=False),
    }
    circuits = {name: items.pruned(of_curve) for name, of_curve in kept.items()}
    if asked.completeness:
        circuits["complement"] = items.complements(circuits["absolute"])
    together = np.concatenate(list(circuits.values()))
    with work.stage("curves", f"{len(together)} circuits"):
        found = run(together)
    by_name = dict(zip(circuits, np.split(found.values, len(circuits), axis=1), strict=True))
    curves = {}
    for name in kept:
        values = by_name[name]
        if name == "absolute" and asked.completeness:
            values = np.concatenate([values, by_name["complement"]], axis=1)
        settings = {
            "scores": "random" if name == "random" else asked.method,
            "ranking": "signed" if name == "random" else name,
            "level": f"{asked.level}s",
            "choice": "greedy" if greedily and name != "random" else "top",
            "ablation": asked.ablation,
        }
        left = [items.count(circuit) for circuit in circuits[name]]
        of_curve = CircuitValues(values, found.full, found.empty)
        curves[name] = curve_of(SIZES, of_curve, counts, left, settings, seed=asked.seed)
    return curves


def _enough(curve: CircuitCurve) -> float:
    """The smallest size whose circuit has a faithfulness of .5; the whole has 1."""
    return next(size for size, f in zip(curve.curve.sizes, curve.curve.faithfulness, strict=True) if f.value >= ENOUGH)


def _ends(
    model: Model,
    evaluation: PromptPairs,
    level: str,
    ablation: Ablation,
    options: EdgeOptions,
    then: Callable[[Baseline, CircuitValues, Metric, str], object],
) -> tuple[Baseline, dict[str, Any], dict[str, Any]]:
    """Baseline, metric and provenance of the evaluation prompts; refused where there is nothing to be faithful to."""
    with studied(model, evaluation, "ends", order=0, neurons=level == "neuron", ablation=ablation, **options) as study:
        baseline, metric, why = study.baseline, study.metric, study.prepared.metric_chosen_because
        provenance, graph = study.prepared.provenance(""), study.graph
        # The first piece of all: from here on the folder is one that is gone on with.
        study.work.piece("ends", "ends", study.cost, lambda: np.stack([baseline.clean, baseline.corrupted]))
    ends = CircuitValues(np.zeros((len(evaluation), 0)), baseline.clean, baseline.corrupted)
    if ablation != "patch" and level == "neuron":
        sources, neurons = np.ones((1, graph.n_sources), bool), np.ones((1, model.n_layers, model.d_mlp), bool)
        ends = run_neuron_circuits(model, evaluation, sources, neurons, ablation=ablation, **options)
    elif ablation != "patch":
        everything = np.ones((1, graph.n_edges), bool)
        ends = run_circuits(model, evaluation, graph, everything, ablation=ablation, **options)
    then(baseline, ends, metric, why)
    ends.require_difference()
    ends.require_rise()
    said = {"name": metric.name, "unit": metric.unit, "description": metric.description}
    return baseline, {"metric": said, "why": why, "mean": options.get("mean")}, provenance


def _node_scores(
    model: Model, pairs: PromptPairs, method: Method, level: str, seed: int, run_folder: RunFolder | None,
    progress: bool, jobs: Jobs, options: EdgeOptions,
) -> Scores:  # fmt: skip
    """Kept in a run folder of their own, inside that of the circuit."""
    names = ("metric", "memory", "align", "chat", "force")
    common: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    inside = None if run_folder is None else run_folder.path / "shards" / "scores"
    return measure(
        method, model, pairs, sites=SITES[level], direction="noise", seed=seed, progress=progress, run_folder=inside,
        jobs=jobs, **common,
    )  # fmt: skip


def _plan(model: Model, folder: RunFolder) -> dict[str, Any]:
    """What decides the bytes besides what was asked for; how many pieces there are is known when they are made."""
    environment = describe_environment(model)
    return {
        "circuit": folder.request,
        "tokenizer_sha256": model.tokenizer_hash,
        "threads": environment["threads"],
        "versions": environment["versions"],
        "machine": what_rounds()["machine"],
        "matmul_precision": torch.get_float32_matmul_precision(),
        "shards": None,
    }


def require_choice(
    level: str,
    size: float | None,
    faithfulness: float | None,
    select: str = "absolute",
    threshold: float | None = None,
) -> None:
    """Refuse (`OptionError`) what does not say which circuit is to be chosen."""
    if select not in SELECTS:
        raise OptionError(f"There is no --select {select!r}. {instead_of(select, SELECTS)}")
    if size is not None and faithfulness is not None:
        raise OptionError("Give --size or --faithfulness: one of them chooses the circuit.")
    if (select == "threshold") != (threshold is not None):
        raise OptionError(
            "--select threshold and --threshold go together: it keeps all of at least that absolute score."
        )
    if threshold is not None and (size is not None or faithfulness is not None):
        raise OptionError("--threshold chooses the circuit; leave --size and --faithfulness out.")
    if threshold is not None and not threshold > 0:
        raise OptionError(f"--threshold is an absolute score above 0, not {threshold:g}.")
    if select == "greedy" and level != "edge":
        raise OptionError("--select greedy goes along edges, from the logits up; it is for --level edge.")
    if select == "greedy" and faithfulness is not None:
        raise OptionError("--faithfulness searches by score; with --select greedy give a --size.")
    if size is not None and not 0 < size <= 1:
        raise OptionError(f"--size is a share of the graph, above 0 and at most 1, not {size:g}.")
    if faithfulness is not None and level != "edge":
        raise OptionError("--faithfulness is for --level edge; choose a circuit of nodes or neurons by --size.")
    if faithfulness is not None and not 0 < faithfulness < 1:
        raise OptionError(f"--faithfulness must be between 0 and 1, as in 0.85, not {faithfulness:g}.")
