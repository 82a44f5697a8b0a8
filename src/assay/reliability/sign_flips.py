"""An interval for a mean that holds with six values as with sixty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import DataError

ALL = 13
"""Up to so many values, all their subsets are looked at; of more, as many drawn ones."""
FEWEST = 6
"""Values that an interval of level 0.95 takes."""
AT_ONCE = 2**22
"""Subset means in memory together."""


class Interval(NamedTuple):
    """Ends of an interval, (C,) each."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


def sign_flip_interval(values: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """All means that a two-sided sign-flip test does not reject: the test's exact inversion.

    Of the means of all subsets of n values, the centre of a symmetric distribution is equally likely to lie between any
    two that are neighbours (Hartigan, Using subsample values as typical values, JASA 64, 1969). Differences of two
    methods that are equally good are symmetric about 0, however few and however skewed the methods' own values are, so
    an interval of level 0.95 excludes 0 at most once in twenty then. For values that are skewed about their own mean it
    holds only approximately.

    Args:
        values: (C, n) independent values of each of C quantities; the same subsets serve all.
        seed: of the subsets that are drawn where there are more than 13 values.

    Returns:
        Intervals; NaN where n is so small that none has this level (below 6 for 0.95).

    Raises:
        DataError: not a (C, n) table with n >= 1.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or values.shape[1] < 1:
        raise DataError(f"An interval needs a table of quantities by values, not an array of {values.shape}.")
    count, n = values.shape
    if n <= ALL:
        inside = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    else:
        drawn = np.random.default_rng(seed).integers(0, 2, (2**ALL, n))
        inside = drawn[drawn.any(1)][: 2**ALL - 1]
    outside = int((1 - level) / 2 * (len(inside) + 1))  # of the equally likely gaps, at each end
    ends = np.full((2, count), np.nan)
    if outside:
        weights = inside / inside.sum(1, keepdims=True)
        at_once = max(1, AT_ONCE // len(weights))
        for first in range(0, count, at_once):
            part = slice(first, first + at_once)
            means = np.sort(values[part] @ weights.T, axis=1)
            ends[:, part] = means[:, outside - 1], means[:, -outside]
    return Interval(*ends)
