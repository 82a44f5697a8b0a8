"""Circuits put to the test: the model with everything outside them patched, on prompts that chose none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any, Literal, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.circuits.ahead import compute_ahead
from assay.circuits.checks import prompts_of, require_model
from assay.circuits.contrast import Ablation, Contrast, Study, studied
from assay.circuits.edges import EdgeOptions, EdgeScores
from assay.circuits.faithfulness import SIZES, CircuitValues, Curve, Estimate
from assay.circuits.graph import Flags, Graph
from assay.circuits.selection import greedy, numbers_of, ranked, top
from assay.circuits.together import Circuits
from assay.data.chat import as_chat
from assay.data.pairs import PromptPairs
from assay.data.readers import AnyPairs, as_pairs
from assay.engine.gradients import read_metric
from assay.errors import DataError, InterventionError, OptionError
from assay.model import Model

Choice = Literal["top", "greedy"]


def run_circuits(
    model: Model,
    pairs: AnyPairs,
    graph: Graph,
    circuits: Sequence[Flags] | Flags,
    *,
    ablation: Ablation = "patch",
    **options: Unpack[EdgeOptions],
) -> CircuitValues:
    """The metric of each circuit, with all edges outside it carrying the counterfactual.

    All circuits share the clean and the counterfactual run, and run side by side.

    Args:
        circuits: (C, E) bool, the edges that are kept; (E,) for a single one.
        ablation: what absent edges carry: what is written on the corrupted prompt (``patch``), ``zero``, or a ``mean``
            over reference prompts.
        options: as in `assay.circuits.edges.edge_scores`; ``ungrouped`` is the graph's.

    Raises:
        OptionError: circuits of another graph; otherwise as `assay.measure`.
        InterventionError: a circuit whose metric is not finite.
    """
    kept = np.atleast_2d(np.asarray(circuits, bool))
    options["ungrouped"] = graph.ungrouped
    with studied(model, pairs, "circuit", order=0, ablation=ablation, **options) as study:
        if study.graph != graph or kept.ndim != 2 or kept.shape[1] != graph.n_edges:
            raise OptionError(
                f"These circuits are of {kept.shape[-1]} edges of another graph; that of {model.name} has "
                f"{study.graph.n_edges}. A circuit belongs to the model that it was found in."
            )
        return _run(study, kept)


def run_neuron_circuits(
    model: Model,
    pairs: AnyPairs,
    sources: Flags,
    neurons: Flags,
    *,
    ablation: Ablation = "patch",
    **options: Unpack[EdgeOptions],
) -> CircuitValues:
    """The metric of circuits of MLP neurons, heads and the input; what is left out holds its counterfactual.

    Args:
        sources: (C, S) which sources are kept, in the graph's order; of MLPs nothing is read, they are their neurons.
        neurons: (C, layers, F) which neurons are kept.
        ablation, options: as in `run_circuits`.

    Raises:
        OptionError: arrays that do not fit the model; otherwise as `run_circuits`.
        ModelError: the model has layers of experts.
    """
    graph = Graph.of(model)
    shape = (len(sources), model.n_layers, model.d_mlp)
    if sources.shape != (len(sources), graph.n_sources) or neurons.shape != shape:
        raise OptionError(
            f"Circuits of neurons of {model.name} are ({graph.n_sources},) sources and {shape[1:]} neurons each, not "
            f"{sources.shape[1:]} and {neurons.shape[1:]}."
        )
    whole = sources.copy()
    whole[:, graph.are_mlps] = True
    options["ungrouped"] = False
    with studied(model, pairs, "circuit", order=0, neurons=True, ablation=ablation, **options) as study:
        return _run(study, graph.nodes(whole), neurons)


def _run(study: Study, kept: Flags, neurons: Flags | None = None) -> CircuitValues:
    """Of neurons, the edges of all MLPs are among those that are kept."""
    values = np.zeros((study.n, len(kept)))
    full, empty = np.zeros(study.n), np.zeros(study.n)
    circuits = Circuits.of(study, kept, neurons)
    compute_ahead(study, circuits.pieces(study), circuits.values, "circuits")
    with study.work.progress(study.rows * len(kept), "(circuit, prompt) pairs"):
        for number, contrast in enumerate(study.contrasts()):
            at = contrast.examples
            if number == 0:
                everything = np.ones((1, study.graph.n_edges), bool)
                contrast.runner().require_faithful(study.graph.absent(everything, study.model.device))
            found, clean, nothing = _run_rows(study, contrast, circuits)
            np.add.at(values, at, found.T.double().cpu().numpy())
            np.add.at(full, at, clean.double().cpu().numpy())
            np.add.at(empty, at, nothing.double().cpu().numpy())
    _require_finite(np.column_stack([full, empty, values]), kept)
    return CircuitValues(values, full, empty)


def _require_finite(values: NDArray[np.float64], kept: Flags) -> None:
    if np.isfinite(values).all():
        return
    example, which = np.argwhere(~np.isfinite(values))[0].tolist()
    names = ["the model", "the empty circuit"]
    name = names[which] if which < 2 else f"circuit {which - 2}, which keeps {kept[which - 2].sum()} edges,"
    raise InterventionError(
        f"The metric of {name} on example {example} is not finite: check the weights, or use --dtype float32."
    )


def _run_rows(study: Study, contrast: Contrast, circuits: Circuits) -> tuple[Tensor, Tensor, Tensor]:
    """(C, R) of the circuits, (R,) of the model and of the empty circuit."""
    batch, response, device = contrast.batch, contrast.response, study.model.device
    count = len(circuits.kept)
    values = torch.zeros(count, batch.rows, dtype=torch.float64, device=device)
    most = circuits.at_once(study.model, study.graph, batch.rows, batch.positions - contrast.start)

    def run(part: slice) -> None:
        compute = partial(circuits.values, contrast, (part.start, part.stop))
        found = contrast.piece(circuits.content(part), "circuits", compute)
        values[part] = torch.from_numpy(found).to(device)
        study.work.advance(len(found) * batch.rows)

    study.portions.run(count, run, lambda _: most)
    with torch.no_grad():
        clean = read_metric(study.model, contrast.base.residuals[-1], batch, study.metric)
        if contrast.ablation != "patch":
            return values[:-1], clean, values[-1]
        # The corrupted prompt's own run: an empty circuit gives the same, to rounding.
        end = response.source("residual-post", study.model.n_layers - 1)[:, :, 0]
        return values, clean, read_metric(study.model, end, batch, study.metric)


@dataclass(frozen=True, eq=False, repr=False)
class CircuitCurve:
    """A curve, and what it was made of."""

    curve: Curve
    counts: list[int]
    """What was chosen at each size, and ..."""
    pruned_counts: list[int]
    """... of edges, those on a path from the input to the logits."""
    complement: CircuitValues | None
    """The complements of the circuits. Their faithfulness is the *completeness* of Marks et al. (arXiv 2403.19647,
    section 3.2): near 0 where the circuit misses nothing."""
    settings: dict[str, Any]
    """Scores, ranking, level, choice and ablation."""

    def __repr__(self) -> str:
        settings, curve = self.settings, self.curve
        return (
            f"CircuitCurve({settings['scores']}, {settings['ranking']}, {len(self.counts)} circuits of up to "
            f"{self.counts[-1]} {settings['level']}, {settings['ablation']}: CPR {_with_interval(curve.cpr)}, "
            f"CMD {_with_interval(curve.cmd)})"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{size:g}</td><td>{count}</td><td>{pruned}</td><td>{_with_interval(found)}</td></tr>"
            for size, count, pruned, found in zip(
                self.curve.sizes, self.counts, self.pruned_counts, self.curve.faithfulness, strict=True
            )
        )
        head = "".join(f"<th>{name}</th>" for name in ("size", self.settings["level"], "pruned", "faithfulness"))
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{rows}</table>"


def _with_interval(found: Estimate) -> str:
    return f"{found.value:.3g} [{found.lower:.3g}, {found.upper:.3g}]"


def circuit_curve(
    model: Model,
    pairs: AnyPairs,
    scores: EdgeScores,
    *,
    sizes: Sequence[float] = SIZES,
    absolute: bool = False,
    choice: Choice = "top",
    completeness: bool = False,
    ablation: Ablation = "patch",
    seed: int = 0,
    **options: Unpack[EdgeOptions],
) -> CircuitCurve:
    """Faithfulness over the size of the circuits that scores choose; CPR and CMD with intervals over prompts.

    Args:
        pairs: to evaluate on; none of them may have been used for the scores.
        sizes: shares of the graph's edges, ascending; MIB's by default.
        absolute: rank by absolute score. MIB's CPR ranks by signed score, its CMD by absolute score.
        choice: the edges of best score, or the best of those that lead to what is reached, from the logits up.
        completeness: also run the circuits' complements: all edges but those of the pruned circuit.
        seed: of the bootstrap.
        ablation, options: as in `run_circuits`.

    Raises:
        DataError: prompts that the scores have seen, a full and an empty circuit within noise of each other, or a
            signed ranking where the full circuit lies below the empty one.
        ModelError: scores of other weights.
        OptionError: sizes that do not ascend or are no shares; otherwise as `run_circuits`.
    """
    require_model(model, scores)
    chosen = require_unseen(model, as_pairs(pairs, model, seed), scores.pairs, chat=options.get("chat", False))
    graph, mean = scores.graph, scores.mean
    counts = numbers_of(sizes, graph.n_edges)
    if choice == "greedy":
        kept = np.stack([greedy(graph, mean, n, absolute=absolute) for n in counts])
    else:
        kept = np.stack([top(mean, n, absolute=absolute) for n in counts])
    pruned = np.stack([graph.pruned(circuit) for circuit in kept])
    runs = np.concatenate([pruned, ~pruned]) if completeness else pruned
    found = run_circuits(model, chosen, graph, runs, ablation=ablation, **options)
    settings = {
        "scores": scores.method,
        "ranking": "absolute" if absolute else "signed",
        "level": "edges",
        "choice": choice,
        "ablation": ablation,
    }
    return curve_of(sizes, found, counts, pruned.sum(1).tolist(), settings, seed=seed)


def curve_of(
    sizes: Sequence[float],
    found: CircuitValues,
    counts: list[int],
    pruned_counts: list[int],
    settings: dict[str, Any],
    *,
    seed: int,
) -> CircuitCurve:
    """A curve of the first circuits that were run; what was run after them are their complements."""
    n = len(counts)
    if settings["ranking"] == "signed":
        found.require_rise()
    circuits = CircuitValues(found.values[:, :n], found.full, found.empty)
    complement = CircuitValues(found.values[:, n:], found.full, found.empty) if found.values.shape[1] > n else None
    return CircuitCurve(Curve(sizes, circuits, seed=seed), counts, pruned_counts, complement, settings)


def already_seen(model: Model, pairs: PromptPairs, seen: PromptPairs | None, *, chat: bool) -> list[bool]:
    """Which of the pairs are known to be among those that scores were made on, as they are or swapped.

    Args:
        chat: scores keep the prompts as they were in the model's chat template.
    """
    known = {prompts_of(pair) for pair in seen or ()}
    rendered = as_chat(model, pairs) if chat else pairs
    return [
        not known.isdisjoint({prompts_of(pair), prompts_of(as_run)})
        for pair, as_run in zip(pairs, rendered, strict=True)
    ]


def require_unseen(model: Model, pairs: PromptPairs, seen: PromptPairs | None, *, chat: bool) -> PromptPairs:
    """The pairs, if none of them is known to be among those that scores were made on.

    Raises:
        DataError: some are.
    """
    again = [pair for pair, known in zip(pairs, already_seen(model, pairs, seen, chat=chat), strict=True) if known]
    if again:
        raise DataError(
            f"{len(again)} of {len(pairs)} prompt pairs were used for the scores (as they are, or with clean and "
            f"corrupted swapped), the first is {again[0].id!r}. A circuit is to be evaluated on "
            "prompts that did not choose it: use another seed, or other rows of the file."
        )
    return pairs


def smallest_circuit(
    model: Model,
    pairs: AnyPairs,
    scores: EdgeScores,
    target: float,
    *,
    absolute: bool = False,
    ablation: Ablation = "patch",
    **options: Unpack[EdgeOptions],
) -> tuple[NDArray[np.bool_], float]:
    """The smallest circuit of best-scored edges found to reach a faithfulness, pruned, and its faithfulness.

    Sizes are searched on a grid that is made finer around the smallest that reaches the target. Faithfulness need not
    grow with size, so a smaller one between two grid points may be missed.

    Args:
        target: wanted faithfulness, such as 0.85.

    Returns:
        (E,) bool, the edges that are kept, and what faithfulness they reach on the pairs: at least ``target``.

    Raises:
        DataError: not even the whole graph reaches it; otherwise as `circuit_curve`.
    """
    require_model(model, scores)
    chosen = require_unseen(model, as_pairs(pairs, model, 0), scores.pairs, chat=options.get("chat", False))
    graph, order = scores.graph, ranked(scores.mean, absolute=absolute)
    below, enough = 0, graph.n_edges
    best: tuple[NDArray[np.bool_], float] | None = None
    while enough - below > 1 or best is None:
        grid = np.unique(np.geomspace(below + 1, enough, GRID).round().astype(int))
        kept = np.zeros((len(grid), graph.n_edges), bool)
        for row, n in enumerate(grid):
            kept[row, order[:n]] = True
        pruned = np.stack([graph.pruned(circuit) for circuit in kept])
        found = run_circuits(model, chosen, graph, pruned, ablation=ablation, **options)
        if not absolute:
            found.require_rise()
        reached = found.faithfulness()
        passing = np.flatnonzero(reached >= target)
        if not len(passing):
            if best is None:
                raise DataError(f"No circuit reaches a faithfulness of {target:g}; the most is {reached.max():.3g}.")
            break
        first = int(passing[0])
        best = pruned[first], float(reached[first])
        enough = int(grid[first])
        below = int(grid[first - 1]) if first else below
    return best


GRID = 12
"""Circuits that are run side by side while the smallest is sought."""
