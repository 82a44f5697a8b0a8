"""Tables of the study: CPR and CMD of every method, and GIM against each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.circuits.faithfulness import CircuitValues, Curve, area
from assay.errors import StoreError
from assay.reliability import sign_flip_interval
from assay.studies.folder import read_json
from assay.studies.gim_circuits.choosing import Chosen
from assay.studies.gim_circuits.measuring import STUDY, WHAT, Found, read_chosen, read_found, unfinished
from assay.studies.gim_circuits.settings import GIM, METHODS, PARTS, RANDOM, Setting, Sizes

CPR, CMD = "CPR", "CMD"
MEASURES = (CPR, CMD)
RANKING = {CPR: "signed", CMD: "absolute"}
"""By which MIB makes the circuits."""


@dataclass(frozen=True)
class Measured:
    """A setting whose prompts are chosen, and the methods that were measured."""

    setting: Setting
    chosen: Chosen
    found: dict[str, Found]
    missing: list[str]


def read_sizes(folder: Path) -> Sizes:
    """Of the study in a folder.

    Raises:
        StoreError: there is none, or it is damaged.
    """
    content = read_json(folder / STUDY, WHAT)
    try:
        return Sizes(**{**content, "shares": tuple(content["shares"]), "tasks": tuple(content["tasks"])})
    except (KeyError, TypeError) as error:
        raise StoreError(f"{folder / STUDY} is damaged: {error}") from error


def read_setting(folder: Path, setting: Setting) -> Measured | None:
    """None if its prompts were not chosen."""
    inside = folder / setting.folder
    chosen = read_chosen(inside)
    if chosen is None:
        return None
    read = {method: read_found(inside, method) for method in METHODS}
    found = {method: each for method, each in read.items() if each is not None}
    return Measured(setting, chosen, found, unfinished(inside, chosen))


def circuits_of(found: Found, measure: str) -> CircuitValues:
    """By MIB's ranking for the measure, or by the method's only one."""
    return found.circuits.get(RANKING[measure], found.circuits["signed"])


def values(measured: Sequence[Measured], sizes: Sizes) -> pd.DataFrame:
    """One row for each setting, measure and method.

    ``value`` with its 95 % bootstrap interval over prompts; ``rank`` among the methods (1 is best); ``gim_over``: by
    how much GIM is better than the method, with its paired interval: higher CPR, lower CMD; what the scores cost.

    The paired interval is that of a sign-flip test on what each prompt adds to the difference (`_parts`): a percentile
    bootstrap over eight prompts decides between equals in one of ten comparisons.
    """
    rows = []
    for each in measured:
        for measure in MEASURES:
            found = {name: circuits_of(result, measure) for name, result in each.found.items()}
            curves = {name: Curve(sizes.shares, circuits) for name, circuits in found.items()}
            parts = {name: _parts(sizes, circuits, measure) for name, circuits in found.items()}
            sign = 1 if measure == CPR else -1
            here = []
            for name, curve in curves.items():
                estimate = curve.cpr if measure == CPR else curve.cmd
                cost = each.found[name].cost
                row = {
                    "model": each.setting.model, "task": each.setting.task, "multi_step": each.setting.multi_step,
                    "measure": measure, "method": name, "value": estimate.value, "lower": estimate.lower,
                    "upper": estimate.upper, "passes": cost.get("forward_equivalents", np.nan),
                    "seconds": sum(cost.get("seconds", {}).values()),
                    "gim_over": np.nan, "gim_over_lower": np.nan, "gim_over_upper": np.nan,
                }  # fmt: skip
                if GIM in curves and name != GIM:
                    better = sign * (parts[GIM] - parts[name])
                    (low,), (high,) = sign_flip_interval(better[None])
                    row |= {"gim_over": better.mean(), "gim_over_lower": low, "gim_over_upper": high}
                here.append(row)
            ranks = pd.Series([-sign * row["value"] for row in here]).rank(method="min")
            rows += [{**row, "rank": int(rank)} for row, rank in zip(here, ranks, strict=True)]
    return pd.DataFrame(rows)


def _parts(sizes: Sizes, circuits: CircuitValues, measure: str) -> NDArray[np.float64]:
    """(n,) whose mean is the measure: of each prompt, the area under its circuits' values in units of the mean
    difference. Under |1 - f| each size keeps the sign that 1 - f has on all prompts together."""
    unit = (circuits.full - circuits.empty).mean()
    if measure == CPR:
        return area(sizes.shares, (circuits.values - circuits.empty[:, None]) / unit)
    sign = np.sign(1 - circuits.faithfulness())
    return area(sizes.shares, sign * (circuits.full[:, None] - circuits.values) / unit)


def duels(table: pd.DataFrame) -> pd.DataFrame:
    """In how many settings is GIM better than each method, and in how many worse, by an interval that excludes 0?"""
    rows = table[(table["method"] != GIM) & table["gim_over"].notna()]
    found = rows.groupby(["method", "measure", "multi_step"], sort=False).agg(
        better=("gim_over_lower", lambda low: int((low > 0).sum())),
        worse=("gim_over_upper", lambda high: int((high < 0).sum())),
        settings=("gim_over", "size"),
    )
    return found.reset_index()


def ranks(table: pd.DataFrame) -> pd.DataFrame:
    """Median, best and worst rank of each method over settings, tasks of several steps and of one apart."""
    found = table.groupby(["method", "measure", "multi_step"], sort=False)["rank"].agg(["median", "min", "max", "size"])
    return found.reset_index()


def claims(table: pd.DataFrame) -> list[dict[str, str]]:
    """What GIM promises, what was found, and a verdict by a fixed rule.

    It holds where GIM is better in at least half of all comparisons and in three times as many as it is worse; in part
    where it is better more often than worse.
    """
    found = duels(table)
    rivals = found[found["method"].isin(["eap", "eap-ig-inputs"])]
    said = [
        (f"{measure} of GIM is better than that of EAP and EAP-IG on tasks of {steps}",
         rivals[(rivals["measure"] == measure) & (rivals["multi_step"] == multi)])
        for measure in MEASURES
        for steps, multi in (("several steps", True), ("one step", False))
    ]  # fmt: skip
    said += [
        (f"GIM loses when its {part.removeprefix('gim-without-')} part is left out", found[found["method"] == part])
        for part in PARTS
    ]
    said.append(("GIM is better than the hybrid ensemble", found[found["method"] == "hybrid"]))
    said.append(("GIM is better than random scores", found[found["method"] == RANDOM]))
    return [{"says": says, **_verdict(rows)} for says, rows in said if rows["settings"].sum()]


def _verdict(rows: pd.DataFrame) -> dict[str, str]:
    better, worse, all_ = (int(rows[name].sum()) for name in ("better", "worse", "settings"))
    verdict = "does not hold"
    if 2 * better >= all_ and better >= 3 * worse:
        verdict = "holds"
    elif better > worse:
        verdict = "holds in part"
    return {
        "found": f"better in {better}, worse in {worse}, undecided in {all_ - better - worse} of {all_} comparisons",
        "verdict": verdict,
    }
