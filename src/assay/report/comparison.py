"""How methods compare with exact patching: table, JSON, and a page with error against cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.comparison import Comparison
from assay.data.baseline import Baseline
from assay.errors import StoreError
from assay.report import words
from assay.report.figures import NEGATIVE, POSITIVE
from assay.report.terminal import KeptMetric, print_baseline
from assay.scores import Scores
from assay.store.plain import write_plain


def setting_of(exact: Scores) -> dict[str, Any]:
    """What methods were compared on, for ``run.json``."""
    per_example = {name: values.tolist() for name, values in vars(exact.baseline).items()}
    return {
        "direction": exact.direction,
        "metric": exact.metric,
        "unit": exact.unit,
        "examples": len(exact.pairs),
        "components": len(exact.components),
        "baseline": {**exact.baseline.summary(), "per_example": per_example},
    }


def print_setting(console: Console, run: dict[str, Any]) -> None:
    """What methods were compared on, from the content of ``run.json``: metric, baseline, prompts, direction."""
    if "baseline" not in run:
        return  # comparisons of before
    provenance = run["provenance"]
    arrays = {name: np.array(values) for name, values in run["baseline"]["per_example"].items()}
    metric = KeptMetric(run["metric"], **provenance["metric"])
    print_baseline(console, Baseline(**arrays), metric, provenance["metric_chosen_because"])
    console.print(escape(f"{_on(run)} {words.DIRECTIONS[run['direction']]}"), style="dim")


def _on(run: dict[str, Any]) -> str:
    return (
        f"{run['components']} components, {run['examples']} prompt pairs, direction {run['direction']}, effects on "
        f"{run['metric']} in {run['unit']}; clean - corrupted {run['baseline']['difference']:+.4g}."
    )


def print_comparison(console: Console, found: Sequence[Comparison], k: int) -> None:
    """One line a method."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    columns = ("top-5", "L1", "r", "rho", f"top {k}", "sign", "passes", "bwd", "s")
    table.add_column("method", overflow="fold", min_width=22)
    for name in columns:
        table.add_column(name, justify="right")
    for row in found:
        shown = (row.top_error, row.l1_error, row.pearson, row.spearman, row.overlap[k], row.sign_errors)
        digits = (3, 3, 3, 3, 2, 2)  # eighty columns hold no more
        pairs = zip(shown, digits, strict=True)
        cells = ["n/a" if value is None else f"{value:.{count}f}" for value, count in pairs]
        passes = "n/a" if row.backward_passes is None else f"{row.backward_passes:.3g}"
        cost = (f"{row.forward_equivalents:.1f}", passes, f"{row.seconds:.1f}")
        table.add_row(escape(row.method), *cells, *cost)
    console.print(table)
    console.print(
        "All against exhaustive activation patching. top-5: |estimate - exact| / |exact| of a prompt's five largest "
        "exact effects, median prompt. L1: summed absolute error over summed absolute effect. r, rho: Pearson and "
        f"Spearman of the means over prompts. top {k}: share of the {k} largest that are among the exact ones'. sign: "
        "share with the wrong sign (n/a for absolute estimates). passes: forward-equivalents, baseline included. bwd: "
        "backward passes per component, the unit of arXiv 2606.09899, in which exact patching is free. s: seconds.",
        style="dim",
    )
    for row in found:
        if row.scale != 1:
            console.print(
                escape(f"{row.method} is no estimate of the effect: multiplied by a fitted {row.scale:.3g} first."),
                style="dim",
            )


def error_against_cost(found: Sequence[Comparison], title: str = "") -> go.Figure:
    """L1 error and top-5 error against forward-equivalents, exact patching at zero."""
    figure = go.Figure()
    for name, colour, values in (
        ("L1 error / L1 effect", NEGATIVE, [row.l1_error for row in found]),
        ("top-5 relative error (median prompt)", POSITIVE, [row.top_error for row in found]),
    ):
        figure.add_scatter(
            name=name,
            x=[row.forward_equivalents for row in found],
            y=values,
            text=[row.method for row in found],
            mode="markers+text",
            textposition="top center",
            textfont={"size": 10},
            marker={"color": colour, "size": 10},
            hovertemplate="%{text}<br>%{x:.1f} forward-equivalents<br>error %{y:.3f}<extra></extra>",
        )
    figure.update_xaxes(type="log", title_text="forward-equivalents")
    figure.update_yaxes(rangemode="tozero", title_text="error")
    return figure.update_layout(
        title={"text": title, "font": {"size": 13}}, height=560, legend={"orientation": "h", "y": 1.1}
    )


def write_comparison(folder: Path, found: Sequence[Comparison], run: dict[str, Any]) -> None:
    """Write ``run.json`` (with ``run``'s entries and the figures of every method) and ``report.html``, or nothing.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    content = {"kind": "comparison", **run, "methods": [row.to_dict() for row in found]}
    title = _on(run).replace("<", "&lt;") if "baseline" in run else ""
    page = error_against_cost(found, title)
    write_plain(folder, content, lambda scratch: page.write_html(scratch / "report.html", include_plotlyjs=True))


def read_comparison(run: dict[str, Any]) -> list[Comparison]:
    """The figures of every method, from the content of ``run.json``.

    Raises:
        StoreError: it is not that of a comparison.
    """
    try:
        return [
            Comparison(**{**row, "overlap": {int(k): value for k, value in row["overlap"].items()}})
            for row in run["methods"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"run.json is not that of a comparison: {error}") from error
