"""The page of a component's response: one file that opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from assay.data.pairs import PromptPairs
from assay.methods.registry import METHODS
from assay.report.figures import INK_SOFT, styled
from assay.report.html import frame, render
from assay.report.response import KIND, columns, meaning, question, response_to_dict, rows, verdict
from assay.screening import ResponseCurve
from assay.screening.curve import CURVE
from assay.store.plain import write_plain

PROMPTS_DRAWN = 64


def write_response(folder: Path, curve: ResponseCurve, request: dict[str, Any], pairs: PromptPairs) -> None:
    """Write ``run.json`` and ``report.html``, which opens offline, or nothing.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    page = response_page(curve, pairs)
    content = {"kind": KIND, "request": request, **response_to_dict(curve)}
    write_plain(folder, content, lambda scratch: (scratch / "report.html").write_text(page, encoding="utf-8"))


def response_page(curve: ResponseCurve, pairs: PromptPairs) -> str:
    """The page as text."""
    drawn = [("response", "Mean response, and what derivatives at its start make of it", _mean(curve))]
    if len(curve.values) > 1:
        drawn.append(("prompts", "Response of each prompt, less its start", _each(curve)))
    methods = ("activation-patching", *(("attribution-patching", "hvp", "ms-hvp") if curve.estimates() else ()))
    return render(
        "response.html",
        figures=drawn,
        scores=curve,
        question=question(curve),
        verdict=verdict(curve),
        meaning=meaning(curve),
        columns=columns(curve),
        rows=rows(curve),
        sources=[(name, METHODS[name].description, METHODS[name].source_note) for name in methods],
        **frame(pairs, curve.baseline),
        details={"configuration": curve.configuration, "cost": curve.cost, "provenance": curve.provenance},
    )  # fmt: skip


def _mean(curve: ResponseCurve) -> go.Figure:
    figure = styled(curve.plot(), height=520).update_layout(title=None)
    return figure.update_layout(legend={"orientation": "h", "y": -0.16, "yanchor": "top", "x": 0})


def _each(curve: ResponseCurve) -> go.Figure:
    figure = go.Figure()
    for number, values in enumerate(curve.values[:PROMPTS_DRAWN]):
        figure.add_scatter(
            x=curve.strengths, y=values - values[0], name=f"prompt {number}", mode="lines", showlegend=False,
            line={"color": INK_SOFT, "width": 1}, opacity=0.5,
            hovertemplate="a = %{x:.2f}: %{y:+.4g}",
        )  # fmt: skip
    mean = curve.values.mean(0)
    figure.add_scatter(
        x=curve.strengths, y=mean - mean[0], name="mean", mode="lines", line={"color": CURVE, "width": 3},
        hovertemplate="a = %{x:.2f}: %{y:+.4g}", showlegend=False,
    )  # fmt: skip
    figure.update_xaxes(title_text="strength a of the patch (green: mean)")
    figure.update_yaxes(title_text=f"g(a) − g(0) ({curve.unit})")
    return styled(figure, height=520)
