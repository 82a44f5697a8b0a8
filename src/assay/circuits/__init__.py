"""Circuits: which edges between components carry a behaviour, and whether they alone can."""

from assay.circuits.edges import EdgeScores, edge_scores
from assay.circuits.faithfulness import CircuitValues, Curve
from assay.circuits.graph import Graph
from assay.circuits.nodes import node_curve
from assay.circuits.runs import CircuitCurve, circuit_curve, run_circuits, run_neuron_circuits, smallest_circuit

__all__ = [
    "CircuitCurve",
    "CircuitValues",
    "Curve",
    "EdgeScores",
    "Graph",
    "circuit_curve",
    "edge_scores",
    "node_curve",
    "run_circuits",
    "run_neuron_circuits",
    "smallest_circuit",
]
