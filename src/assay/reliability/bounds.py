"""How far can the first-order estimate be off? From second derivatives along the path.

g(1) - g(0) - g'(0) = g''(x)/2 for some x in [0, 1], so sup |g''| / 2 bounds the error. A grid can miss the supremum:
from the left ends 0, 1/K, ..., (K-1)/K, where MS-HVP has its second derivatives (arXiv 2606.09899), no point is
farther than 1/K, so sup |g''| <= max |g''| + sup |g'''| / K. The third derivative comes from finite differences of the
second, so the result is an *estimate* of a bound; `violation_rate` says how often it fails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import DataError


def bound_estimate(second: ArrayLike, *, smooth: bool) -> NDArray[np.float64]:
    """Estimated bound on |exact effect - first order|: max |g''| / 2 + max |g'''| / (2K).

    The mean of these bounds over examples bounds the error of the mean effect.

    Args:
        second: (K, ...) g'' at 0, 1/K, ..., (K-1)/K, K >= 2, in the metric's unit.
        smooth: whether g has a second derivative at all. With ReLU or expert routing it has not: there is no bound.

    Returns:
        (...) in the metric's unit; NaN throughout if not smooth.

    Raises:
        DataError: fewer than two grid points.
    """
    second = np.asarray(second, np.float64)
    if second.ndim == 0 or len(second) < 2:
        raise DataError("A bound needs second derivatives at two points of the path at least (MS-HVP with K >= 2).")
    if not smooth:
        return np.full(second.shape[1:], np.nan)
    points = len(second)
    third = np.abs(np.diff(second, axis=0)).max(0) * points
    bound: NDArray[np.float64] = np.abs(second).max(0) / 2 + third / (2 * points)
    return bound


def violation_rate(bound: ArrayLike, error: ArrayLike, noise: float = 0.0) -> float:
    """Share of exact errors beyond their bound; NaN where no bound is defined.

    Args:
        bound: as `bound_estimate` gives.
        error: exact effect - first order, of the same shape.
        noise: what rounding alone may do, in the metric's unit.
    """
    bound, error = np.asarray(bound, np.float64), np.asarray(error, np.float64)
    defined = ~np.isnan(bound)
    if not defined.any():
        return float("nan")
    return float((np.abs(error[defined]) > bound[defined] + noise).mean())
