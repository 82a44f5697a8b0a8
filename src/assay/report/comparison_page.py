"""The page of a comparison: one file that opens offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from assay.comparison import Comparison
from assay.methods.registry import METHODS
from assay.report.comparison import cells, columns, headline, legend, question, scaled, setting
from assay.report.figures import INK_SOFT, styled
from assay.report.html import frame, render
from assay.scores import Scores
from assay.store.plain import write_plain

# Told apart by every common kind of colour blindness (Okabe and Ito), and numbered besides.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def write_comparison(folder: Path, found: Sequence[Comparison], run: dict[str, Any], exact: Scores) -> None:
    """Write ``run.json`` (with ``run``'s entries and the figures of every method) and ``report.html``, or nothing.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    content = {"kind": "comparison", **run, "methods": [row.to_dict() for row in found]}
    page = comparison_page(found, run, exact)
    write_plain(folder, content, lambda scratch: (scratch / "report.html").write_text(page, encoding="utf-8"))


def comparison_page(found: Sequence[Comparison], run: dict[str, Any], exact: Scores) -> str:
    """The page as text."""
    k = run["request"]["k"]
    names = [(row.method, METHODS.get(row.method.partition(":")[0])) for row in found]
    drawn = [("cost", "Error against cost: down and to the left is better", error_against_cost(found))]
    return render(
        "comparison.html",
        figures=drawn,
        scores=exact,
        question=question(run),
        headline=headline(found),
        setting=setting(run),
        columns=columns(k),
        rows=[(row.method, cells(row, k)) for row in found],
        legend=legend(k),
        notes=scaled(found),
        sources=[(name, method.description, method.source_note) for name, method in names if method is not None],
        **frame(exact.pairs, exact.baseline),
        details={"request": run["request"], "configuration": exact.configuration, "provenance": exact.provenance},
    )  # fmt: skip


def error_against_cost(found: Sequence[Comparison]) -> go.Figure:
    """Error of the five largest (filled) and of all (open) against forward-equivalents, exact patching at zero."""
    figure = go.Figure()
    exact = found[0].forward_equivalents
    figure.add_vline(x=exact, line={"color": INK_SOFT, "dash": "dot", "width": 1})
    for number, row in enumerate(found, 1):
        colour = COLOURS[(number - 1) % len(COLOURS)]
        points = [("top-5 error", row.top_error, "circle"), ("L1 error", row.l1_error, "circle-open")]
        known = [(measure, error, symbol) for measure, error, symbol in points if error is not None]
        upper = max(error for _, error, _ in known)
        figure.add_scatter(
            name=f"{number} {row.method}".replace("<", "&lt;"),
            x=[row.forward_equivalents] * len(known),
            y=[error for _, error, _ in known],
            mode="lines+markers+text",
            text=[str(number) if error == upper else "" for _, error, _ in known],
            textposition="top center",
            line={"color": colour, "width": 1},
            marker={"color": colour, "size": 11, "symbol": [symbol for *_, symbol in known]},
            marker_line={"color": colour, "width": 2},
            customdata=[measure for measure, *_ in known],
            hovertemplate="%{customdata} %{y:.3f}<br>%{x:.1f} forward-equivalents",
            cliponaxis=False,
        )
    ticks = _ticks([row.forward_equivalents for row in found])
    figure.update_xaxes(type="log", title_text="forward-equivalents (dotted: exact)", tickvals=ticks)
    figure.update_xaxes(ticktext=[f"{tick:g}" for tick in ticks])
    figure.update_yaxes(rangemode="tozero", title_text="error (filled: top-5, open: L1)")
    return styled(figure, height=430 + 18 * len(found)).update_layout(
        legend={"orientation": "v", "y": -0.22, "yanchor": "top", "x": 0}
    )


def _ticks(costs: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from below the least to above the most."""
    exponents = range(math.floor(math.log10(min(costs))) - 1, math.ceil(math.log10(max(costs))) + 1)
    return [first * 10.0**exponent for exponent in exponents for first in (1, 2, 5)]
