"""The page: one file that opens offline."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import plotly.graph_objects as go
import plotly.offline
from markupsafe import Markup

from assay.data.baseline import standard_error
from assay.report import figures, screening, words
from assay.scores import Scores
from assay.screening import ScreenedScores

EXAMPLES_SHOWN = 6
COMPONENTS_SHOWN = 30


def write_page(scores: Scores, path: str | Path) -> None:
    """Write the page of a run: map, bars, top components, baseline with prompts, how to reproduce it."""
    environment = make_environment()
    screened = isinstance(scores, ScreenedScores)
    drawn = screening.screening_figures(scores) if isinstance(scores, ScreenedScores) else figures.figures(scores)
    page = environment.get_template("screening.html" if screened else "scores.html").render(
        scores=scores,
        screening=screening,
        words=words,
        standard_error=standard_error,
        plotly=Markup(plotly.offline.get_plotlyjs().replace("</script", "<\\/script")),
        figures=[(name, title, _embed(figure, f"figure-{name}")) for name, title, figure in drawn],
        top=scores.top(COMPONENTS_SHOWN).to_dict("records"),
        shares=words.has_shares(scores),
        examples=list(zip(scores.pairs, scores.baseline.clean, scores.baseline.corrupted, strict=True))[
            :EXAMPLES_SHOWN
        ],
        details={
            "configuration": scores.configuration,
            "cost": scores.cost,
            "provenance": scores.provenance,
        },
        to_json=lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    )
    Path(path).write_text(page, encoding="utf-8")


def make_environment() -> jinja2.Environment:
    """What all pages are made with: everything from outside is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["signed"] = "{:+.4g}".format
    environment.filters["percent"] = "{:+.1%}".format
    environment.filters["short"] = "{:.2g}".format
    return environment


def _embed(figure: go.Figure, name: str) -> Markup:
    div: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=name, config={"displayModeBar": False, "responsive": True}
    )
    return Markup(div)
