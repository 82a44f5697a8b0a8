"""What is known about every component before any is patched: the estimate, and how far it may plausibly be off.

All of it is fixed by gradients and curvature alone. That is what makes the intervals of `calibration` valid: no scale
may depend on an exact effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from assay.errors import DataError
from assay.reliability.score import floor_of, mean_reliability

SHARE_OF_FIRST_ORDER = 0.1
SHARE_OF_ENDS = 0.3
STANDARD_ERRORS = 2
"""A curvature is used only where it exceeds so many of its standard errors."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """First order and curvature of C components on n examples, in the metric's unit.

    Args:
        kinds: (C,) the site kind of each component. Kinds are calibrated separately.
        first_order: (C, n) g'(0).
        quadratic: (C, n) half the second derivative, g''(0) / 2, exact or sampled; zeros if unknown.
        quadratic_stderr: (C, n) its standard errors, independent between examples; zeros if exact.
        far_end: (C, n) the first-order term by the gradient at the source run, where everything is patched;
            ``first_order`` if None.
        noise: spread of a replayed metric value around the model's own, in the metric's unit.
        corrected: (C,) mean effects by a better estimate, NaN for components that have none; chosen and computed
            without a look at exact effects, like all else here.
        refinement: (C,) how far the better estimate is from the next simpler one, likewise.

    Raises:
        DataError: arrays that do not fit together, or hold what is not a number.
    """

    kinds: Sequence[str]
    first_order: NDArray[np.float64]
    quadratic: NDArray[np.float64]
    quadratic_stderr: NDArray[np.float64]
    far_end: NDArray[np.float64] | None = None
    noise: float = 0.0
    corrected: NDArray[np.float64] | None = None
    refinement: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.first_order)
        if len(shape) != 2 or not shape[0] or not shape[1]:
            raise DataError(f"Estimates are a value per component and example, not an array of shape {shape}.")
        if len(self.kinds) != shape[0]:
            raise DataError(f"There are {len(self.kinds)} site kinds for {shape[0]} components.")
        for name in ("first_order", "quadratic", "quadratic_stderr", "far_end"):
            given = getattr(self, name)
            if given is None:
                continue
            array = np.asarray(given, np.float64)
            if array.shape != shape:
                raise DataError(f"{name} has the shape {array.shape}, first_order {shape}.")
            if not np.isfinite(array).all():
                where = np.argwhere(~np.isfinite(array))[0]
                raise DataError(f"{name} of component {where[0]} on example {where[1]} is not finite.")
            object.__setattr__(self, name, array)
        if (self.quadratic_stderr < 0).any() or not 0 <= self.noise < np.inf:
            raise DataError("Standard errors and noise must not be negative, and noise must be finite.")
        if (self.corrected is None) != (self.refinement is None):
            raise DataError("Corrected estimates come with their refinement.")
        for better in (self.corrected, self.refinement):
            if better is not None and better.shape != shape[:1]:
                raise DataError(f"There are {better.size} corrected estimates for {shape[0]} components.")

    def __len__(self) -> int:
        return len(self.first_order)

    @cached_property
    def first(self) -> NDArray[np.float64]:
        """(C,) mean first-order term."""
        mean: NDArray[np.float64] = self.first_order.mean(1)
        return mean

    @cached_property
    def far(self) -> NDArray[np.float64]:
        """(C,) mean first-order term at the far end, the source run."""
        return self.first if self.far_end is None else np.asarray(self.far_end.mean(1))

    @cached_property
    def second(self) -> NDArray[np.float64]:
        """(C,) what curvature adds: the mean quadratic term where it exceeds two standard errors, else 0."""
        mean = self.quadratic.mean(1)
        return np.where(np.abs(mean) > STANDARD_ERRORS * self.second_stderr, mean, 0.0)

    def values(self, uses_curvature: bool) -> NDArray[np.float64]:
        """(C,) estimates of the mean effect: corrected where there is one, else first order, with or without
        curvature."""
        estimate = self.first + uses_curvature * self.second
        return estimate if self.corrected is None else np.where(np.isnan(self.corrected), estimate, self.corrected)

    @cached_property
    def size(self) -> NDArray[np.float64]:
        """(C,) how large an effect looks: |first order| + |curvature|, or the first order at the far end if that is
        larger; or what a better estimate says."""
        looks = np.maximum(np.abs(self.first) + np.abs(self.second), np.abs(self.far))
        return looks if self.corrected is None else np.where(np.isnan(self.corrected), looks, np.abs(self.corrected))

    @cached_property
    def second_stderr(self) -> NDArray[np.float64]:
        """(C,) standard error of the mean quadratic term."""
        error: NDArray[np.float64] = np.sqrt((self.quadratic_stderr**2).sum(1)) / self.quadratic_stderr.shape[1]
        return error

    @cached_property
    def scale(self) -> NDArray[np.float64]:
        """(C,) plausible size of the error: sqrt(q^2 + se_q^2) + 0.1 |first order| + 0.3 |difference of the first order
        at both ends| + floor. Positive.

        Of a corrected estimate: |refinement| + 0.1 |corrected| + floor.
        """
        curvature: NDArray[np.float64] = np.hypot(self.quadratic.mean(1), self.second_stderr)
        scale = curvature + SHARE_OF_FIRST_ORDER * np.abs(self.first) + SHARE_OF_ENDS * np.abs(self.far - self.first)
        if self.corrected is not None and self.refinement is not None:
            better = np.abs(self.refinement) + SHARE_OF_FIRST_ORDER * np.abs(self.corrected)
            scale = np.where(np.isnan(self.corrected), scale, better)
        for members in self.by_kind.values():
            scale[members] += floor_of(self.first[members], self.noise)
        return scale

    @cached_property
    def reliability(self) -> NDArray[np.float64]:
        """(C,) R over examples; NaN where the first-order term is below its kind's floor."""
        found = np.empty(len(self))
        for members in self.by_kind.values():
            first = self.first_order[members]
            found[members] = mean_reliability(first, self.quadratic[members], floor_of(first, self.noise))
        return found

    @cached_property
    def by_kind(self) -> dict[str, NDArray[np.intp]]:
        """Indices of the components of each kind."""
        kinds = np.asarray(self.kinds)
        return {kind: np.flatnonzero(kinds == kind) for kind in dict.fromkeys(self.kinds)}
