"""Which components have the largest effects, found with few exact runs, and how sure is that?

1. Kinds with few members are patched exhaustively. So is everything, where that is cheaper.
2. Pilot: the components that look largest are patched. They decide whether curvature helps the estimate, per kind.
3. Calibration: a random sample of each kind's *other* members is patched; their errors give intervals for the rest.
4. Search: whatever may still belong to the top k by the upper end of its interval is patched, until every one of the
   k largest upper ends belongs to a component that was patched. If more than 1 - L of pilot and search lie outside
   the intervals of their kind, these are widened.

*Large* means the absolute value of the mean effect over examples, whatever its sign. It is not the mean of absolute
effects.

Why a pilot: choosing between two estimates by the sample that then calibrates the chosen one makes its errors look
smaller than they are; where the two are about equal it costs up to four points of coverage. The pilot is chosen by the
estimates alone and is no part of the population that is calibrated, so the choice is independent of the draw and the
guarantees of `calibration` hold to the letter. It costs little: these components would be patched in the search anyway.

What is guaranteed, over the random samples, whatever the effects are:

- the interval of a component drawn at random from the calibrated population outside the sample holds its exact effect
  with probability L at least;
- on average at most (1 - L)(N - m) of them lie outside, N being the size of that population;
- with probability 0.95 the number of components that are neither verified nor inside their interval is at most
  `Screening.outside_bound`, whenever the search stops: how many of all N - m lie outside is bounded before anything is
  patched, and those that were patched in the search and found outside are subtracted.

What is not: that *this* top k is right. A component with a wrong interval may be missing from it. Only a screening
that patched everything is `certified`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InterventionError, OptionError
from assay.reliability.calibration import Calibration, outside_bound, sample_size, smallest_sample
from assay.reliability.estimates import Estimates

SMALLEST_SAMPLED_KIND = 60
"""A kind with fewer members is patched exhaustively."""

Exact = Callable[[NDArray[np.intp]], ArrayLike]
"""Effects of the components with these indices on every example, (len, n), by intervention."""


@dataclass(frozen=True, eq=False)
class Screening:
    """C components after screening. Effects are in the metric's unit, signed."""

    top: NDArray[np.intp]
    """The k components of largest absolute mean effect among those patched, largest first."""
    level: float
    seed: int
    value: NDArray[np.float64]
    """(C,) mean effect: exact where patched, else the estimate."""
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    """(C,) interval for the mean effect on these prompts; NaN where there is none, ``value`` where patched."""
    verdict: NDArray[np.str_]
    """(C,) ``verified``: patched exactly. ``bounded``: an interval. ``unresolved``: no interval, or a first-order term
    too small to say anything."""
    exact: NDArray[np.float64]
    """(C, n) exact effects, NaN where not patched."""
    pilot: NDArray[np.intp]
    calibrations: tuple[Calibration, ...]
    """One for each kind that was sampled."""
    unsettled: NDArray[np.intp]
    """Components not patched that may still belong to the top k, as far as anybody knows; empty unless the budget
    ran out."""
    found_outside: int
    """Components patched in the search that lay outside their calibrated interval."""

    @property
    def runs(self) -> int:
        """Components that were patched exactly."""
        return int((self.verdict == "verified").sum())

    @property
    def certified(self) -> bool:
        """Every component was patched exactly."""
        return self.runs == len(self.verdict)

    @property
    def screened(self) -> bool:
        """Every member of the top k was patched, and no unverified interval reaches the k-th value."""
        return not len(self.unsettled)

    @property
    def expected_outside(self) -> float:
        """(1 - L)(N - m): at most so many intervals were wrong on average, of verified components too; NaN if there
        are components without any."""
        return float("nan") if self._without_intervals else sum(each.expected_outside for each in self.calibrations)

    @property
    def outside_bound(self) -> int:
        """At most so many unverified components lie outside their interval, at 95 % over the random samples.

        If more were found outside than the bound allows, the draw was one of the unlucky 5 % and the bound is the
        number of unverified components. So it is if they have no intervals.
        """
        unverified = len(self.verdict) - self.runs
        left = outside_bound(self.calibrations) - self.found_outside
        return unverified if left < 0 or self._without_intervals else min(left, unverified)

    @property
    def _without_intervals(self) -> bool:
        return bool(np.isnan(self.lower).any())


def exhaustion_is_cheaper(members: int, runs: float) -> bool:
    """Whether to patch all members of a kind: there are fewer than 60, or screening would cost no less.

    Args:
        runs: what screening costs at the very least, in exact runs of one component: pilot, calibration sample, and
            whatever has yet to be paid for the estimates.
    """
    return members < SMALLEST_SAMPLED_KIND or runs >= members


