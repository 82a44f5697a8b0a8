"""How methods compare with exact patching: table, JSON, and a page with error against cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.comparison import Comparison
from assay.errors import StoreError
from assay.report.figures import NEGATIVE, POSITIVE
from assay.store.plain import write_plain


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
        cost = (f"{row.forward_equivalents:.1f}", f"{row.backward_passes:.3g}", f"{row.seconds:.1f}")
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


def error_against_cost(found: Sequence[Comparison]) -> go.Figure:
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
    return figure.update_layout(height=520, legend={"orientation": "h", "y": 1.1})


def write_comparison(folder: Path, found: Sequence[Comparison], run: dict[str, Any]) -> None:
    """Write ``run.json`` (with ``run``'s entries and the figures of every method) and ``report.html``, or nothing.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    content = {"kind": "comparison", **run, "methods": [row.to_dict() for row in found]}
    page = error_against_cost(found)
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
