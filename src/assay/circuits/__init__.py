"""Circuits: which edges between components carry a behaviour, and whether they alone can."""