def screen(
    estimates: Estimates,
    exact: Exact,
    *,
    top: int = 10,
    level: float = 0.95,
    seed: int = 0,
    sample: int | None = None,
    budget: float | None = None,
    costs: ArrayLike | None = None,
    exhaust: Collection[str] = (),
) -> Screening:
    """Find the ``top`` components of largest absolute mean effect.

    Args:
        exact: called with the indices to patch next, each at most once; more at once wherever nothing is lost by it.
        level: of the intervals.
        seed: draws the calibration samples, with the name of the kind.
        sample: calibration runs per kind; a tenth of the kind, 19 to 60, if None; never fewer than the level needs.
        budget: what exact runs may cost together. If it does not reach through pilot and calibration, there are no
            intervals: the components that look largest are patched, the others are unresolved.
        costs: (C,) positive, of an exact run of each component; 1 each if None.
        exhaust: kinds of which every member is patched, whatever their number.

    Returns:
        Values, intervals and verdicts; the same for the same arguments.

    Raises:
        OptionError: level, top, sample or budget out of range.
        InterventionError: ``exact`` gave no finite number for every component and example.
    """
    smallest = smallest_sample(level)
    prices = np.ones(len(estimates)) if costs is None else np.asarray(costs, np.float64)
    if prices.shape != (len(estimates),) or not (prices > 0).all():
        raise OptionError(f"Exact runs need a positive cost for each of {len(estimates)} components.")
    for name, number, least in (
        ("--top", top, 1),
        ("--budget", budget, prices.min()),
        ("The calibration sample", sample, smallest),
    ):
        if number is not None and not number >= least:
            raise OptionError(f"{name} must be at least {least:g}, not {number}.")
    search = _Search(estimates, exact, min(top, len(estimates)), level, prices, budget)
    search.prepare(seed, sample, exhaust)
    while (wanted := search.affordable(search.contenders())).size:
        search.patch(wanted)
        search.widen()
    return search.result(seed)


