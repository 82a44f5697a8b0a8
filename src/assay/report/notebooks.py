"""What results look like in a notebook: question, answer and the largest lines; and the figures of their pages."""

from __future__ import annotations

import html
from functools import singledispatch
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from assay.audit import Audit
from assay.circuits.found import FoundCircuit
from assay.errors import OptionError, instead_of
from assay.interactions import Interactions, SelfRepair
from assay.report import audit, circuit, circuit_page, explanations, interactions, screening, self_repair, words
from assay.report import self_repair_page as repair_page
from assay.report.figures import figures as figures_of_scores
from assay.scores import Scores
from assay.screening import ScreenedScores
from assay.tokens import Explanations

LINES = 10


@singledispatch
def told(result: Any) -> tuple[str, list[str], pd.DataFrame | None]:
    """Question, answer in sentences, and the largest lines."""
    raise TypeError(f"A {type(result).__name__} is not told.")


@singledispatch
def drawn(result: Any) -> dict[str, go.Figure]:
    """Figures by name."""
    raise TypeError(f"A {type(result).__name__} is not drawn.")


def summary(result: Any) -> str:
    """HTML in which everything from outside is escaped."""
    question, answer, lines = told(result)
    sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in answer)
    table = "" if lines is None else lines.to_html(index=False, float_format="{:+.4g}".format, na_rep="")
    return f"<p><b>{html.escape(question)}</b></p>{sentences}{table}"


def plot(result: Any, name: str | None = None) -> go.Figure:
    """A figure by name, the first if None.

    Raises:
        OptionError: there is no such figure, or none at all.
    """
    figures = drawn(result)
    if not figures:
        raise OptionError("This result has too many components for a figure; its table lists the largest.")
    if name is not None and name not in figures:
        raise OptionError(f"There is no figure {name!r}. {instead_of(name, figures)}")
    return figures[name] if name is not None else next(iter(figures.values()))


@told.register
def _(result: Scores) -> tuple[str, list[str], pd.DataFrame | None]:
    if "model" not in result.provenance:  # of a user's own making
        return repr(result), [], result.top(LINES)
    return words.question(result), [words.answer(result)], result.top(LINES)[SHOWN_OF_SCORES]


@told.register
def _(result: ScreenedScores) -> tuple[str, list[str], pd.DataFrame | None]:
    top = result.top(LINES)
    shown = ["component", "importance", "low", "high", "reliability", "verdict", "prompts_low", "prompts_high"]
    return words.question(result), [screening.answer(result)], top[shown]


@told.register
def _(result: Interactions) -> tuple[str, list[str], pd.DataFrame | None]:
    return interactions.question(result), interactions.answer(result), result.to_pandas().head(LINES)


@told.register
def _(result: Audit) -> tuple[str, list[str], pd.DataFrame | None]:
    return audit.question(result), audit.answer(result), result.to_pandas().head(LINES)


@told.register
def _(result: SelfRepair) -> tuple[str, list[str], pd.DataFrame | None]:
    return self_repair.question(result), self_repair.answer(result), None


@told.register
def _(result: FoundCircuit) -> tuple[str, list[str], pd.DataFrame | None]:
    return circuit.question(result), circuit.answer(result), None


@told.register
def _(result: Explanations) -> tuple[str, list[str], pd.DataFrame | None]:
    return explanations.title(result), [explanations.sentence(item) for item in result], None


SHOWN_OF_SCORES = ["component", "importance", "stderr_prompts", "verdict"]


@drawn.register
def _(result: Scores) -> dict[str, go.Figure]:
    return {name: figure for name, _, figure in figures_of_scores(result)}


@drawn.register
def _(result: ScreenedScores) -> dict[str, go.Figure]:
    return {name: figure for name, _, figure in screening.screening_figures(result)}


@drawn.register
def _(result: Interactions) -> dict[str, go.Figure]:
    return {each.name: each.figure for each in interactions.figures(result)}


@drawn.register
def _(result: Audit) -> dict[str, go.Figure]:
    return {each.name: each.figure for each in audit.figures(result)}


@drawn.register
def _(result: SelfRepair) -> dict[str, go.Figure]:
    return {name: figure for name, _, figure in repair_page.figures(result)}


@drawn.register
def _(result: FoundCircuit) -> dict[str, go.Figure]:
    return {"faithfulness": circuit_page.curve(result)}


@drawn.register
def _(result: Explanations) -> dict[str, go.Figure]:
    found = {}
    for item in result:
        for method, scores in item.scores.items():
            figure = go.Figure(go.Bar(x=[f"{i} {token}" for i, token in enumerate(item.tokens)], y=scores))
            figure.update_yaxes(title_text=f"score by {method}")
            found[f"{item.id} {method}"] = figure.update_layout(height=320, margin={"l": 50, "r": 10, "t": 10, "b": 60})
    return found
