"""What a page tells of each component that its map or its table lets one choose."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import numpy as np

from assay.report import words
from assay.report.screening import interval, number
from assay.scores import Scores
from assay.screening import ScreenedScores
from assay.screening.result import SOURCES

MOST_PROMPTS, MOST_VALUES = 64, 50_000
"""Drawn one by one: of a component, and of all on a page."""
OF_PROMPTS = {
    "--task", "--n", "--seed", "--metric", "--direction", "--corruption", "--length", "--relation", "--kind",
    "--operation", "--columns", "--template", "--align", "--dtype", "--device", "--revision", "--memory",
}  # fmt: skip
"""Options that say what a response is of, as they say it of scores."""
BETWEEN = "a = 0: not patched; a = 1: patched. Nothing was measured between."
MARKS = {"verified": "●", "bounded": "○", "unresolved": "✕"}


def explored(scores: Scores, shown: Iterable[int]) -> dict[str, Any]:
    """Of the components with the indices ``shown``: name, lines of text, curve, values by prompt. For JSON."""
    describe = _screened if isinstance(scores, ScreenedScores) else _scored
    per_prompt = scores.sign * scores.values
    importance = scores.importance
    error = scores.to_pandas()["stderr_prompts"].to_numpy(float)
    items, shown = {}, [int(i) for i in shown]
    drawn = per_prompt.shape[1] <= MOST_PROMPTS and len(shown) * per_prompt.shape[1] <= MOST_VALUES
    for i in shown:
        item = {"name": scores.components[i].name, **describe(scores, i, float(importance[i]), float(error[i]))}
        if drawn:
            item["prompts"] = [_short(value) for value in per_prompt[i]]
        items[str(i)] = item
    order = (
        scores.leaders
        if isinstance(scores, ScreenedScores) and len(scores.leaders)
        else np.argsort(-np.abs(importance), kind="stable")
    )
    command = response_command(str(scores.provenance.get("command", "")))
    return {
        "items": items,
        "first": int(order[0]),
        "curve_title": "What is known of its response g(a)",
        "curve_note": f"{BETWEEN} To do so:" if command else BETWEEN,
        "command": command,
        "prompts_title": f"On each of the {per_prompt.shape[1]} prompts",
    }


def verdict(name: str) -> str:
    """A verdict with the mark that tells it where colours do not."""
    return f"{MARKS[name]} {name}" if name in MARKS else name


def response_command(command: str) -> str | None:
    """The command that measures a component's response on the prompts of a run; None if the run has no command."""
    try:
        given = shlex.split(command)
    except ValueError:
        return None
    if given[:1] != ["assay"] or len(given) < 3:
        return None
    kept = [given[2]]
    for option, value in zip(given[3:], [*given[4:], ""], strict=True):
        if option in OF_PROMPTS:
            kept += [option, value]
        elif option == "--chat":
            kept.append(option)
    return f"assay response {shlex.join(kept)} --component NAME"


def _scored(scores: Scores, i: int, value: float, error: float) -> dict[str, Any]:
    state = "verified" if scores.exact else "unresolved" if scores.estimates_effect else "none"
    found = [
        ("importance", f"{value:+.4g} {words.scale(scores)}" + (f" ± {error:.2g}" if np.isfinite(error) else "")),
        ("verdict", verdict(state)),
    ]
    if words.has_shares(scores):
        found.insert(1, ("of difference", f"{value / scores.baseline.difference:+.1%}"))
    if scores.gap is not None:
        found.insert(1, ("completeness gap", f"{scores.sign * scores.gap[i].mean():+.3g}"))
    item: dict[str, Any] = {"lines": found}
    if scores.method == "attribution-patching" and not words.only_ranks(scores):
        item |= {"curve": _curve(slope=value), "key": [("tangent", f"tangent at 0: {value:+.3g}")]}
    elif scores.exact and scores.direction != "ablation":
        key = [("exact", f"exact: {value:+.3g}"), ("", "no derivatives were taken")]
        item |= {"curve": _curve(end=value, exact=True), "key": key}
    return item


def _screened(scores: Scores, i: int, value: float, _: float) -> dict[str, Any]:
    assert isinstance(scores, ScreenedScores)
    known = scores.verdicts[i] == "verified"
    low, high = sorted((scores.sign * scores.lower[i], scores.sign * scores.upper[i]))
    source = SOURCES[scores.source[i]]
    found = [
        ("importance", f"{value:+.4g} {scores.unit}"),
        ("interval", "exact" if known else interval(low, high)),
        ("R", number(scores.reliability[i]) + (" (flagged)" if scores.flagged[i] else "")),
        ("verdict", verdict(scores.verdicts[i])),
    ]
    if source != "exact":
        found.append(("known by", "a patch that changes nothing" if source == "no change" else source))
    slope, bend, far = (
        scores.sign * float(array[i].mean()) for array in (scores.first_order, scores.quadratic, scores.far_end)
    )
    if np.isfinite(far):
        # Not the slope of this response at 1: there, everything else is restored as well.
        found.append(("first order, source run", f"{far:+.3g}"))
    key = [("exact" if known else "estimate", f"{'exact' if known else source}: {value:+.3g}")]
    if np.isfinite(slope):
        key.append(("tangent", f"tangent at 0: {slope:+.3g}"))
    if np.isfinite(slope + bend):
        key.append(("parabola", f"with curvature: {slope + bend:+.3g}"))
    else:
        key.append(("", "no curvature known" if np.isfinite(slope) else "no derivatives: not estimated, but patched"))
    if not known and np.isfinite(low + high):
        key.append(("interval", f"interval at {scores.level:.0%}"))
    return {"lines": found, "curve": _curve(slope, bend, value, low, high, known), "key": key}


def _curve(
    slope: float | None = None,
    bend: float | None = None,
    end: float | None = None,
    low: float | None = None,
    high: float | None = None,
    exact: bool = False,
) -> dict[str, Any]:
    """What is known of g: its slope and half its curvature at 0, its end and the interval of it, exact or estimated."""
    known = {"slope": slope, "bend": bend, "end": end, "low": low, "high": high}
    return {**{name: None if value is None else _short(value) for name, value in known.items()}, "exact": exact}


def _short(value: float) -> float:
    """As exactly as it can be drawn."""
    return float(f"{value:.4g}")
