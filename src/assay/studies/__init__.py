"""Experiments of papers, end to end: measured into a folder that can be gone on with, and a page made from it."""
