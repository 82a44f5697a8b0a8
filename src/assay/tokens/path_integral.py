"""The integral of slopes along a path, evaluated where the path is steep."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
LEAST = 9
"""Evaluations from which the grid adapts; fewer lie at midpoints."""


def path_integral(evaluate: Callable[[Numbers], tuple[Numbers, Numbers]], steps: int) -> Numbers:
    """The integral from 0 to 1 of T slopes whose sum is the derivative of a known value.

    A language model can be so steep on the way from a baseline to a text that hundreds of evenly spaced points miss it.
    Here half of the points are evenly spaced, by Simpson's rule; the others halve, again and again, those intervals
    in which the integral of the slopes most misses the change of the value.

    Args:
        evaluate: (N,) strengths to (N,) values and (N, T) slopes, all of them finite.
        steps: points in all.

    Returns:
        (T,)

    Raises:
        ValueError: a value or slope is not finite.
    """
    if steps < LEAST:
        slopes = evaluate((np.arange(steps) + 0.5) / steps)[1]
        return np.asarray(slopes.mean(0))
    cells = _Cells(evaluate, (steps // 2 - 1) // 2)
    left = steps - (2 * cells.count + 1)
    while left >= 2:
        worst = np.argsort(-cells.missed, kind="stable")[: left // 2]
        if not np.isfinite(cells.missed).all():
            raise ValueError("a value or slope on the path is not finite")
        chosen = worst[cells.missed[worst] >= cells.missed.max() / 4]  # several at once share a pass
        cells.halve(chosen)
        left -= 2 * len(chosen)
    return np.asarray(cells.integrals.sum(0))


class _Cells:
    """Intervals with what is known at their start, middle and end."""

    def __init__(self, evaluate: Callable[[Numbers], tuple[Numbers, Numbers]], count: int) -> None:
        self.evaluate = evaluate
        at = np.linspace(0, 1, 2 * count + 1)
        values, slopes = evaluate(at)
        self.at = np.stack([at[:-2:2], at[1::2], at[2::2]], 1)
        self.values = np.stack([values[:-2:2], values[1::2], values[2::2]], 1)
        self.slopes = np.stack([slopes[:-2:2], slopes[1::2], slopes[2::2]], 1)

    @property
    def count(self) -> int:
        return len(self.at)

    @property
    def integrals(self) -> Numbers:
        """(cells, T), by Simpson's rule."""
        widths = self.at[:, 2] - self.at[:, 0]
        weights = np.array([1, 4, 1]) / 6
        return np.asarray(widths[:, None] * np.einsum("p,cpt->ct", weights, self.slopes))

    @property
    def missed(self) -> Numbers:
        """(cells,) absolute difference of the value's change and the integral."""
        return np.asarray(np.abs(self.values[:, 2] - self.values[:, 0] - self.integrals.sum(1)))

    def halve(self, chosen: NDArray[np.intp]) -> None:
        """Put two cells in the place of each chosen one; two evaluations each."""
        at = self.at[chosen]
        quarters = np.stack([at[:, :2].mean(1), at[:, 1:].mean(1)], 1)
        values, slopes = self.evaluate(quarters.ravel())
        self.at = self._halved(self.at, chosen, quarters)
        self.values = self._halved(self.values, chosen, values.reshape(quarters.shape))
        self.slopes = self._halved(self.slopes, chosen, slopes.reshape(*quarters.shape, -1))

    @staticmethod
    def _halved(old: Numbers, chosen: NDArray[np.intp], new: Numbers) -> Numbers:
        start, middle, end = (old[chosen, point] for point in range(3))
        first, second = np.stack([start, new[:, 0], middle], 1), np.stack([middle, new[:, 1], end], 1)
        return np.concatenate([np.delete(old, chosen, 0), first, second])
