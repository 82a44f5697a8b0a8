"""Circuits: which edges between components carry a behaviour, and whether they alone can."""

from assay.circuits.edges import EdgeScores, edge_scores
from assay.circuits.ensembles import ensemble
from assay.circuits.faithfulness import CircuitValues, Curve
from assay.circuits.finding import find_circuit, split_pairs
from assay.circuits.found import FoundCircuit
from assay.circuits.graph import Graph
from assay.circuits.known import auroc, edge_table, known_circuit
from assay.circuits.mib import read_mib, read_mib_circuit, write_mib
from assay.circuits.mib_nodes import read_mib_nodes, write_mib_nodes
from assay.circuits.nodes import node_curve
from assay.circuits.pairs import NodeEffects, node_effects
from assay.circuits.runs import CircuitCurve, circuit_curve, run_circuits, run_neuron_circuits, smallest_circuit
from assay.circuits.selection import above, greedy, top
from assay.circuits.submission import add_to_submission, check_submission

__all__ = [
    "CircuitCurve",
    "CircuitValues",
    "Curve",
    "EdgeScores",
    "FoundCircuit",
    "Graph",
    "NodeEffects",
    "above",
    "add_to_submission",
    "auroc",
    "check_submission",
    "circuit_curve",
    "edge_scores",
    "edge_table",
    "ensemble",
    "find_circuit",
    "greedy",
    "known_circuit",
    "node_curve",
    "node_effects",
    "read_mib",
    "read_mib_circuit",
    "read_mib_nodes",
    "run_circuits",
    "run_neuron_circuits",
    "smallest_circuit",
    "split_pairs",
    "top",
    "write_mib",
    "write_mib_nodes",
]
