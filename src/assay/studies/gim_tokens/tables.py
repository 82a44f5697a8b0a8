"""Tables of the study: how faithful each method is, and GIM against each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from assay.studies.gim_tokens.arrays import Measured
from assay.studies.gim_tokens.settings import GIM, PARTS
from assay.tokens.faithfulness import MEASURES, RANDOM

COMPREHENSIVENESS, SUFFICIENCY = MEASURES
HIGHER_IS_BETTER = {COMPREHENSIVENESS: 1, SUFFICIENCY: -1}
PAPERS = ("gradient-x-input", "integrated-gradients", "transformer-lrp", "attn-lrp")
"""Rivals of GIM in the paper that are defined for both models."""


def headline(measured: Measured) -> dict[str, str]:
    """What k runs over in the tables of the page: as in arXiv 2505.17630, but shares alone where texts are long."""
    return {COMPREHENSIVENESS: measured.setting.curves[0], SUFFICIENCY: "shares"}


def values(measured: Sequence[Measured]) -> pd.DataFrame:
    """One row for each setting, method and measure.

    ``mean``, and ``share`` of the text's own value over ``texts_of_share`` texts; ``spread`` between random orders.
    ``over_random`` and ``gim_over``: by how much the method is better than random orders, and GIM better than the
    method, each with its paired 95 % interval over texts (`Faithfulness.differences`). Better: higher comprehensiveness
    and lower sufficiency.
    """
    frames = [_of_setting(each) for each in measured if each.faithfulness is not None]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _of_setting(measured: Measured) -> pd.DataFrame:
    found = measured.faithfulness
    assert found is not None
    keys = ["measure", "steps", "unit"]
    frame = found.summary().drop(columns=["lower", "upper"])
    differences = found.differences()
    over = differences[differences["second"] == RANDOM].rename(columns={"first": "method"})
    gim = differences[differences["first"] == GIM].rename(columns={"second": "method"})
    for name, part in (("over_random", over), ("gim_over", gim)):
        part = _signed(part, name)
        frame = frame.merge(part[["method", *keys, name, f"{name}_lower", f"{name}_upper"]], "left", ["method", *keys])
    wanted = headline(measured)
    frame["headline"] = [
        wanted[measure] == steps for measure, steps in zip(frame["measure"], frame["steps"], strict=True)
    ]
    # A logit, or a difference of two: the tables' columns say which.
    frame["unit"] = np.where(frame["unit"] == "probability", "probability", "logits")
    frame.insert(0, "model", measured.setting.model)
    frame.insert(1, "task", measured.setting.task_name)
    return frame


def _signed(part: pd.DataFrame, name: str) -> pd.DataFrame:
    """Positive where the first is better."""
    sign = part["measure"].map(HIGHER_IS_BETTER).to_numpy()
    low, high = sign * part["lower"], sign * part["upper"]
    ends = {f"{name}_lower": np.minimum(low, high), f"{name}_upper": np.maximum(low, high)}
    return part.assign(**{name: sign * part["mean"], **ends})


def duels(table: pd.DataFrame) -> pd.DataFrame:
    """In how many settings is GIM better than each method, and in how many worse, by an interval that excludes 0?"""
    rows = table[table["headline"] & (table["method"] != GIM)]
    found = rows.groupby(["method", "measure", "unit"], sort=False).agg(
        better=("gim_over_lower", lambda low: int((low > 0).sum())),
        worse=("gim_over_upper", lambda high: int((high < 0).sum())),
        settings=("gim_over", "size"),
    )
    return found.reset_index()


def claims(table: pd.DataFrame) -> list[dict[str, str]]:
    """What the paper says, what was found, and a verdict by a fixed rule.

    Logits and probabilities are of the same texts, so they are counted apart, and a verdict rests on shares of the
    comparisons, not on their number. It agrees where GIM is better in at least half of all comparisons and in three
    times as many as it is worse; in part where it is better more often than worse.
    """
    found = duels(table)
    said = [
        (
            f"{measure} of GIM is better than that of gradient x input, integrated gradients and LRP",
            found[(found["measure"] == measure) & found["method"].isin(PAPERS)],
        )
        for measure in MEASURES
    ]
    said += [
        (f"GIM loses when its {part.removeprefix('gim-without-')} part is left out", found[found["method"] == part])
        for part in PARTS
    ]
    said.append(("GIM is better than random orders", found[found["method"] == RANDOM]))
    return [{"says": _capital(says), **_verdict(rows)} for says, rows in said]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _verdict(rows: pd.DataFrame) -> dict[str, str]:
    better, worse, all_ = (int(rows[name].sum()) for name in ("better", "worse", "settings"))
    counted = rows.groupby("unit", sort=False)[["better", "worse", "settings"]].sum()
    found = [
        f"{unit}: better in {row.better}, worse in {row.worse} of {row.settings}" for unit, row in counted.iterrows()
    ]
    verdict = "does not agree"
    if 2 * better >= all_ and better >= 3 * worse:
        verdict = "agrees"
    elif better > worse:
        verdict = "agrees in part"
    return {"found": "; ".join(found), "verdict": verdict}
