"""The page of a tested circuit: one file that opens offline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup

from assay.circuits.found import FoundCircuit
from assay.report import circuit as words
from assay.report.circuit_drawing import caption, is_wide, to_svg
from assay.report.figures import INK_SOFT, NEGATIVE, POSITIVE, styled
from assay.report.html import prompts_shown, render, write
from assay.report.words import kicker, stages

SCORES_SHOWN = 40


def write_circuit_page(found: FoundCircuit, path: str | Path) -> None:
    """Write the page: answer, curve, drawing, largest scores, how to reproduce it."""
    details = {
        "configuration": found.scores.configuration,
        "setting": found.setting,
        "cost": {"scores": found.scores.cost, "stages": found.costs},
        "provenance": found.provenance,
    }
    page = render(
        "circuit.html",
        figures=[("curve", "Faithfulness over circuit size", curve(found))],
        found=found,
        kicker=kicker(found.provenance, found.evaluated, found.scores.metric, f"{found.level} level"),
        title=words.question(found),
        answer=words.answer(found),
        label=words.label_sentence(found),
        split=words.split_sentence(found),
        metric=words.metric_sentence(found),
        ends_columns=words.ENDS_COLUMNS,
        ends_rows=words.ends_table(found),
        curve_columns=words.curve_columns(found),
        meaning_of_faithfulness=words.meaning_of_faithfulness(found),
        meaning_of_scores=words.meaning_of_scores(found),
        verdict=f"{words.verdict(found)}: {words.VERDICTS[words.verdict(found)]}",
        next_step=words.next_step(found, "FOLDER"),
        curve_rows=words.curve_rows(found),
        circuit=Markup(to_svg(found)),
        caption=caption(found),
        wide=is_wide(found),
        score_columns=words.score_columns(found),
        score_rows=words.score_rows(found, SCORES_SHOWN),
        prompts=prompts_shown(found.evaluated, found.baseline, found.scores.metric, found.scores.unit),
        stages=stages(found.costs),
        cited=_cited(found),
        kept="All scores are in scores.parquet beside this page, the circuit in circuit.dot; "
        "assay.circuits.FoundCircuit.load(folder) reads them.",
        details=details,
    )
    write(page, path)


def _cited(found: FoundCircuit) -> str:
    given = found.provenance
    source = f" ({given['method_source']})" if given.get("method_source") else ""
    version = f", as implemented in assay {given['versions']['assay']}" if given.get("versions") else ""
    whole = (
        f"Method: {found.scores.method}{source}{version}. Faithfulness, CPR and CMD: Mueller et al., arXiv 2504.13151."
    )
    return f"{whole} Completeness: Marks et al., arXiv 2403.19647." if found.absolute.complement else whole


def curve(found: FoundCircuit) -> go.Figure:
    """Faithfulness over size by both rankings and of random circuits, with intervals; on either axis."""
    figure = go.Figure()
    shown = [i for i, count in enumerate(found.signed.counts) if count]
    drawn = [("by score (CPR)", found.signed, POSITIVE), ("by |score| (CMD)", found.absolute, NEGATIVE)]
    if found.random is not None:
        drawn.append(("random", found.random, INK_SOFT))
    sizes = [found.signed.curve.sizes[i] for i in shown]
    for name, curve, colour in drawn:
        value, lower, upper = np.array(curve.curve.faithfulness)[shown].T
        bars = None if np.isnan(lower).any() else {"array": upper - value, "arrayminus": value - lower, "thickness": 1}
        figure.add_scatter(
            x=sizes, y=value, error_y=bars, name=name, mode="lines+markers", line={"color": colour},
            customdata=[curve.counts[i] for i in shown],
            hovertemplate=f"size %{{x}}: %{{customdata}} {words.ITEMS[found.level]}<br>f %{{y:.3f}}<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=1, line={"color": "#98a2b3", "dash": "dash"})
    ticks = {
        "log": {"tickvals": sizes, "ticktext": [f"{size:g}" for size in sizes]},
        "linear": {"tickvals": [0, 0.1, 0.2, 0.5, 1], "ticktext": ["0", "0.1", "0.2", "0.5", "1"]},
    }
    buttons = [
        {
            "label": f"{kind} axis",
            "method": "relayout",
            "args": [{"xaxis.type": kind, "xaxis.autorange": True, **{f"xaxis.{k}": v for k, v in of_kind.items()}}],
        }
        for kind, of_kind in ticks.items()
    ]
    title = f"size: share of the {words.ITEMS[found.level]} that were scored"
    figure.update_xaxes(title_text=title, type="log", tickangle=0, **ticks["log"])
    figure.update_yaxes(title_text="faithfulness f")
    styled(figure, height=430)
    return figure.update_layout(
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        margin={"t": 40, "b": 90},
        updatemenus=[
            {"type": "buttons", "direction": "right", "buttons": buttons, "x": 0.5, "xanchor": "center", "y": -0.2,
             "yanchor": "top", "pad": {"r": 0, "t": 0}, "bgcolor": "#d5dae3",
             "font": {"size": 11, "color": "#1a2130"}}
        ],
    )  # fmt: skip
