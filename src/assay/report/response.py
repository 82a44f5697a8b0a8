"""A component's response: table, JSON, and a folder with a page."""

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
from assay.report.terminal import KeptMetric, print_baseline
from assay.screening import ResponseCurve
from assay.sites import Component
from assay.store.plain import write_plain

KIND = "response"
"""Of run folder, in run.json."""
BASES = {
    "denoise": "The component's clean activation is put into the corrupted run, from none of it to all.",
    "noise": "The component's corrupted activation is put into the clean run, from none of it to all.",
}
ARRAYS = ("strengths", "values", "slopes", "curvatures")
KEPT = (
    "model", "task", "metric", "unit", "metric_description", "metric_chosen_because", "direction", "cost",
    "configuration", "provenance",
)  # fmt: skip


def print_response(console: Console, curve: ResponseCurve, folder: Path | None = None) -> None:
    """Baseline, the exact effect, what the derivatives make of it, what it cost, and where it is kept."""
    metric = KeptMetric(curve.metric, curve.unit, curve.metric_description)
    print_baseline(console, curve.baseline, metric, curve.metric_chosen_because)
    name, n = curve.component.name, len(curve.values)
    console.print(f"\n[bold]{escape(f'How does {curve.metric} respond to {name} of {curve.model}?')}[/bold]")
    console.print(
        escape(
            f"{BASES[curve.direction]} Effect: what the whole patch changes, g(1) - g(0), in {curve.unit} "
            f"of {curve.metric}, mean over {n} prompt pair{'s' if n > 1 else ''}; error: estimate minus exact."
        ),
        style="dim",
    )
    table = Table(box=None, pad_edge=False)
    for column in (name, f"effect ({curve.unit})", "error"):
        table.add_column(escape(column), justify="left" if column == name else "right")
    table.add_row("exact", f"{curve.effect:+.4g}", "")
    for method, estimate in curve.estimates().items():
        table.add_row(method, f"{estimate:+.4g}", f"{estimate - curve.effect:+.2g}")
    console.print(table)
    for note in curve.notes:
        console.print(escape(note), style="dim")
    console.print(f"Cost: {words.spent(curve.cost)}", style="dim")
    if folder is not None:
        console.print(f"Run folder: {escape(str(folder))}", style="dim", soft_wrap=True)
        console.print(f"Page: {escape(str((folder / 'report.html').resolve()))}", style="dim", soft_wrap=True)


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


def write_response(folder: Path, curve: ResponseCurve, request: dict[str, Any]) -> None:
    """Write ``run.json`` and ``report.html``, which opens offline, or nothing.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    page = curve.plot()
    content = {"kind": KIND, "request": request, **response_to_dict(curve)}
    write_plain(folder, content, lambda scratch: page.write_html(scratch / "report.html", include_plotlyjs=True))


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
