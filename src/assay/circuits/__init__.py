"""Circuits: which edges between components carry a behaviour, and whether they alone can."""

from assay.circuits.edges import EdgeScores, edge_scores
from assay.circuits.faithfulness import CircuitValues, Curve
from assay.circuits.finding import find_circuit, split_pairs
from assay.circuits.found import FoundCircuit
from assay.circuits.graph import Graph
from assay.circuits.known import auroc, edge_table, known_circuit
from assay.circuits.mib import read_mib, write_mib
from assay.circuits.nodes import node_curve
from assay.circuits.pairs import NodeEffects, node_effects
from assay.circuits.runs import CircuitCurve, circuit_curve, run_circuits, run_neuron_circuits, smallest_circuit
from assay.circuits.selection import above, greedy, top

__all__ = [
    "CircuitCurve",
    "CircuitValues",
    "Curve",
    "EdgeScores",
    "FoundCircuit",
    "Graph",
    "NodeEffects",
    "above",
    "auroc",
    "circuit_curve",
    "edge_scores",
    "edge_table",
    "find_circuit",
    "greedy",
    "known_circuit",
    "node_curve",
    "node_effects",
    "read_mib",
    "run_circuits",
    "run_neuron_circuits",
    "smallest_circuit",
    "split_pairs",
    "top",
    "write_mib",
]
