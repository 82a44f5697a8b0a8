"""Do calibrated intervals hold, and what do they save? Against exhaustive truth, over many calibration draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from assay.reliability import Estimates, screen
from assay.reliability.calibration import rank


@dataclass(frozen=True)
class Draws:
    """Figures of one population, each a list over draws; the first four over draws and kinds that were sampled."""

    coverage: list[float] = field(default_factory=list)
    """Share of members outside the sample whose interval holds the exact effect."""
    width: list[float] = field(default_factory=list)
    """Median half-width of theirs, in the metric's unit."""
    constant: list[float] = field(default_factory=list)
    """Half-width that the same sample gives to all of them with one scale."""
    spread: list[float] = field(default_factory=list)
    """The quantile of their errors at the level, over the median of them."""
    recall: list[float] = field(default_factory=list)
    """Share of the true top that is in the screened top."""
    runs: list[int] = field(default_factory=list)
    """Components patched exactly."""
    broken: list[bool] = field(default_factory=list)
    """More unverified components lie outside their interval than the bound says."""


def draw(estimates: Estimates, exact: NDArray[np.float64], top: int, level: float, seeds: Sequence[int]) -> Draws:
    """Screen the same components with many seeds.

    Args:
        exact: (C, n) effects of all components.
    """
    mean = exact.mean(1)
    true_top = set(np.argsort(-np.abs(mean), kind="stable")[:top].tolist())
    found = Draws()
    for seed in seeds:
        result = screen(estimates, lambda members: exact[members], top=top, level=level, seed=seed)
        found.recall.append(len(true_top & set(result.top.tolist())) / top)
        found.runs.append(result.runs)
        unverified = result.verdict != "verified"
        outside = ((mean < result.lower) | (mean > result.upper))[unverified].sum()
        found.broken.append(bool(outside > result.outside_bound))
        for each in result.calibrations:
            others = np.setdiff1d(each.members, each.sample)
            error = np.abs(mean - estimates.values(each.uses_curvature))
            margin = each.quantile * estimates.scale
            found.spread.append(float(np.quantile(error[others], level) / np.median(error[others])))
            found.coverage.append(float((error <= margin)[others].mean()))
            found.width.append(float(np.median(margin[others])))
            found.constant.append(float(np.sort(error[each.sample])[rank(len(each.sample), level) - 1]))
    return found
