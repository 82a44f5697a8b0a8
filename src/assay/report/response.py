"""A component's response: sentences, table, JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.data.baseline import Baseline
from assay.errors import StoreError
from assay.report import words
from assay.report.places import print_folder
from assay.report.terminal import KeptMetric, print_baseline
from assay.screening import ResponseCurve
from assay.sites import Component

KIND = "response"
"""Of run folder, in run.json."""
NEAR = 0.1
"""Share of the exact effect within which an estimate is believed."""
BASES = {
    "denoise": "The component's clean activation is put into the corrupted run, from none of it to all.",
    "noise": "The component's corrupted activation is put into the clean run, from none of it to all.",
}
ARRAYS = ("strengths", "values", "slopes", "curvatures")
KEPT = (
    "model", "task", "metric", "unit", "metric_description", "metric_chosen_because", "direction", "cost",
    "configuration", "provenance",
)  # fmt: skip


def question(curve: ResponseCurve) -> str:
    """What a response asks."""
    return f"How does {curve.metric} respond to {curve.component.name} of {curve.model} on {curve.task}?"


def verdict(curve: ResponseCurve) -> str:
    """The exact effect, how far from it estimates end, and whether the first order can be believed."""
    exact = curve.effect
    effect = f"The whole patch of {curve.component.name} changes {curve.metric} by {exact:+.4g} {curve.unit}."
    estimates = curve.estimates()
    if not estimates:
        return f"{effect} No derivative was taken, so nothing is said of estimates."
    if exact == 0:
        landed = ", ".join(f"{name} {value:+.3g}" for name, value in estimates.items())
        return f"{effect} Estimates make of it: {landed}."
    first, *further = estimates.items()
    told = ", ".join(f"{name.replace(', ', ' in ')} {_off(value, exact)}" for name, value in further)
    believed = _first_order(first[1], curve)
    return f"{effect} {believed}; the tangent (attribution patching) ends {_off(first[1], exact)}, {told}."


def _first_order(estimate: float, curve: ResponseCurve) -> str:
    """Whether it can be believed: within a tenth in the mean, and prompt by prompt."""
    if not _is_near(estimate, curve.effect):
        return "First order cannot be believed here"
    each = curve.values[:, -1] - curve.values[:, 0]
    missed = float(np.abs(curve.slopes[:, 0] - each).sum() / np.abs(each).sum())
    if missed > NEAR:
        return (
            f"First order can be believed here in the mean, but not prompt by prompt, where it misses {missed:.0%} of "
            "the summed effect"
        )
    return f"First order can be believed here (within {NEAR:.0%})"


def _is_near(estimate: float, exact: float) -> bool:
    return abs(estimate - exact) <= NEAR * abs(exact)


def _off(estimate: float, exact: float) -> str:
    """By how much an estimate misses, as a share of the exact effect."""
    share = abs(estimate - exact) / abs(exact)
    if estimate * exact < 0:
        return f"at {estimate:+.3g}, with the wrong sign"
    if share < 0.0005:
        return "within 0.1%"
    return f"{share * 100:.{1 if share < 0.1 else 0}f}% too {'large' if abs(estimate) > abs(exact) else 'small'}"


def rows(curve: ResponseCurve) -> list[tuple[str, str, str, str]]:
    """Name, effect, error, and the error as a share of the exact effect: of the exact one, and of each estimate."""
    exact = curve.effect
    found = [("exact", f"{exact:+.4g}", "", "")]
    for method, estimate in curve.estimates().items():
        share = f"{(estimate - exact) / abs(exact):+.1%}" if exact else "n/a"
        found.append((method, f"{estimate:+.4g}", f"{estimate - exact:+.2g}", share))
    return found


def columns(curve: ResponseCurve) -> tuple[str, str, str, str]:
    """Of the table."""
    return (curve.component.name, f"effect ({curve.unit})", f"error ({curve.unit})", "of effect")


def meaning(curve: ResponseCurve) -> str:
    """What the numbers of the table are."""
    n = len(curve.values)
    return (
        f"{BASES[curve.direction]} Effect: what the whole patch changes, g(1) - g(0), in {curve.unit} "
        f"of {curve.metric}, mean over {n} prompt pair{'s' if n > 1 else ''}; error: estimate minus exact."
    )


def print_response(console: Console, curve: ResponseCurve, folder: Path | None = None) -> None:
    """Verdict, baseline, the exact effect, what the derivatives make of it, what it cost, and where it is kept."""
    console.print(f"\n[bold]{escape(question(curve))}[/bold]")
    console.print(escape(verdict(curve)), highlight=False)
    metric = KeptMetric(curve.metric, curve.unit, curve.metric_description)
    print_baseline(console, curve.baseline, metric, curve.metric_chosen_because)
    console.print(escape(meaning(curve)), style="dim")
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns(curve)):
        table.add_column(escape(column), justify="right" if number else "left")
    for row in rows(curve):
        table.add_row(*row)
    console.print(table)
    for note in curve.notes:
        console.print(escape(note), style="dim")
    console.print(f"Cost: {words.spent(curve.cost)}", style="dim")
    if folder is not None:
        print_folder(console, folder)


def response_to_dict(curve: ResponseCurve) -> dict[str, Any]:
    """All of it, for JSON; `read_response` makes a curve of it again."""
    return {
        "component": curve.component.name,
        "place": vars(curve.component),
        "effect": curve.effect,
        "estimates": curve.estimates(),
        "baseline": {name: np.asarray(array, float).tolist() for name, array in vars(curve.baseline).items()},
        "notes": list(curve.notes),
        **{name: getattr(curve, name).tolist() for name in ARRAYS},
        **{name: getattr(curve, name) for name in KEPT},
    }


def read_response(run: dict[str, Any]) -> ResponseCurve:
    """The curve, from the content of ``run.json``.

    Raises:
        StoreError: it is not that of a response.
    """
    try:
        arrays: dict[str, Any] = {name: np.array(run[name]) for name in ARRAYS}
        return ResponseCurve(
            component=Component(**run["place"]),
            baseline=Baseline(**{name: np.array(values) for name, values in run["baseline"].items()}),
            notes=tuple(run["notes"]),
            **arrays,
            **{name: run[name] for name in KEPT},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"run.json is not that of a response: {error}") from error
