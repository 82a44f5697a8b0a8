"""How well scores find a known circuit."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from assay.circuits.edges import edge_scores
from assay.circuits.known.circuits import KnownCircuit
from assay.errors import DataError


def auroc(scores: ArrayLike, truth: ArrayLike) -> float:
    """The chance that an edge of the circuit has a higher score than one outside, ties counting half.

    Raises:
        DataError: the circuit has no edge, or all of them.
    """
    inside = np.asarray(truth, bool)
    n = int(inside.sum())
    if not 0 < n < len(inside):
        raise DataError(f"A circuit of {n} of {len(inside)} edges cannot be told from what is outside it.")
    ranks = rankdata(np.asarray(scores, np.float64))
    return float((ranks[inside].sum() - n * (n + 1) / 2) / (n * (len(inside) - n)))


def edge_table(known: KnownCircuit) -> pd.DataFrame:
    """The exact effect of every edge, largest absolute one first, and whether it is in the circuit."""
    exact = edge_scores(known.model, known.pairs, "exact")
    frame = pd.DataFrame({"edge": exact.graph.edge_names, "effect": exact.mean, "known": known.flags})
    return frame.sort_values("effect", key=abs, ascending=False, kind="stable", ignore_index=True)
