"""Models whose circuit is known, because their weights were written by hand."""

from assay.circuits.known.circuits import KNOWN_CIRCUITS, KnownCircuit, known_circuit
from assay.circuits.known.recovery import auroc, edge_table

__all__ = ["KNOWN_CIRCUITS", "KnownCircuit", "auroc", "edge_table", "known_circuit"]
