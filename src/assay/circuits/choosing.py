"""What a circuit may be made of, edges or nodes and neurons, behind one face: choose by scores, and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from assay.circuits.contrast import Ablation
from assay.circuits.edges import EdgeOptions, EdgeScores
from assay.circuits.faithfulness import CircuitValues
from assay.circuits.graph import Flags, Graph
from assay.circuits.nodes import item_scores, run_items
from assay.circuits.runs import run_circuits
from assay.circuits.selection import above, greedy, top
from assay.data.pairs import PromptPairs
from assay.model import Model
from assay.scores import Scores

Numbers = NDArray[np.float64]


class Items(Protocol):
    """What was scored."""

    mean: Numbers
    """(N,) their scores."""

    def best(self, scores: Numbers, counts: Sequence[int], *, absolute: bool, from_the_logits: bool = False) -> Flags:
        """(C, ...) circuits of so many of the best."""

    def above(self, threshold: float) -> Flags:
        """(...) the circuit of all whose absolute score is at least this."""

    def pruned(self, circuits: Flags) -> Flags:
        """(C, ...) without what is on no path from the input to the logits."""

    def complements(self, circuits: Flags) -> Flags:
        """(C, ...) of all that was scored, what they leave out."""

    def count(self, circuit: Flags) -> int:
        """How many of what was scored are in a circuit."""

    def run(
        self, model: Model, pairs: PromptPairs, circuits: Flags, *, ablation: Ablation, **options: Unpack[EdgeOptions]
    ) -> CircuitValues:
        """The metric of each circuit."""


class Edges:
    """Circuits are (C, E) edges."""

    def __init__(self, scores: EdgeScores) -> None:
        self.graph: Graph = scores.graph
        self.mean: Numbers = scores.mean

    def best(self, scores: Numbers, counts: Sequence[int], *, absolute: bool, from_the_logits: bool = False) -> Flags:
        if from_the_logits:
            return np.stack([greedy(self.graph, scores, n, absolute=absolute) for n in counts])
        return np.stack([top(scores, n, absolute=absolute) for n in counts])

    def above(self, threshold: float) -> Flags:
        return above(self.mean, threshold, absolute=True)

    def pruned(self, circuits: Flags) -> Flags:
        return np.stack([self.graph.pruned(circuit) for circuit in circuits])

    def complements(self, circuits: Flags) -> Flags:
        return ~circuits

    def count(self, circuit: Flags) -> int:
        return int(circuit.sum())

    def run(
        self, model: Model, pairs: PromptPairs, circuits: Flags, *, ablation: Ablation, **options: Unpack[EdgeOptions]
    ) -> CircuitValues:
        options.pop("ungrouped", None)
        return run_circuits(model, pairs, self.graph, circuits, ablation=ablation, **options)


class Nodes:
    """Circuits are (C, S) sources or, where neurons were scored, (C, S + layers F) sources and then neurons. What was
    not scored is always kept."""

    def __init__(self, model: Model, scores: Scores) -> None:
        items = item_scores(model, scores)
        self.scored = ~np.isnan(items)
        self.mean: Numbers = items[self.scored]
        self.n_sources = Graph.of(model).n_sources

    def best(self, scores: Numbers, counts: Sequence[int], *, absolute: bool, from_the_logits: bool = False) -> Flags:
        return self._whole([top(scores, n, absolute=absolute) for n in counts])

    def above(self, threshold: float) -> Flags:
        circuit: Flags = self._whole([above(self.mean, threshold, absolute=True)])[0]
        return circuit

    def _whole(self, chosen: list[Flags]) -> Flags:
        circuits = np.ones((len(chosen), len(self.scored)), bool)
        circuits[:, self.scored] = chosen
        return circuits

    def pruned(self, circuits: Flags) -> Flags:
        return circuits

    def complements(self, circuits: Flags) -> Flags:
        return ~circuits | ~self.scored

    def count(self, circuit: Flags) -> int:
        return int(circuit[self.scored].sum())

    def run(
        self, model: Model, pairs: PromptPairs, circuits: Flags, *, ablation: Ablation, **options: Unpack[EdgeOptions]
    ) -> CircuitValues:
        options.pop("ungrouped", None)
        sources, neurons = circuits[:, : self.n_sources], None
        if len(self.scored) > self.n_sources:
            neurons = circuits[:, self.n_sources :].reshape(len(circuits), model.n_layers, -1)
        return run_items(model, pairs, sources, neurons, ablation=ablation, **options)


def items_of(model: Model, scores: EdgeScores | Scores) -> Items:
    """Edges, or nodes and neurons."""
    return Edges(scores) if isinstance(scores, EdgeScores) else Nodes(model, scores)
