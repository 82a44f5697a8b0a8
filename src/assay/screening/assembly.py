"""What is known of every component on the way, and how the arrays of a search become scores again.

The search sees only the components that a patch changes at all; here they find their places among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.reliability import Estimates
from assay.reliability import Screening as Outcome
from assay.screening.result import SOURCES, Stage


@dataclass
class Known:
    """Of C components and n examples; NaN where nothing is known."""

    kinds: NDArray[np.str_]
    first_order: NDArray[np.float64]
    far_end: NDArray[np.float64]
    quadratic: NDArray[np.float64]
    quadratic_stderr: NDArray[np.float64]
    corrected: NDArray[np.float64]
    """(C, n) by HVP or MS-HVP."""
    refinement: NDArray[np.float64]
    """(C,) how far that is from the next simpler estimate, on average."""
    bound: NDArray[np.float64]
    moves: NDArray[np.bool_]
    """(C,) the patch changes something, or nobody has looked."""
    flagged: NDArray[np.bool_]
    noise: float = 0.0

    @classmethod
    def nothing(cls, kinds: NDArray[np.str_], examples: int) -> Known:
        count = len(kinds)
        first, far, quadratic, stderr, corrected = np.full((5, count, examples), np.nan)
        moves, flagged = np.ones(count, bool), np.zeros(count, bool)
        refinement, bound = np.full((2, count), np.nan)
        return cls(kinds, first, far, quadratic, stderr, corrected, refinement, bound, moves, flagged)

    @property
    def estimated(self) -> NDArray[np.bool_]:
        """(C,)"""
        return ~np.isnan(self.first_order[:, 0])

    def of(self, members: NDArray[np.intp]) -> Estimates:
        """As the search takes it. Kinds of which everything is patched have no estimates; zeros stand for them."""
        tables = (self.first_order, self.quadratic, self.quadratic_stderr, self.far_end)
        first, quadratic, stderr, far_end = (np.nan_to_num(table[members]) for table in tables)
        corrected = self.corrected[members].mean(1)
        any_corrected = not np.isnan(corrected).all()
        return Estimates(
            self.kinds[members].tolist(),
            first,
            quadratic,
            stderr,
            far_end=far_end,
            noise=self.noise,
            corrected=corrected if any_corrected else None,
            refinement=self.refinement[members] if any_corrected else None,
        )


def assemble(known: Known, live: NDArray[np.intp], outcome: Outcome | None, fix: str, probes: int) -> dict[str, Any]:
    """The fields of `ScreenedScores` that the search fills.

    Args:
        live: the components that the search saw; the patch of no other changes anything.
        outcome: what it found; None if there was no component to search.
        fix: what flagged components were corrected by.
        probes: of curvature; without any there is no R.
    """
    count, examples = known.first_order.shape
    fields: dict[str, Any] = {
        "values": np.zeros((count, examples)),
        "source": np.full(count, SOURCES.index("no change")),
        "lower": np.zeros(count),
        "upper": np.zeros(count),
        "reliability": np.full(count, np.nan),
        "leaders": np.empty(0, np.intp),
        "unsettled": np.empty(0, np.intp),
        "pilot": np.empty(0, np.intp),
        "calibrations": (),
        "found_outside": 0,
        "expected_outside": 0.0,
        "outside_bound": 0,
        **{
            name: getattr(known, name)
            for name in ("first_order", "far_end", "quadratic", "quadratic_stderr", "bound", "flagged")
        },
    }
    verdicts = np.full(count, "verified", dtype="<U10")
    if outcome is not None:
        estimates = known.of(live)
        fields["values"][live], fields["source"][live] = _values(known, live, estimates, outcome, fix)
        fields["lower"][live], fields["upper"][live] = outcome.lower, outcome.upper
        verdicts[live] = outcome.verdict
        if probes:
            fields["reliability"][live] = np.where(known.estimated[live], estimates.reliability, np.nan)
        for name, found in (("leaders", outcome.top), ("unsettled", outcome.unsettled), ("pilot", outcome.pilot)):
            fields[name] = live[found]
        fields["calibrations"] = tuple(
            replace(each, members=live[each.members], sample=live[each.sample]) for each in outcome.calibrations
        )
        expected = outcome.expected_outside
        fields["found_outside"], fields["outside_bound"] = outcome.found_outside, outcome.outside_bound
        fields["expected_outside"] = None if np.isnan(expected) else expected
    fields["verdicts"] = tuple(verdicts.tolist())
    return fields


def _values(
    known: Known, live: NDArray[np.intp], estimates: Estimates, outcome: Outcome, fix: str
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """(C, n) the best that is known of every example, and how it is known."""
    bent = np.zeros(len(live), bool)
    for each in outcome.calibrations:
        bent[each.members] = each.uses_curvature & (estimates.second[each.members] != 0)
    corrected = ~np.isnan(known.corrected[live, 0])
    patched = outcome.verdict == "verified"
    values = estimates.first_order + bent[:, None] * estimates.quadratic
    values[corrected] = known.corrected[live][corrected]
    values[patched] = outcome.exact[patched]
    names = np.where(bent, "first order + curvature", "first order")
    names = np.where(corrected, fix, names)
    names = np.where(patched, "exact", names)
    return values, np.array([SOURCES.index(name) for name in names])


def stages_of(calls: Sequence[tuple[NDArray[np.intp], Stage]], outcome: Outcome) -> list[Stage]:
    """The calls for exact runs by what they were for, rounds of the search together.

    Args:
        calls: which components each was for, and what it cost.
    """

    def purpose(call: tuple[NDArray[np.intp], Stage]) -> str:
        members, _ = call
        for each in outcome.calibrations:
            if np.isin(members, each.sample).all():
                return f"calibration sample, {each.kind}"
        if np.isin(outcome.pilot, members).any():
            return "pilot" if np.isin(members, outcome.pilot).all() else "pilot, and kinds that are exhausted"
        return "search" if outcome.calibrations else "exact runs"

    stages = []
    for name, group in groupby(calls, purpose):
        parts = [stage for _, stage in group]
        passes, seconds = sum(part.forward_equivalents for part in parts), sum(part.seconds for part in parts)
        stages.append(Stage(name, passes, seconds, sum(part.runs for part in parts)))
    return stages
