"""Circuits: which edges between components carry a behaviour, and whether they alone can."""

from assay.circuits.edges import EdgeScores, edge_scores
from assay.circuits.faithfulness import CircuitValues, Curve
from assay.circuits.finding import find_circuit, split_pairs
from assay.circuits.found import FoundCircuit
from assay.circuits.graph import Graph
from assay.circuits.mib import read_mib, write_mib
from assay.circuits.nodes import node_curve
from assay.circuits.runs import CircuitCurve, circuit_curve, run_circuits, run_neuron_circuits, smallest_circuit

__all__ = [
    "CircuitCurve",
    "CircuitValues",
    "Curve",
    "EdgeScores",
    "FoundCircuit",
    "Graph",
    "circuit_curve",
    "edge_scores",
    "find_circuit",
    "node_curve",
    "read_mib",
    "run_circuits",
    "run_neuron_circuits",
    "smallest_circuit",
    "split_pairs",
    "write_mib",
]
