"""Intervals from a random sample of components that were patched exactly: split conformal prediction.

A score |exact - estimate| / scale is exchangeable over the members of a population of which m are drawn at random, so
the ceil((m + 1) L)-th smallest score of the sample covers that of any other member with probability L at least
(Vovk, Gammerman & Shafer 2005; Lei et al., arXiv 1604.04173). The members and their effects are fixed: all chance is
in the draw.

That is coverage on average over draws and over members. It says nothing about a member that was chosen for its size.
What holds for all members at once is the distribution of how many lie outside, `outside_distribution`. It depends on
population and sample size alone (ties only lower it), so its quantile is known before anything is patched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.signal import convolve
from scipy.stats import nhypergeom

from assay.errors import OptionError

DEFAULT_SAMPLES = (19, 60)
"""Smallest and largest. Fewer would give other widths at every draw, more would buy little."""
BOUND_CONFIDENCE = 0.95


def exact_level(level: float) -> Fraction:
    """The level as the fraction that was typed: 0.95 is 19/20, whatever its binary neighbour.

    Raises:
        OptionError: not between 0 and 1.
    """
    if not 0 < level < 1:
        raise OptionError(f"--level must lie between 0 and 1, such as 0.95, and is {level}.")
    return Fraction(str(float(level)))


def smallest_sample(level: float) -> int:
    """How many calibration runs a level needs: ceil(L / (1 - L)), 19 at 95 %."""
    share = exact_level(level)
    return math.ceil(share / (1 - share))


def sample_size(members: int, level: float) -> int:
    """Default calibration sample: a tenth of the members, from 19 to 60, never fewer than the level needs."""
    least, most = DEFAULT_SAMPLES
    return max(smallest_sample(level), least, min(most, members // 10))


def rank(sample: int, level: float) -> int:
    """Which of ``sample`` sorted scores is the quantile, counted from 1: ceil((m + 1) L).

    Raises:
        OptionError: the sample is too small for the level.
    """
    place = math.ceil((sample + 1) * exact_level(level))
    if place > sample:
        raise OptionError(
            f"Intervals at level {level:g} need {smallest_sample(level)} calibration runs at least, not {sample}."
        )
    return place


def outside_distribution(members: int, sample: int, level: float) -> NDArray[np.float64]:
    """Probabilities of 0, 1, ..., members - sample other members outside their interval, if no scores are tied.

    Other members inside come before the rank-th calibration score in a random order of all: negative hypergeometric.
    """
    others = members - sample
    inside = np.arange(others, -1, -1)
    return np.asarray(nhypergeom.pmf(inside, members, others, rank(sample, level))) if others else np.ones(1)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the calibration sample of one site kind says."""

    kind: str
    level: float
    members: NDArray[np.intp]
    """The population: components of this kind that had not been patched when the sample was drawn."""
    sample: NDArray[np.intp]
    """Those of them that were drawn and patched, in the order of drawing."""
    uses_curvature: bool
    """Whether the estimate is first order + curvature (where that exceeds its standard errors)."""
    quantile: float
    """Half-width of an interval over its scale, as calibrated."""
    widened: float
    """The same after too many others were found outside; the quantile if there was no need."""

    @classmethod
    def of(
        cls,
        kind: str,
        level: float,
        members: NDArray[np.intp],
        sample: NDArray[np.intp],
        uses_curvature: bool,
        scores: NDArray[np.float64],
    ) -> Calibration:
        """From the sample's scores |exact - estimate| / scale, (m,)."""
        quantile = float(np.sort(scores)[rank(len(scores), level) - 1])
        return cls(kind, level, members, sample, uses_curvature, quantile, quantile)

    def widen(self, others: NDArray[np.float64]) -> Calibration:
        """Widen if more than 1 - L of others that were patched lie outside, so that no more than that do.

        A wider interval covers what the calibrated one covers, so every guarantee stays.

        Args:
            others: scores of all others of this kind that were patched.
        """
        share, count = exact_level(self.level), len(others)
        if (others > self.widened).sum() <= (1 - share) * count:
            return self
        place = min(math.ceil((count + 1) * share), count)
        return replace(self, widened=float(np.sort(others)[place - 1]))

    @property
    def expected_outside(self) -> float:
        """At most so many of the members outside the sample lie outside their interval, on average over draws."""
        return float((1 - exact_level(self.level)) * (len(self.members) - len(self.sample)))


def outside_bound(calibrations: Iterable[Calibration]) -> int:
    """One-sided 95 % bound on how many members outside the samples lie outside their calibrated interval.

    Holds with probability 0.95 at least over the draws of all samples, whatever the effects are. Each kind is drawn
    by itself, so the distributions of the kinds convolve.
    """
    total = np.ones(1)
    for calibration in calibrations:
        of_kind = outside_distribution(len(calibration.members), len(calibration.sample), calibration.level)
        total = convolve(total, of_kind)
    # Summed from the far end, where the terms are small.
    beyond = np.append(np.cumsum(total[::-1])[::-1][1:], 0.0)
    return int(np.argmax(beyond <= 1 - BOUND_CONFIDENCE))
