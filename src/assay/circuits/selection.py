"""From scores to a circuit: which edges or nodes are kept. Ties go to the one that comes first in the graph."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.circuits.graph import Flags, Graph
from assay.errors import OptionError


def number_of(share: float, n: int) -> int:
    """How many a share of n is: rounded down, as in MIB, but never by a float's last digit, and at least 1."""
    return max(1, int(share * n + 1e-9 * n))


def numbers_of(sizes: Sequence[float], n: int) -> list[int]:
    """How many each share of n is.

    Raises:
        OptionError: sizes that do not ascend, or one that is no share.
    """
    if not len(sizes) or any(later <= earlier for earlier, later in pairwise(sizes)):
        raise OptionError(f"Sizes of circuits must ascend, not {', '.join(f'{size:g}' for size in sizes) or 'none'}.")
    for size in sizes:
        if not 0 < size <= 1:
            raise OptionError(f"A size is a share of what was scored, above 0 and at most 1, not {size:g}.")
    return [number_of(size, n) for size in sizes]


def ranked(scores: ArrayLike, *, absolute: bool) -> NDArray[np.int64]:
    """Numbers from the most to the least important: by score, or by its absolute value."""
    return np.argsort(-_keys(scores, absolute), kind="stable")


def top(scores: ArrayLike, n: int, *, absolute: bool) -> Flags:
    """The n of highest score or absolute score.

    Raises:
        OptionError: there are not so many.
    """
    order = ranked(scores, absolute=absolute)
    _require_number(n, len(order))
    kept = np.zeros(len(order), bool)
    kept[order[:n]] = True
    return kept


def above(scores: ArrayLike, threshold: float, *, absolute: bool) -> Flags:
    """All whose score or absolute score is at least ``threshold``."""
    kept: Flags = _keys(scores, absolute) >= threshold
    return kept


def greedy(graph: Graph, scores: ArrayLike, n: int, *, absolute: bool) -> Flags:
    """n edges, from the logits up: always the best of those that lead to what is already reached.

    Args:
        scores: (E,)

    Raises:
        OptionError: the graph has not so many edges.
    """
    keys = _keys(scores, absolute)
    _require_number(n, graph.n_edges)
    kept = np.zeros(graph.n_edges, bool)
    reached = np.zeros(graph.n_destinations, bool)
    waiting: list[tuple[float, int]] = []

    def reach(destination: int) -> None:
        if not reached[destination]:
            reached[destination] = True
            for edge in range(graph.offsets[destination], graph.offsets[destination + 1]):
                heapq.heappush(waiting, (-keys[edge], edge))

    reach(graph.n_destinations - 1)
    for _ in range(n):
        _, edge = heapq.heappop(waiting)
        kept[edge] = True
        for destination in np.flatnonzero(graph.owners[:, graph.edge_sources[edge]]):
            reach(int(destination))
    return kept


def _keys(scores: ArrayLike, absolute: bool) -> NDArray[np.float64]:
    keys = np.asarray(scores, np.float64)
    if keys.ndim != 1 or np.isnan(keys).any():
        raise OptionError(f"Scores must be a list of numbers without NaN, one for each; these are {keys.shape}.")
    return np.abs(keys) if absolute else keys


def _require_number(n: int, most: int) -> None:
    if not 0 <= n <= most:
        raise OptionError(f"{n} cannot be kept of {most}.")
