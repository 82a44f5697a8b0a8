"""The page of a comparison: one file that opens offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from assay.comparison import Comparison
from assay.methods.registry import METHODS
from assay.report.comparison import cells, columns, headline, legend, question, scaled, setting
from assay.report.figures import INK_SOFT, styled
from assay.report.html import frame, plain, render
from assay.scores import Scores
from assay.store.plain import write_plain

MOST_POINTS = 2000
# Told apart by every common kind of colour blindness (Okabe and Ito), and by their symbols besides.
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def write_comparison(
    folder: Path, found: Sequence[Comparison], run: dict[str, Any], exact: Scores, estimates: Sequence[Scores] = ()
) -> None:
    """Write ``run.json`` (with ``run``'s entries and the figures of every method) and ``report.html``, or nothing.

    Args:
        estimates: scores of all methods but the exact one, in the order of ``found``; the page draws them.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    content = {"kind": "comparison", **run, "methods": [row.to_dict() for row in found]}
    page = comparison_page(found, run, exact, estimates)
    write_plain(folder, content, lambda scratch: (scratch / "report.html").write_text(page, encoding="utf-8"))


def comparison_page(
    found: Sequence[Comparison], run: dict[str, Any], exact: Scores, estimates: Sequence[Scores] = ()
) -> str:
    """The page as text."""
    k = run["request"]["k"]
    names = [(row.method, METHODS.get(row.method.partition(":")[0])) for row in found]
    drawn = [("cost", "Error against cost: down and to the left is better", error_against_cost(found))]
    if estimates:
        drawn.append(("scatter", "Estimate against exact effect of each component", _scatter(found, exact, estimates)))
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


def _scatter(found: Sequence[Comparison], exact: Scores, estimates: Sequence[Scores]) -> go.Figure:
    """Means over prompts, the largest exact effects; a method's name in the legend hides and shows it."""
    figure, truth = go.Figure(), exact.values.mean(1)
    chosen = np.argsort(-np.abs(truth), kind="stable")[:MOST_POINTS]
    names = [exact.components[i].name for i in chosen]
    for number, (row, scores) in enumerate(zip(found[1:], estimates, strict=True), 2):
        method = METHODS[row.method.partition(":")[0]]
        values = (scores.values if method.has_unit else scores.values * exact.sign).mean(1)
        known = truth if method.signed else np.abs(exact.values).mean(1)
        figure.add_scatter(
            name=plain(f"{number} {row.method}"),
            x=known[chosen],
            y=row.scale * values[chosen],
            text=names,
            mode="markers",
            marker={"color": COLOURS[(number - 1) % len(COLOURS)], "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 8},
            opacity=0.8,
            hovertemplate="%{text}: exact %{x:+.4g}, estimate %{y:+.4g}",
        )
    ends = [float(min(truth.min(initial=0.0), 0.0)), float(max(truth.max(initial=0.0), 0.0))]
    line = {"color": INK_SOFT, "dash": "dash", "width": 1}
    figure.add_scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip")
    unit = "" if exact.unit == "none" else f" ({exact.unit})"
    figure.update_xaxes(title_text=f"exact effect{unit}; on the dashed line the estimate is right")
    figure.update_yaxes(title_text="estimate")
    return styled(figure, height=430 + 18 * len(found)).update_layout(
        legend={"orientation": "v", "y": -0.22, "yanchor": "top", "x": 0}
    )


def _ticks(costs: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from below the least to above the most."""
    exponents = range(math.floor(math.log10(min(costs))) - 1, math.ceil(math.log10(max(costs))) + 1)
    return [first * 10.0**exponent for exponent in exponents for first in (1, 2, 5)]
