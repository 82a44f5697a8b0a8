"""Uncertainty over prompts: what would another draw of prompt pairs give?

An interval of `calibration` is about the exact effect on these prompts. This is the other question.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import DataError


class PromptSpread(NamedTuple):
    """Bootstrap of the mean over examples, (C,) each."""

    stderr: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


def bootstrap_mean(values: ArrayLike, *, level: float = 0.95, seed: int = 0, draws: int = 2000) -> PromptSpread:
    """Percentile bootstrap of each component's mean over prompt pairs; the same pairs are redrawn for all.

    With few prompts it is too narrow: by a factor sqrt((n - 1) / n) at least. Whether two things differ is a question
    for `sign_flip_interval`.

    Args:
        values: (C, n) per-example values.

    Returns:
        Standard error and interval; NaN with a single example.

    Raises:
        DataError: not a (C, n) table with n >= 1.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or values.shape[1] < 1:
        raise DataError(f"The bootstrap needs a value per component and example, not an array of {values.shape}.")
    count, n = values.shape
    if n == 1:
        return PromptSpread(*np.full((3, count), np.nan))
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws) / n
    spread = np.empty((3, count))
    at_once = 4096
    for first in range(0, count, at_once):
        means = values[first : first + at_once] @ weights.T
        spread[0, first : first + at_once] = means.std(1, ddof=1)
        spread[1:, first : first + at_once] = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=1)
    return PromptSpread(*spread)
