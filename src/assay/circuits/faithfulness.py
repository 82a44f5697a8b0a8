"""How much of a behaviour a circuit carries by itself.

faithfulness f(C) = (m(C) - m(empty)) / (m(full) - m(empty)), m the metric averaged over prompts first (Mueller et al.,
arXiv 2504.13151). Over circuits of growing size, CPR is the area under f and CMD the area under |1 - f|, by trapezoids
on a linear axis of sizes; MIB's sizes span .999, so a perfect circuit has CPR .999. f may be above 1 or below 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.data.baseline import standard_error
from assay.errors import DataError

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""MIB's: shares of what was scored."""
DRAWS = 2000
FEW = 10
"""With fewer prompts an interval of 95% covers less: about 86% to 95% with 8 in our simulations."""
Numbers = NDArray[np.float64]


class Estimate(NamedTuple):
    """A value and its bootstrap interval over prompts; none (NaN) with a single prompt."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, eq=False)
class CircuitValues:
    """The metric of C circuits on n examples, and of the two runs that they are measured against."""

    values: Numbers
    """(n, C)"""
    full: Numbers
    """(n,) the model."""
    empty: Numbers
    """(n,) every edge carries the counterfactual."""

    def faithfulness(self) -> Numbers:
        """(C,)

        Raises:
            DataError: full and empty are within two standard errors, so a share of their difference means nothing; or
                values that are not finite.
        """
        self.require_difference()
        found: Numbers = self._faithfulness(np.ones((1, len(self.full))) / len(self.full))[0]
        return found

    def require_difference(self) -> None:
        """Refuse (`DataError`) a full and an empty circuit that cannot be told apart, and what is not finite."""
        for name, found in (("the circuits", self.values), ("the model", self.full), ("the empty circuit", self.empty)):
            if not np.isfinite(found).all():
                raise DataError(f"The metric of {name} is not finite on every example; check the weights.")
        difference = self.full - self.empty
        noise = standard_error(difference)
        least = 2 * noise if np.isfinite(noise) else 0.0
        rounding = 1e-5 * max(np.abs(self.full).max(), np.abs(self.empty).max())
        if not abs(difference.mean()) > max(least, rounding):
            raise DataError(
                f"The model ({self.full.mean():.4g}) and the empty circuit ({self.empty.mean():.4g}) are within noise "
                f"(difference {difference.mean():.3g}, standard error {noise:.2g}): there is nothing for a circuit to "
                "be faithful to. Use more prompts, another counterfactual, or a task that the model can do."
            )

    def require_rise(self) -> None:
        """Refuse (`DataError`) a full circuit below the empty one, where edges are ranked by signed score."""
        if self.full.mean() < self.empty.mean():
            raise DataError(
                f"The metric of the model ({self.full.mean():.4g}) is below that of the empty circuit "
                f"({self.empty.mean():.4g}): a high score marks what raises the metric, so a signed ranking would "
                "choose what works against the difference. Swap the answers or the prompts of the pairs, or use a task "
                "that the model can do; from Python, circuits can also be ranked by absolute score."
            )

    def _faithfulness(self, weights: Numbers) -> Numbers:
        """(B, C) for (B, n) weights of examples."""
        empty = weights @ self.empty
        return (weights @ self.values - empty[:, None]) / (weights @ self.full - empty)[:, None]

    def estimates(self, *, level: float = 0.95, seed: int = 0) -> list[Estimate]:
        """Faithfulness of each circuit, with its interval over prompts; refuses what `faithfulness` refuses."""
        drawn = self.resampled(seed=seed)
        return [
            _estimate(value, of_circuit, level, len(self.full))
            for value, of_circuit in zip(self.faithfulness(), drawn.T, strict=True)
        ]

    def resampled(self, *, draws: int = DRAWS, seed: int = 0) -> Numbers:
        """(B, C) faithfulness for as many examples drawn with replacement, the same ones for all circuits."""
        n = len(self.full)
        weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws) / n
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._faithfulness(weights)


@dataclass(frozen=True, eq=False)
class Curve:
    """Faithfulness over circuit size.

    Raises:
        DataError: sizes that do not ascend or are not as many as circuits; otherwise as `CircuitValues.faithfulness`.
    """

    sizes: Sequence[float]
    """(C,) ascending shares of what was scored."""
    circuits: CircuitValues
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.sizes) != self.circuits.values.shape[1] or (np.diff(self.sizes) <= 0).any() or len(self.sizes) < 2:
            raise DataError("A curve needs a circuit for each of two or more ascending sizes.")
        self.circuits.require_difference()

    @property
    def faithfulness(self) -> list[Estimate]:
        """Of each size."""
        return self.circuits.estimates(level=self.level, seed=self.seed)

    @property
    def cpr(self) -> Estimate:
        """Circuit performance ratio: the area under f; higher is better."""
        return self._area(lambda f: f)

    @property
    def cmd(self) -> Estimate:
        """Circuit-model distance: the area under |1 - f|; lower is better, 0 is perfect.

        |1 - f| is convex, so noise of f raises CMD, and a resample has that noise twice: near 0 all resamples may lie
        above the truth. The lower end is therefore that of the *basic* bootstrap (Davison & Hinkley, Bootstrap Methods
        and their Application, 1997, section 5.2), twice the value less the upper end, and at least 0. The upper end is
        the percentile's, since that of the basic bootstrap lies too low where the percentile's lower end is right.
        """
        value, _, upper = self._area(lambda f: np.abs(1 - f))
        upper = float(np.maximum(value, upper))
        return Estimate(value, float(np.maximum(0, 2 * value - upper)), upper)

    @property
    def caveat(self) -> str | None:
        """What must be said beside the intervals."""
        n = len(self.circuits.full)
        if n >= FEW:
            return None
        return f"Of {n} prompts: intervals over fewer than {FEW} are too narrow." if n > 1 else "No interval: 1 prompt."

    def _area(self, of: Callable[[Numbers], Numbers]) -> Estimate:
        value = area(self.sizes, of(self.circuits.faithfulness())).item()
        drawn = area(self.sizes, of(self.circuits.resampled(seed=self.seed)))
        return _estimate(value, drawn, self.level, len(self.circuits.full))


def _estimate(value: float, drawn: Numbers, level: float, n: int) -> Estimate:
    if n == 1:
        return Estimate(float(value), float("nan"), float("nan"))
    lower, upper = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(value), float(lower), float(upper))


def area(sizes: ArrayLike, heights: ArrayLike) -> Numbers:
    """(...) by trapezoids, of heights (..., C) over sizes (C,)."""
    found: Numbers = np.trapezoid(np.asarray(heights, np.float64), np.asarray(sizes, np.float64))
    return found
