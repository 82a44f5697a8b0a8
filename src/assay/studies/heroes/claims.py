"""What the paper says, what was found, and a verdict by a fixed rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from assay.audit.result import BEYOND, MAGNITUDE
from assay.studies.heroes.tables import Estimate, over_seeds, ratio_over_seeds, rho, trained
from assay.studies.pages import number, percent

EXACT = "exact-match"
AGREES, IN_PART, NOT, OPEN = "agrees", "agrees in part", "does not agree", "not told"
BLOATS, HEROES = "bloats by Delta", "heroes by Delta"


@dataclass(frozen=True)
class Claim:
    """One line of the page's first table."""

    says: str
    found: str
    verdict: str


def shown(found: Estimate) -> str:
    """A number with its interval."""
    if not np.isfinite(found.value):
        return "not told" if found.seeds else "no seed"
    if not np.isfinite(found.lower):
        return number(found.value)
    return f"{number(found.value)} [{number(found.lower)}, {number(found.upper)}]"


def shown_percent(found: Estimate) -> str:
    """A share with its interval."""
    if not np.isfinite(found.lower):
        return percent(found.value, 1)
    return f"{percent(found.value, 1)} [{percent(found.lower, 1)}, {percent(found.upper, 1)}]"


def claims(table: pd.DataFrame, roles: pd.DataFrame, groups: pd.DataFrame) -> list[Claim]:
    """All of the paper's, out of distribution, classes by Delta alone, as in the paper.

    A number *agrees* where it lies in the interval over seeds and 0 does not, *in part* where the interval lies on the
    same side of 0; where both lie in it nothing can be told.
    """
    reverse, sort = (rho(table, task, BEYOND, MAGNITUDE, EXACT).dropna().to_numpy() for task in ("reverse", "sort"))
    return [
        _number("rho of gradient magnitude and cause is 0.72 on reversal", over_seeds(reverse), 0.72),
        _number("rho is 0.27 on sorting", over_seeds(sort), 0.27),
        _lower(reverse, sort),
        _lowest(table),
        _layer(roles, "bloat", 1),
        _layer(roles, "hero", 3),
        *_bloats(groups),
        _heroes(groups),
    ]


def _number(says: str, found: Estimate, said: float) -> Claim:
    if not np.isfinite(found.lower):
        return Claim(says, shown(found), OPEN)
    verdict = NOT
    if found.lower <= said <= found.upper:
        verdict = OPEN if found.lower <= 0 <= found.upper else AGREES
    elif np.sign(found.lower) == np.sign(found.upper) == np.sign(said):
        verdict = IN_PART
    return Claim(says, f"{shown(found)} over {found.seeds} models", verdict)


def _lower(reverse: np.ndarray, sort: np.ndarray) -> Claim:
    says = "rho is lower on sorting than on reversal"
    if min(len(reverse), len(sort)) < 2:
        return Claim(says, "too few seeds", OPEN)
    generator = np.random.default_rng(0)
    means = [values[generator.integers(len(values), size=(10_000, len(values)))].mean(1) for values in (reverse, sort)]
    lower, upper = np.quantile(means[0] - means[1], [0.025, 0.975])
    difference = Estimate(float(reverse.mean() - sort.mean()), float(lower), float(upper), len(sort))
    verdict = AGREES if difference.is_above else IN_PART if difference.value > 0 else NOT
    return Claim(says, f"by {shown(difference)}", verdict)


def _lowest(table: pd.DataFrame) -> Claim:
    says = "rho falls to -0.18 in single seeds"
    rows = trained(table).query("set == @BEYOND and measure == @MAGNITUDE and cause == @EXACT").dropna(subset=["rho"])
    if rows.empty:
        return Claim(says, "no seed", OPEN)
    least = rows.loc[rows["rho"].idxmin()]
    ends = f"{number(least['rho'])} [{number(least['lower'])}, {number(least['upper'])}], {least['task']}, seed"
    verdict = NOT
    if least["rho"] < 0:
        verdict = AGREES if least["upper"] < 0 else IN_PART
    return Claim(says, f"the lowest is {ends} {least['seed']}", verdict)


def _layer(roles: pd.DataFrame, role: str, layer: int) -> Claim:
    """It *agrees* where that layer has the most in 95 % of redrawn seeds, *in part* where it has the most."""
    says = f"{'Bloats' if role == 'bloat' else 'Heroes'} sit in layer {layer}"
    rows = trained(roles)
    rows = rows[rows["set"] == BEYOND]
    if rows.empty or not (rows["by_delta"] == role).any():
        return Claim(says, "there are none", OPEN)
    counts = (rows["by_delta"] == role).groupby([rows["task"] + rows["seed"].astype(str), rows["layer"]]).sum()
    by_seed = counts.unstack().to_numpy(float)
    total = by_seed.sum(0)
    weights = np.random.default_rng(0).multinomial(len(by_seed), np.full(len(by_seed), 1 / len(by_seed)), size=10_000)
    most = (weights @ by_seed).argmax(1) == layer
    verdict = NOT
    if total.argmax() == layer:
        verdict = AGREES if most.mean() >= 0.95 else IN_PART
    return Claim(says, "in layers 0, 1, ...: " + ", ".join(f"{count:.0f}" for count in total), verdict)


def _of_group(groups: pd.DataFrame, name: str, task: str | None = None) -> pd.DataFrame:
    rows = trained(groups)
    rows = rows[(rows["set"] == BEYOND) & (rows["group"] == name)]
    return rows if task is None else rows[rows["task"] == task]


def _bloats(groups: pd.DataFrame) -> Iterator[Claim]:
    rows = _of_group(groups, BLOATS)
    single, joint = rows["single"].to_numpy(float), rows["joint"].to_numpy(float)
    says = "Bloats (of both tasks) lose 3.1 % one by one, 43.8 % together"
    yield Claim(
        says, f"{shown_percent(over_seeds(single))} and {shown_percent(over_seeds(joint))}",
        _number("", over_seeds(joint), 0.438).verdict,
    )  # fmt: skip
    over_mean = ratio_over_seeds(joint, single)
    yield _number("That is 14 times the mean single loss", over_mean, 14)
    over_sum = ratio_over_seeds(joint, single * rows["components"].to_numpy(float))
    says = "They are redundant: together they lose more than the sum of their single losses"
    told = np.isfinite(over_sum.lower)
    verdict = OPEN if not told else AGREES if over_sum.lower > 1 else NOT if over_sum.upper < 1 else IN_PART
    yield Claim(says, f"{shown(over_sum)} times the sum" if told else shown(over_sum), verdict)


def _heroes(groups: pd.DataFrame) -> Claim:
    """The paper's spread over seeds is its standard deviation."""
    rows = _of_group(groups, HEROES, "reverse")
    joint, single = (over_seeds(rows[name].to_numpy(float)) for name in ("joint", "single"))
    says = "Without its heroes, reversal loses 36.4 ± 22.8 %"
    found = f"{shown_percent(joint)} together, {shown_percent(single)} one by one"
    return Claim(says, found, _number("", joint, 0.364).verdict)