class _Search:
    """What has been patched so far, and what that says about the rest."""

    def __init__(
        self,
        estimates: Estimates,
        exact: Exact,
        top: int,
        level: float,
        costs: NDArray[np.float64],
        budget: float | None,
    ) -> None:
        self.estimates = estimates
        self.run = exact
        self.top = top
        self.level = level
        self.costs = costs
        self.budget = np.inf if budget is None else budget
        self.exact: NDArray[np.float64] = np.full(estimates.first_order.shape, np.nan)
        self.patched = np.zeros(len(estimates), bool)
        self.pilot = np.empty(0, np.intp)
        self.calibrations: list[Calibration] = []

    def prepare(self, seed: int, sample: int | None, exhaust: Collection[str]) -> None:
        """Small kinds, pilot, calibration; none of it if the budget does not reach so far."""
        kinds = self.estimates.by_kind
        size = {kind: sample or sample_size(len(members), self.level) for kind, members in kinds.items()}
        small = [
            kind
            for kind, members in kinds.items()
            if kind in exhaust or exhaustion_is_cheaper(len(members), size[kind])
        ]
        pilot = self._look_largest(np.concatenate([kinds[kind] for kind in kinds if kind not in small] or [self.pilot]))
        population = {kind: np.setdiff1d(members, pilot) for kind, members in kinds.items() if kind not in small}
        small += [kind for kind, members in population.items() if size[kind] >= len(members)]
        picked = {
            kind: np.random.default_rng([seed, zlib.crc32(kind.encode())]).choice(members, size[kind], replace=False)
            for kind, members in population.items()
            if kind not in small
        }
        first = np.concatenate([pilot, *(np.setdiff1d(kinds[kind], pilot) for kind in small)])
        if self.costs[np.concatenate([first, *picked.values()])].sum() > self.budget:
            return
        self.patch(first)
        self.pilot = pilot
        for kind, drawn in picked.items():
            self.patch(drawn)
            helps = self._curvature_helps(np.intersect1d(pilot, kinds[kind]))
            scores = self._scores(drawn, helps)
            self.calibrations.append(Calibration.of(kind, self.level, population[kind], drawn, helps, scores))
        self.widen()

    def _look_largest(self, members: NDArray[np.intp]) -> NDArray[np.intp]:
        """As many as are wanted, by the size that first order and curvature together may have."""
        return members[np.argsort(-self.estimates.size[members], kind="stable")[: self.top]]

    def _curvature_helps(self, pilot: NDArray[np.intp]) -> bool:
        """Paired comparison on the pilot: are scaled errors smaller with curvature, on average?"""
        with_curvature, without = self._scores(pilot, True), self._scores(pilot, False)
        return float(with_curvature.sum()) < float(without.sum())

    def _estimate(self, members: NDArray[np.intp], uses_curvature: bool) -> NDArray[np.float64]:
        return self.estimates.values(uses_curvature)[members]

    def _scores(self, members: NDArray[np.intp], uses_curvature: bool) -> NDArray[np.float64]:
        """|exact - estimate| / scale of members that were patched."""
        error = np.abs(self.exact[members].mean(1) - self._estimate(members, uses_curvature))
        scores: NDArray[np.float64] = error / self.estimates.scale[members]
        return scores

    # Search

    def affordable(self, wanted: NDArray[np.intp]) -> NDArray[np.intp]:
        """As many of them as what is left of the budget pays for, in their order."""
        left = self.budget - self.costs[self.patched].sum()
        paid: NDArray[np.intp] = wanted[np.cumsum(self.costs[wanted]) <= left]
        return paid

    def contenders(self) -> NDArray[np.intp]:
        """Components not patched among the k of largest upper end, largest first; on ties they come before patched.

        Each of them must be patched, whatever the others turn out to be: while intervals hold, the k-th value cannot
        exceed the k-th upper end.
        """
        _, lower, upper = self._intervals()
        reach = np.maximum(np.abs(lower), np.abs(upper))
        if np.isnan(reach).any():
            order = np.argsort(-self.estimates.size, kind="stable")
            unknown: NDArray[np.intp] = order[~self.patched[order]]
            return unknown
        leaders = np.lexsort((self.patched, -reach))[: self.top]
        return leaders[~self.patched[leaders]]

    def patch(self, members: NDArray[np.intp]) -> None:
        """Run those not patched yet."""
        members = members[~self.patched[members]]
        if not members.size:
            return
        values: NDArray[np.float64] = np.asarray(self.run(members), np.float64)
        expected = (len(members), self.exact.shape[1])
        if np.shape(values) != expected:
            raise InterventionError(f"Exact runs gave an array of shape {np.shape(values)}, expected {expected}.")
        broken = members[~np.isfinite(values).all(1)]
        if broken.size:
            raise InterventionError(f"The exact effect of component {broken[0]} is not finite.")
        self.exact[members] = values
        self.patched[members] = True

    def widen(self) -> None:
        """The pilot counts too: it looked largest, and errors of large components are those that matter here."""
        for i, each in enumerate(self.calibrations):
            of_kind = self.estimates.by_kind[each.kind]
            beyond_sample = np.setdiff1d(of_kind[self.patched[of_kind]], each.sample)
            self.calibrations[i] = each.widen(self._scores(beyond_sample, each.uses_curvature))

    def _later(self, calibration: Calibration) -> NDArray[np.intp]:
        """Members of the population that were patched in the search."""
        return np.setdiff1d(calibration.members[self.patched[calibration.members]], calibration.sample)

    def _intervals(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(C,) mean effect, lower and upper end."""
        value = self.estimates.values(False)
        margin = np.full(len(value), np.nan)
        for each in self.calibrations:
            value[each.members] = self._estimate(each.members, each.uses_curvature)
            margin[each.members] = each.widened * self.estimates.scale[each.members]
        # Ends are rounded outwards, so that an error exactly as large as the margin stays inside.
        margin += 4 * np.finfo(np.float64).eps * (np.abs(value) + margin)
        value[self.patched] = self.exact[self.patched].mean(1)
        margin[self.patched] = 0
        return value, value - margin, value + margin

    def result(self, seed: int) -> Screening:
        value, lower, upper = self._intervals()
        known = np.flatnonzero(self.patched)
        top = known[np.argsort(-np.abs(value[known]), kind="stable")[: self.top]]
        verdict = np.where(np.isnan(lower) | np.isnan(self.estimates.reliability), "unresolved", "bounded")
        verdict[self.patched] = "verified"
        reach = np.maximum(np.abs(lower), np.abs(upper))
        needed = np.abs(value[int(top[-1])]) if len(top) == self.top else 0.0
        outside = 0
        for each in self.calibrations:
            outside += int((self._scores(self._later(each), each.uses_curvature) > each.quantile).sum())
        return Screening(
            top=top,
            level=self.level,
            seed=seed,
            value=value,
            lower=lower,
            upper=upper,
            verdict=verdict,
            exact=self.exact,
            pilot=self.pilot,
            calibrations=tuple(self.calibrations),
            unsettled=np.flatnonzero(~self.patched & ~(reach < needed)),
            found_outside=outside,
        )
