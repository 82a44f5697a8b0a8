"""What arXiv 2606.09899 claims, and whether the numbers here agree; verdicts follow from the tables by rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from assay.studies.pages import percent
from assay.studies.patching_errors.settings import HEADS, NEURONS
from assay.studies.patching_errors.tables import ATP, HVP, LOCAL

AGREES, PARTLY, NOT = "agrees", "agrees in part", "does not agree"
CUTS = {HEADS: (0.72, 0.90), NEURONS: (0.56, 0.67)}
"""By how much HVP cuts the relative error of the five largest, in the paper."""
PAPERS_COST = 35
"""Backward passes per component of the integrated gradients that MS-HVP is said to beat."""
SHARP = 1.0
"""R from which on curvature is called high."""


@dataclass(frozen=True)
class Claim:
    """A claim, what is found here, and how the two compare."""

    says: str
    found: str
    verdict: str


def claims(found: dict[str, Any]) -> list[Claim]:
    """All that the measured settings allow to check."""
    table = found["errors"]
    checked = [_cut(found["improvement"], site) for site in found["sites"]]
    checked += [_overshoot(found["by_curvature"][site], site) for site in found["sites"]]
    checked += [_recovery(found["by_curvature"][site], site) for site in found["sites"]]
    checked += _equal_cost(table)
    checked.append(_overlap(table))
    if len(found["local"]):
        checked.append(_local(found["local"]))
    return [claim for claim in checked if claim is not None]


def _kind(site: str) -> str:
    return "heads" if site == HEADS else "neurons before their activation function"


def _percent(values: Sequence[float] | pd.Series) -> str:
    return ", ".join(percent(value) for value in sorted(float(value) for value in values if np.isfinite(value)))


def _cut(improvement: pd.DataFrame, site: str) -> Claim | None:
    cuts = improvement[improvement["site"] == site][HVP].dropna()
    if not len(cuts):
        return None
    low, high = CUTS[site]
    median = float(cuts.median())
    inside = int(((cuts >= low - 0.005) & (cuts <= high + 0.005)).sum())
    verdict = AGREES if low <= median <= high and (cuts > 0).all() else PARTLY if median > 0 else NOT
    return Claim(
        f"HVP cuts the relative error of the five largest {_kind(site)} by {100 * low:.0f}–{high:.0%}.".replace(
            "%", " %"
        ),
        f"By {_percent(cuts)} (settings), median {percent(median)}; {inside} of {len(cuts)} lie in the paper's range.",
        verdict,
    )


def _sharp(bins: pd.DataFrame) -> pd.DataFrame:
    return bins[(bins["from"] >= SHARP) & (bins["pairs"] > 0)]


def _share(bins: pd.DataFrame, column: str) -> float:
    return float(np.average(bins[column], weights=bins["pairs"]))


def _overshoot(bins: pd.DataFrame, site: str) -> Claim | None:
    sharp, mild = _sharp(bins), bins[(bins["from"] < SHARP) & (bins["pairs"] > 0)]
    if not len(sharp) or not len(mild):
        return None
    worse, before = _share(sharp, f"{HVP} worse"), _share(mild, f"{HVP} worse")
    return Claim(
        f"At high curvature a single HVP step overshoots and can be worse than AtP ({_kind(site)}).",
        f"Where R ≥ {SHARP:g} HVP is worse than AtP in {worse:.0%} of {int(sharp['pairs'].sum())} (component, prompt) "
        f"pairs; below, in {before:.0%} of {int(mild['pairs'].sum())}.".replace("%", " %"),
        AGREES if worse > before and worse >= 0.1 else PARTLY if worse > 0 else NOT,
    )


def _recovery(bins: pd.DataFrame, site: str) -> Claim | None:
    sharp = _sharp(bins)
    if not len(sharp):
        return None
    worse = _share(sharp, "ms-hvp:segments=5 worse")
    errors = {name: _share(sharp, name) for name in (ATP, HVP, "ms-hvp:segments=5")}
    better = errors["ms-hvp:segments=5"] < min(errors[ATP], errors[HVP])
    return Claim(
        f"MS-HVP with K = 5 recovers from the overshoot ({_kind(site)}).",
        f"Where R ≥ {SHARP:g} the median error is {errors[ATP]:.0%} with AtP, {errors[HVP]:.0%} with HVP and "
        f"{errors['ms-hvp:segments=5']:.0%} with K = 5, which is worse than AtP in {worse:.0%} of pairs.".replace(
            "%", " %"
        ),
        AGREES if better and worse < 0.1 else PARTLY if better else NOT,
    )


def _equal_cost(table: pd.DataFrame) -> list[Claim]:
    """Against the most gradients taken at left ends, their error carried on as 1/n to the paper's cost, and
    against midpoints at half of MS-HVP's cost.
    """
    rows = table[table["which"] == "followed"]
    wide = rows.pivot_table(index=["site", "model", "task"], columns="method", values="l1")
    ours, rule = wide["ms-hvp:segments=5"], "integrated-gradients:rule={}:steps={}"
    steps = next(n for n in (35, 20, 10) if rule.format("left", n) in wide)
    left, midpoint = wide[rule.format("left", steps)] * steps / PAPERS_COST, wide[rule.format("midpoint", 5)]
    carried = "" if steps == PAPERS_COST else f", carried on from cost {steps} as 1/n"
    claims = []
    for theirs, what in ((left, f"left ends at cost {PAPERS_COST}{carried}"), (midpoint, "midpoints at cost 5")):
        won, of = int((ours < theirs).sum()), len(wide)
        claims.append(
            Claim(
                f"MS-HVP at cost 10 (K = 5) beats integrated gradients at cost {PAPERS_COST}.",
                f"With {what}: MS-HVP is closer in {won} of {of} settings; IG's error is "
                f"{float((theirs / ours).median()):.2g} times MS-HVP's (median).",
                AGREES if won == of else NOT if won < of / 2 else PARTLY,
            )
        )
    return claims


def _overlap(table: pd.DataFrame) -> Claim | None:
    rows = table[(table["which"] == "followed") & (table["site"] == HEADS) & table["task"].str.startswith("greater")]
    if not len(rows):
        return None
    wide = rows.pivot_table(index="model", columns="method", values="overlap")
    before, after = float(wide[ATP].mean()), float(wide[HVP].mean())
    verdict = AGREES if after - before > 0.05 else PARTLY if after > before else NOT
    return Claim(
        "On Greater-Than the overlap of the five largest heads with the exact ones rises from 70.1 % to 83.2 %.",
        f"From {before:.0%} to {after:.0%}, mean over {len(wide)} models.".replace("%", " %"),
        verdict,
    )


def _local(local: pd.DataFrame) -> Claim:
    r, network = local[f"{LOCAL} r"], local[f"{HVP} r"]
    factors = local[f"{LOCAL} factor 0.5"]
    low = float(r.abs().median()) < 0.2
    small = float(factors.median()) > 2
    return Claim(
        "Local curvature does not track the error (r = 0.04) and is 2 to 66 times too small.",
        f"r from {r.min():.2f} to {r.max():.2f} (median {r.median():.2f}); the true error is {factors.min():.1f} to "
        f"{factors.max():.1f} times the predicted one (medians of settings). Network-level curvature: r from "
        f"{network.min():.2f} to {network.max():.2f}.",
        AGREES if low and small else PARTLY if low or small else NOT,
    )
