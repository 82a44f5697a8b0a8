"""The frame of every page: one file that opens offline and asks for nothing.

A page is a template that extends ``base.html``, filled in by `render`. What a template gets without asking: the style,
the script (tables sort and filter, commands copy, sections are named in the bar, maps and figures answer), a policy by
which a browser loads nothing and runs no other script, and the macros of ``parts.html`` (``figures_of``, ``table``,
``tables_of``, ``prompt_tables``, ``example_prompts``, ``cost_table``, ``reproduce``). Its blocks: ``title``,
``head`` (more style), and ``body``; or, for a run on prompt pairs, inside the given body, ``kicker``, ``answer``,
``main_figure``, ``components``, ``cite`` and ``kept``.

Everything from outside is escaped: by jinja in markup, by `data` inside scripts, by `plain` in labels of plotly, which
reads some HTML.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
import plotly.offline
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from assay.data.baseline import Baseline, standard_error
from assay.data.pairs import PromptPairs
from assay.report import words

EXAMPLES_SHOWN = 6


@dataclass(frozen=True)
class Figure:
    """A figure with the name of its place on the page."""

    name: str
    title: str
    figure: go.Figure | Markup
    """Of plotly, whose script (4.6 MB) a page then carries; or SVG, which needs nothing."""
    note: str = ""


@dataclass(frozen=True)
class Drawn:
    """A figure as markup."""

    title: str
    drawing: Markup
    note: str


def render(
    template: str, *, figures: Sequence[Figure | tuple[str, str, go.Figure | Markup]] = (), **context: Any
) -> str:
    """A page as text.

    Args:
        template: the name of a file of ``templates/`` that extends ``base.html``.
        figures: those of ``{{ figures_of(figures) }}``; name, title and figure each, at least.
        context: what else the template names.
    """
    given = [each if isinstance(each, Figure) else Figure(*each) for each in figures]
    carries = any(isinstance(each.figure, go.Figure) for each in given)
    scripts = [_script("page.js"), *([_plotly()] if carries else [])]
    return (
        make_environment()
        .get_template(template)
        .render(
            figures=[Drawn(each.title, drawing(each), each.note) for each in given],
            plotly=_plotly() if carries else None,
            script=_script("page.js"),
            style=_script("page.css"),
            policy=_policy(scripts),
            **context,
        )
    )


def write(page: str, path: str | Path) -> None:
    """Write a page that `render` made."""
    Path(path).write_text(page, encoding="utf-8")


def frame(pairs: PromptPairs, baseline: Baseline | None) -> dict[str, Any]:
    """What ``base.html`` shows of a run on prompt pairs besides its answer: baseline and prompts, for `render`."""
    nothing = [None] * len(pairs)
    clean, corrupted = (nothing, nothing) if baseline is None else (baseline.clean, baseline.corrupted)
    return {"pairs": pairs, "examples": list(zip(pairs, clean, corrupted, strict=True))[:EXAMPLES_SHOWN]}


def prompts_shown(
    pairs: PromptPairs, baseline: Baseline | None, metric: str, unit: str, name: str = ""
) -> dict[str, Any]:
    """Baseline and example prompts, for the macro ``prompt_tables``.

    Args:
        name: which prompts, where a run has several kinds of them.
    """
    return {"metric": metric, "unit": unit, "baseline": baseline, "name": name, **frame(pairs, baseline)}


def drawing(figure: Figure) -> Markup:
    """The markup of a figure, under the id ``figure-<name>``; the page's script draws those of plotly."""
    if isinstance(figure.figure, Markup):
        return Markup('<div id="figure-{}">{}</div>').format(figure.name, figure.figure)
    content = json.loads(figure.figure.to_json())
    return Markup('<div id="figure-{}"></div><script type="application/json" class="plotly-data">{}</script>').format(
        figure.name, data(content)
    )


def data(value: Any) -> Markup:
    """JSON that may stand inside a script element, whatever texts it holds; numbers that are not finite become null."""
    return htmlsafe_json_dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)


def plain(text: str) -> str:
    """Text for a label of plotly, which would read tags and entities in it as HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def make_environment() -> jinja2.Environment:
    """What all pages are made with: everything from outside is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["signed"] = "{:+.4g}".format
    environment.filters["percent"] = "{:+.1%}".format
    environment.filters["short"] = "{:.2g}".format
    environment.globals["words"] = words
    environment.globals["standard_error"] = standard_error
    environment.globals["to_json"] = to_json
    return environment


def to_json(value: Any) -> str:
    """For people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


@cache
def _plotly() -> Markup:
    return Markup(plotly.offline.get_plotlyjs().replace("</script", "<\\/script"))


@cache
def _script(name: str) -> Markup:
    return Markup((Path(__file__).parent / "templates" / name).read_text("utf-8"))


def _policy(scripts: Sequence[Markup]) -> str:
    """Nothing is loaded, and no script runs but these: an escape that were missing somewhere would still do nothing."""
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in scripts]
    return f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {' '.join(hashes)}"
