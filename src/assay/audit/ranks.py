"""Ranks by gradient against ranks by cause, and how sure the difference is.

Delta = rank(G) - rank(C), both ascending, ties averaged (Ye, arXiv 2602.01442). With n components a *hidden hero* has
Delta <= -0.3 n (small gradient, large effect), a *gradient bloat* Delta >= 0.3 n; others are *aligned*. Examples, and
the batches that gradients are taken on, are redrawn together many times; a class is told where it comes out in nine of
ten draws, whatever the order of those that are tied, else the component is *unsettled*. Of one example or one batch no
draw differs from another, so nothing is known of how sure anything is: all are unsettled.

Axes: C components, n examples, b batches, D draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from assay.errors import DataError

SHARE = 0.3
SURE = 0.9
CLASSES = ("hero", "aligned", "bloat")
UNSETTLED = "unsettled"
DRAWS = 1000


@dataclass(frozen=True, eq=False)
class RankAudit:
    """One measure of importance held against the causal one, C components each."""

    delta: np.ndarray
    """(C,) rank by the measure less rank by cause."""
    delta_lower: np.ndarray
    delta_upper: np.ndarray
    """(C,) 95 % bootstrap interval; all that is possible where there is one example or batch."""
    probabilities: np.ndarray
    """(C, 3) share of draws in which a component is hero, aligned, bloat. Their sum is below 1 where ties leave the
    class open: a component that is tied with all others has no rank."""
    rho: float
    """Spearman correlation; NaN where all of either are equal."""
    rho_lower: float
    rho_upper: float

    @property
    def classes(self) -> list[str]:
        """The class of each component, where it is sure."""
        best = self.probabilities.argmax(1)
        sure = self.probabilities.max(1) >= SURE
        return [CLASSES[which] if told else UNSETTLED for which, told in zip(best, sure, strict=True)]

    def members(self, name: str) -> list[int]:
        """The numbers of the components of a class."""
        return [number for number, found in enumerate(self.classes) if found == name]


def audit_ranks(measure: np.ndarray, causal: np.ndarray, *, draws: int = DRAWS, seed: int = 0) -> RankAudit:
    """Hold a measure against causal losses.

    Args:
        measure: (C, b) values whose mean is what components are ranked by, of batches or examples.
        causal: (C, n) losses. Where b = n they are of the same examples, which are redrawn together.

    Raises:
        DataError: not two tables of the same components.
    """
    if measure.ndim != 2 or causal.ndim != 2 or len(measure) != len(causal) or not measure.size or not causal.size:
        raise DataError(f"Ranks need two tables of the same components, not {measure.shape} and {causal.shape}.")
    count, n = causal.shape
    generator = np.random.default_rng(seed)
    of_examples = generator.multinomial(n, np.full(n, 1 / n), size=draws) / n
    b = measure.shape[1]
    of_batches = of_examples if b == n else generator.multinomial(b, np.full(b, 1 / b), size=draws) / b
    means = of_batches @ measure.T, of_examples @ causal.T
    ranks = ranks_of(means[0]), ranks_of(means[1])
    there = ranks_of(measure.mean(1)[None])[0], ranks_of(causal.mean(1)[None])[0]
    deltas = ranks[0] - ranks[1]
    limit = SHARE * count
    # Delta if ties were broken one way, and the other.
    least = ranks_of(means[0], "min") - ranks_of(means[1], "max")
    most = ranks_of(means[0], "max") - ranks_of(means[1], "min")
    heroes, bloats, aligned = most <= -limit, least >= limit, (least > -limit) & (most < limit)
    probabilities = np.stack([heroes.mean(0), aligned.mean(0), bloats.mean(0)], axis=1)
    lower, upper = np.quantile(deltas, [0.025, 0.975], axis=0)
    rhos = spearman(*ranks)
    ends = np.quantile(rhos, [0.025, 0.975]) if np.isfinite(rhos).all() else (np.nan, np.nan)
    rho = float(spearman(there[0][None], there[1][None])[0])
    if min(n, b) < 2:
        most_apart, unknown = np.full(count, count - 1.0), np.zeros((count, len(CLASSES)))
        return RankAudit(there[0] - there[1], -most_apart, most_apart, unknown, rho, -1.0, 1.0)
    return RankAudit(there[0] - there[1], lower, upper, probabilities, rho, float(ends[0]), float(ends[1]))


def ranks_of(means_DC: np.ndarray, ties: Literal["average", "min", "max"] = "average") -> np.ndarray:
    """(D, C) ascending ranks from 1; sums that differ by rounding only are ties."""
    size = np.abs(means_DC).max(1, keepdims=True, initial=0.0)
    safe = np.where(size > 0, size, 1.0)
    found: np.ndarray = rankdata(np.round(means_DC / safe, 12), ties, axis=1)
    return found


def spearman(one_DC: np.ndarray, other_DC: np.ndarray) -> np.ndarray:
    """(D,) correlation of ranks; NaN where either are all equal."""
    one, other = (ranks - ranks.mean(1, keepdims=True) for ranks in (one_DC, other_DC))
    size = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    found: np.ndarray = np.divide((one * other).sum(1), size, out=np.full(len(one), np.nan), where=size > 0)
    return found
