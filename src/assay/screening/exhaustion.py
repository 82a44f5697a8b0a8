"""When is it cheaper to patch every component than to find out which ones to patch?"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.reliability import exhaustion_is_cheaper
from assay.reliability.calibration import sample_size
from assay.reliability.screening import SMALLEST_SAMPLED_KIND
from assay.screening.prices import Prices


class Wanted(Protocol):
    """Of the options of a screening."""

    @property
    def top(self) -> int: ...
    @property
    def level(self) -> float: ...


def kinds_to_exhaust(
    kinds: NDArray[np.str_], prices: Prices, wanted: Wanted, probes: int, forward: float, left: float
) -> tuple[set[str], str | None]:
    """The kinds of which every component is to be patched, and a sentence that says why.

    Screening costs at least its estimates, the pilot and the calibration sample; what the search will take is not
    known, and counts nothing here.

    Args:
        kinds: (C,) of each component.
        probes: of curvature, for each kind.
        forward: layer tokens of a forward-equivalent.
        left: layer tokens that may be spent; if exhaustion of these kinds and calibration of the others do not fit,
            none is exhausted.
    """
    chosen: dict[str, tuple[float, float]] = {}
    others = 0.0
    for kind in dict.fromkeys(kinds.tolist()):
        runs = prices.exact[kinds == kind]
        each = runs.mean()
        members = len(runs)
        needed = min(wanted.top, members) + sample_size(members, wanted.level)
        least = prices.estimates(probes) + needed * each
        if exhaustion_is_cheaper(members, least / each):
            chosen[kind] = runs.sum(), least
        else:
            others += prices.estimates(probes) + needed * runs.max()
    total = sum(exhausting for exhausting, _ in chosen.values())
    if not chosen or total + others + prices.recordings > left:
        return set(), None
    members = int(np.isin(kinds, list(chosen)).sum())
    least = sum(least for _, least in chosen.values())
    why = f"screening them at least {(least + prices.recordings) / forward:.1f}"
    if total >= least:
        why = f"and there are fewer than {SMALLEST_SAMPLED_KIND} of a kind, too few to sample"
    cost = (total + prices.recordings) / forward
    note = (
        f"Exact runs of all {members} {' and '.join(chosen)} cost about {cost:.1f} forward-equivalents, {why}: every "
        "one is patched."
    )
    return set(chosen), note
