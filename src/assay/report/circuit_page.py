"""The page of a tested circuit: one file that opens offline."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import plotly.offline
from markupsafe import Markup

from assay.circuits.found import FoundCircuit
from assay.report import circuit as words
from assay.report.circuit_drawing import caption, to_svg
from assay.report.figures import NEGATIVE, POSITIVE, styled
from assay.report.html import make_environment

SCORES_SHOWN = 40


def write_circuit_page(found: FoundCircuit, path: str | Path) -> None:
    """Write the page: answer, curve, drawing, largest scores, how to reproduce it."""
    columns = [words.ITEMS[found.level] if name == "edges" else name for name in words.CURVE_COLUMNS]
    figure = _curve(found).to_html(
        full_html=False, include_plotlyjs=False, div_id="figure-curve",
        config={"displayModeBar": False, "responsive": True},
    )  # fmt: skip
    page = (
        make_environment()
        .get_template("circuit.html")
        .render(
            found=found,
            title=words.question(found),
            answer=words.answer(found),
            label=words.label_sentence(found),
            split=words.split_sentence(found),
            curve=Markup(figure),
            curve_columns=columns,
            curve_rows=words.curve_rows(found),
            drawing=Markup(to_svg(found)),
            caption=caption(found),
            score_columns=words.SCORE_COLUMNS,
            score_rows=words.score_rows(found, SCORES_SHOWN),
            plotly=Markup(plotly.offline.get_plotlyjs().replace("</script", "<\\/script")),
            details=json.dumps(
                {
                    "configuration": found.scores.configuration,
                    "cost": found.scores.cost,
                    "provenance": found.provenance,
                },
                indent=2,
                ensure_ascii=False,
            ),
        )
    )
    Path(path).write_text(page, encoding="utf-8")


def _curve(found: FoundCircuit) -> go.Figure:
    """Faithfulness over size by both rankings, with intervals."""
    figure = go.Figure()
    for name, curve, colour in (
        ("by score (CPR)", found.signed.curve, POSITIVE),
        ("by absolute score (CMD)", found.absolute.curve, NEGATIVE),
    ):
        estimates = np.array(curve.faithfulness)
        value, lower, upper = estimates.T
        bars = None if np.isnan(lower).any() else {"array": upper - value, "arrayminus": value - lower, "thickness": 1}
        figure.add_scatter(
            x=list(curve.sizes), y=value, error_y=bars, name=name, mode="lines+markers", line={"color": colour},
            hovertemplate="size %{x}<br>f %{y:.3f}<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=1, line={"color": "#98a2b3", "dash": "dash"})
    figure.update_xaxes(title_text="share of what was scored", type="log")
    figure.update_yaxes(title_text="faithfulness")
    return styled(figure, height=380).update_layout(legend={"orientation": "h", "y": 1.1})
