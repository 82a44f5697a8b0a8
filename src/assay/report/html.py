"""The page: one file that opens offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
import plotly.offline
from markupsafe import Markup

from assay.data.baseline import Baseline, standard_error
from assay.data.pairs import PromptPairs
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
        **frame(drawn, scores.pairs, scores.baseline),
        top=scores.top(COMPONENTS_SHOWN).to_dict("records"),
        shares=words.has_shares(scores),
        details={
            "configuration": scores.configuration,
            "cost": scores.cost,
            "provenance": scores.provenance,
        },
    )
    Path(path).write_text(page, encoding="utf-8")


def frame(drawn: Sequence[tuple[str, str, go.Figure]], pairs: PromptPairs, baseline: Baseline) -> dict[str, Any]:
    """What ``base.html`` shows of any run besides its answer: figures, baseline, prompts.

    Args:
        drawn: name, title and figure each.
    """
    return {
        "words": words,
        "standard_error": standard_error,
        "plotly": Markup(plotly.offline.get_plotlyjs().replace("</script", "<\\/script")),
        "figures": [(name, title, _embed(figure, f"figure-{name}")) for name, title, figure in drawn],
        "pairs": pairs,
        "examples": list(zip(pairs, baseline.clean, baseline.corrupted, strict=True))[:EXAMPLES_SHOWN],
        "to_json": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    }


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
