"""How sure ratios and ranks over rows are: prompts are drawn again, each with all of its rows (a cluster bootstrap).

Rows of one prompt share its tokens and its gradient, so they are no independent draws; prompts are. With few prompts
such intervals are too narrow, by a factor sqrt((n - 1) / n) at least, so below `FEWEST` there are none.

Axes: D draws, n prompts, r rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST = 5
"""Prompts with rows, or rows in a rank correlation, below which nothing is said of them as a whole."""
DRAWS, LEVEL, SEED = 1000, 0.95, 0
CANCELLED = 0.1
"""A sum below this share of what its terms add up to without their signs is no denominator."""
Numbers = NDArray[np.float64]
Interval = list[float] | None


def ratio(above: Numbers, below: Numbers, examples: NDArray[np.int64], n: int) -> tuple[float | None, Interval]:
    """Sum over sum, and its 95 % interval; None where nothing can be said.

    A sum below whose terms cancel, or that the prompts do not tell from 0, is no denominator. With few prompts only the
    first can be seen, and there is no interval.

    Args:
        above, below: (r,) terms of both sums.
        examples: (r,) the prompt of each.
        n: prompts, those without rows included.
    """
    total, size = float(below.sum()), float(np.abs(below).sum())
    if not size or abs(total) < CANCELLED * size:
        return None, None
    found = float(above.sum() / total)
    if len(np.unique(examples)) < FEWEST:
        return found, None
    weights_Dn = _weights(n)
    above_D, below_D = (weights_Dn @ np.bincount(examples, terms, n) for terms in (above, below))
    lower, upper = _ends(below_D)
    if lower <= 0 <= upper:
        return None, None
    drawn = below_D != 0
    return found, _ends(above_D[drawn] / below_D[drawn])


def spearman(a: Numbers, b: Numbers) -> float | None:
    """None of fewer than `FEWEST` rows, or where one of the two is constant."""
    if len(a) < FEWEST:
        return None
    found = _rank_correlations(a, b, np.ones((1, len(a))))[0]
    return float(found) if np.isfinite(found) else None


def spearman_interval(a: Numbers, b: Numbers, examples: NDArray[np.int64], n: int) -> Interval:
    """Of `spearman`, 95 %; None with few prompts, or where one of the two is constant."""
    if len(np.unique(examples)) < FEWEST or spearman(a, b) is None:
        return None
    found = np.concatenate(
        [_rank_correlations(a, b, part[:, examples]) for part in np.array_split(_weights(n), 1 + len(a) // 1000)]
    )
    return _ends(found[np.isfinite(found)])


def _weights(n: int) -> Numbers:
    """(D, n) how often each prompt is drawn."""
    return np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(np.float64)


def _ends(values: Numbers) -> list[float]:
    ends: list[float] = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return ends


def _rank_correlations(a: Numbers, b: Numbers, weights_Dr: Numbers) -> Numbers:
    """(D,) Spearman of the rows, each taken as often as its weight says; NaN where one of the two is constant."""
    x_Dr, y_Dr = _ranks(a, weights_Dr), _ranks(b, weights_Dr)

    def product(left: Numbers, right: Numbers) -> Any:
        return (weights_Dr * left * right).sum(1)

    with np.errstate(invalid="ignore"):  # a draw may have no prompt with rows, or only rows of one value
        total = weights_Dr.sum(1, keepdims=True)
        x_Dr, y_Dr = (ranks - (weights_Dr * ranks).sum(1, keepdims=True) / total for ranks in (x_Dr, y_Dr))
        found: Numbers = product(x_Dr, y_Dr) / np.sqrt(product(x_Dr, x_Dr) * product(y_Dr, y_Dr))
    return found


def _ranks(values: Numbers, weights_Dr: Numbers) -> Numbers:
    """(D, r) the mean rank of each value's ties, each value there as often as its weight says."""
    _, group = np.unique(values, return_inverse=True)
    weights_Dg = np.zeros((len(weights_Dr), group.max() + 1))
    np.add.at(weights_Dg.T, group, weights_Dr.T)
    ranks: Numbers = (weights_Dg.cumsum(1) - (weights_Dg - 1) / 2)[:, group]
    return ranks
