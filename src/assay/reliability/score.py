"""The reliability score: how large is the second-order term beside the first?

R = |delta' H delta| / (2 |g'(0)|) (Zhang & Wang, arXiv 2606.09899). Where R is large, the first-order estimate is
not to be trusted. Here q = delta' H delta / 2, so R = |q| / |first order|.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import OptionError

FLOOR = 0.01
"""Of the median |first order|: what is smaller is not told from zero."""


def floor_of(first_order: ArrayLike, noise: float = 0.0) -> float:
    """The size below which a first-order term says nothing: 0.01 x its median absolute value + ``noise``.

    If that is zero (most components have no first-order term, and there is no noise), the median is taken over the
    others. If all are zero it is 1: every scale is then the same constant, and its size cancels.

    Args:
        first_order: any shape, of one kind of site.
        noise: spread of a replayed metric value around the model's own, in the metric's unit.
    """
    sizes = np.abs(np.asarray(first_order, np.float64))
    if not sizes.size:
        return 1.0
    floor = FLOOR * float(np.median(sizes)) + noise
    if floor > 0:
        return floor
    return FLOOR * float(np.median(sizes[sizes > 0])) if sizes.any() else 1.0


def reliability(first_order: ArrayLike, quadratic: ArrayLike, floor: float) -> NDArray[np.float64]:
    """R of every component on every example, NaN where the first-order term is below the floor.

    Sampling noise in ``quadratic`` makes R larger on average, never smaller.

    Args:
        first_order: (C, n), in the metric's unit.
        quadratic: (C, n) half the second derivative, in the metric's unit.
        floor: as `floor_of` gives.

    Returns:
        (C, n)
    """
    first, curved = np.abs(np.asarray(first_order, np.float64)), np.abs(np.asarray(quadratic, np.float64))
    ratio = np.full(first.shape, np.nan)
    np.divide(curved, first, out=ratio, where=(first >= floor) & (first > 0))
    return ratio


def mean_reliability(first_order: ArrayLike, quadratic: ArrayLike, floor: float) -> NDArray[np.float64]:
    """R over examples: sum |q| / sum |first order|, NaN where the mean |first order| is below the floor.

    Args and source as in `reliability`.

    Returns:
        (C,)
    """
    first, curved = np.abs(np.asarray(first_order, np.float64)), np.abs(np.asarray(quadratic, np.float64))
    return reliability(first.mean(-1), curved.mean(-1), floor)


def flagged(
    first_order: ArrayLike, quadratic: ArrayLike, quadratic_stderr: ArrayLike, threshold: float = 0.5
) -> NDArray[np.bool_]:
    """Whether curvature surely exceeds its share: |q| - 2 standard errors > threshold x |first order|, summed
    over examples.

    The standard errors are subtracted example by example: the sum of |q| would otherwise grow with the noise of every
    example, and noise alone would raise flags.

    Args:
        first_order, quadratic, quadratic_stderr: (C, n), in the metric's unit.

    Returns:
        (C,)

    Raises:
        OptionError: a threshold that is negative or not a number.
    """
    if not threshold >= 0:
        raise OptionError(f"--threshold must not be negative, and is {threshold}.")
    surely = np.abs(np.asarray(quadratic, np.float64)) - 2 * np.asarray(quadratic_stderr, np.float64)
    found: NDArray[np.bool_] = surely.sum(-1) > threshold * np.abs(np.asarray(first_order, np.float64)).sum(-1)
    return found
