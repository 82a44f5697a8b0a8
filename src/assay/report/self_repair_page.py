"""The page of a run of self-repair: one file that opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from assay.interactions import SelfRepair
from assay.interactions.result import hidden, interaction
from assay.report import words
from assay.report.figures import NEGATIVE, POSITIVE, styled
from assay.report.html import prompts_shown, render, write
from assay.report.self_repair import (
    COMPENSATION_COLUMNS,
    ORDER,
    answer,
    compensation_meaning,
    compensation_sentence,
    described,
    heads_meaning,
    heads_of,
    limit,
    meaning,
    next_step,
    number,
    question,
    restored,
    table_of_compensation,
    table_of_effects,
    table_of_gradients,
)

ROWS_SHOWN, HEADS_SHOWN = 20, 30
SEQUENTIAL = [[0.0, "#f7f7f7"], [0.5, "#f4a582"], [1.0, "#b2182b"]]
LEGEND = "E1, E2, E12: what the metric loses without the first key, the second, both. hidden: E12 - E1 - E2."


def figures(result: SelfRepair) -> list[tuple[str, str, go.Figure]]:
    """Name, title and figure: where the rows are, their interaction, gradients against joint effects, components."""
    over = result.summary()["absolute"]["rows"]
    where = f"Rows per prompt with two keys {limit(result, 'relative')}"
    found = [("map", f"{where} ({limit(result, 'absolute')}: {over} in all, shown on hover)", _map(result))]
    if len(result.rows):
        means = "1: no single ablation shows anything; beyond ±2: at the edge"
        found.append(("interaction", f"Interaction (E12 − E1 − E2) / E12 of each row ({means})", _histogram(result)))
        found.append(("gradients", "What gradients say of E12 (frozen)", _gradients(result)))
    if result.compensation is not None:
        found.append(("compensation", "Direct and whole effect of each head", _compensation(result)))
    return found


def _map(result: SelfRepair) -> go.Figure:
    frame, shape = result.per_head(), (result.layers, result.heads)
    grid, over = (frame[name].to_numpy().reshape(shape) for name in ("relative", "absolute"))
    figure = go.Figure(
        go.Heatmap(
            z=grid,
            customdata=over,
            colorscale=SEQUENTIAL,
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": "rows"}, "thickness": 12},
            hovertemplate=(
                "layer %{y}, head %{x}<br>rows per prompt: %{z:.3g}<br>"
                f"{limit(result, 'absolute')}: %{{customdata:.3g}}<extra></extra>"
            ),
        )
    )
    figure.update_xaxes(title_text="head", dtick=1 if result.heads <= 16 else None)
    figure.update_yaxes(title_text="layer", autorange="reversed", dtick=1 if result.layers <= 16 else 5)
    return styled(figure, height=max(300, 90 + 14 * result.layers))


def _histogram(result: SelfRepair) -> go.Figure:
    figure = go.Figure()
    drawn = result.rows[result.rows["drawn"]]
    for name, rows, readout, colour in (
        ("frozen", result.rows, "frozen", NEGATIVE),
        ("rerun", drawn, "true", POSITIVE),
    ):
        values = interaction(rows, readout).dropna().clip(-2, 2)
        bins = {"start": -2, "end": 2.0001, "size": 0.1}
        figure.add_histogram(x=values, name=name, xbins=bins, marker_color=colour, opacity=0.6)
    figure.update_xaxes(title_text="interaction")
    figure.update_yaxes(title_text="rows")
    return styled(figure, height=360).update_layout(barmode="overlay", legend={"orientation": "h", "y": 1.1})


def _gradients(result: SelfRepair) -> go.Figure:
    rows = result.rows
    figure = go.Figure()
    for name, column, colour in (
        ("gradient", "gradient", NEGATIVE),
        (f"T = {result.temperature:g}", "tempered", POSITIVE),
    ):
        figure.add_scatter(
            x=rows["frozen_joint"], y=rows[column], name=name, mode="markers", marker={"color": colour, "size": 5},
            hovertemplate="E12 %{x:+.3g}, predicted %{y:+.3g}<extra></extra>",
        )  # fmt: skip
    _diagonal(figure, rows["frozen_joint"].to_numpy())
    figure.update_xaxes(title_text=f"E12 ({result.unit})")
    figure.update_yaxes(title_text="first-order prediction")
    return styled(figure, height=360).update_layout(legend={"orientation": "h", "y": 1.1})


def _compensation(result: SelfRepair) -> go.Figure:
    assert result.compensation is not None
    frame = result.compensation.to_pandas()
    figure = go.Figure(
        go.Scatter(
            x=frame["direct"], y=frame["total"], text=frame["component"], mode="markers", showlegend=False,
            marker={"color": POSITIVE, "size": 7},
            hovertemplate="%{text}<br>direct %{x:+.3g}, whole %{y:+.3g}<extra></extra>",
        )
    )  # fmt: skip
    _diagonal(figure, frame["direct"].to_numpy())
    figure.update_xaxes(title_text=f"direct effect ({result.unit})")
    figure.update_yaxes(title_text="whole effect")
    return styled(figure, height=360)


def _diagonal(figure: go.Figure, values: np.ndarray) -> None:
    ends = [float(values.min(initial=0.0)), float(values.max(initial=0.0))]
    line = {"color": "#98a2b3", "dash": "dash"}
    figure.add_scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip")


def _pieces(result: SelfRepair, row: Any) -> list[tuple[str, str, str]]:
    """Of each token: the spaces in front of it, itself, its mark. A line may break between the first two."""
    pieces = []
    for token, mark in result.text(row):
        rest = token.lstrip(" ") or token
        pieces.append((token[: len(token) - len(rest)], rest, mark))
    return pieces


def write_self_repair_page(result: SelfRepair, path: str | Path) -> None:
    """Write the page: one file that opens offline."""
    worst = list(result.worst(ROWS_SHOWN).itertuples())
    components, model = result.compensation is not None, result.provenance["model"]
    page = render(
        "self_repair.html",
        figures=figures(result),
        result=result,
        kicker=words.kicker(result.provenance, result.pairs, f"{result.metric} in {result.unit}"),
        title=question(result),
        answer=answer(result),
        readouts=[table_of_effects(result), table_of_gradients(result)] if len(result.rows) else [],
        meaning=meaning(result),
        next_step=next_step(result),
        restored=restored(result),
        legend=f"{LEGEND} {ORDER}",
        heads_meaning=heads_meaning(result),
        heads=heads_of(result, HEADS_SHOWN),
        worst=[(described(row), number(hidden(result.rows.loc[[row.Index]], "frozen").item()), _pieces(result, row))
               for row in worst],
        compensation=compensation_sentence(result) if components else "",
        compensation_meaning=compensation_meaning(result) if components else "",
        compensation_columns=COMPENSATION_COLUMNS,
        compensated=table_of_compensation(result, HEADS_SHOWN) if components else [],
        prompts=prompts_shown(result.pairs, result.baseline, result.metric, result.unit),
        stages=words.stages(result.cost),
        cited=f"Model: {model['name']}, weights {model['weights_sha256'][:16]}. Source: "
        f"{result.provenance['method_source']}, as implemented in assay {result.provenance['versions']['assay']}.",
        kept="Every row is in rows.parquet beside this page; assay.SelfRepair.load(folder) reads it.",
        details={"configuration": result.configuration, "cost": result.cost, "provenance": result.provenance},
    )  # fmt: skip
    write(page, path)
