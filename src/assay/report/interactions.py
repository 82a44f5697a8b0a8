"""Interactions in the terminal, as a page and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from rich.console import Console
from rich.markup import escape

from assay.interactions.joint_ablation import GroupEffect
from assay.interactions.pairs import Interactions
from assay.report import words
from assay.report.figures import INK_SOFT, POSITIVE, styled
from assay.report.html import prompts_shown
from assay.report.tables import Figure, Table, number, plus_minus, print_tables, write_tables_page
from assay.report.terminal import KeptMetric, print_baseline

PAIRS_SHOWN, GROUPS_SHOWN = 20, 20
DIVERGING = [[0.0, "#2166ac"], [0.5, "#f7f7f7"], [1.0, "#b2182b"]]


def question(result: Interactions) -> str:
    name = result.provenance["model"]["name"]
    return f"Which components of {name} stand in for each other, in {result.pairs.behaviour}?"


def answer(result: Interactions) -> list[str]:
    """What was found, in a few sentences."""
    sentences = []
    if result.group is not None:
        group = result.group
        sentences.append(
            f"Ablated together ({result.ablation}), {len(group.names)} components lose {group.joint.mean():.3g} "
            f"{result.unit} of {result.metric}; each alone loses {group.single.mean():.3g} on average. Joint loss over "
            f"mean single loss: {group.over_mean_single}; over the sum of single losses: {group.over_sum_of_singles}."
        )
    if len(result.couples):
        sentences.append(_strongest(result))
        found = result.redundant()
        told = "; ".join(", ".join(members) for members in found[:3])
        more = f" ({told}{'; ...' if len(found) > 3 else ''})" if found else ""
        run = "all" if result.is_complete else "the"
        sentences.append(
            f"Of {run} {len(result.couples)} pairs that were run, {len(found)} redundant groups come out{more}: half "
            "or more of their pairs' joint loss is hidden from single ablations."
        )
    if (agreement := result.agreement()) is not None:
        sentences.append(
            f"Second order against the interactions that were run: correlation {number(agreement['pearson'], '')} "
            f"(ranks {number(agreement['spearman'], '')}) over {agreement['pairs']} pairs."
        )
    return sentences


def _strongest(result: Interactions) -> str:
    """The pair of largest interaction among those that were run, and what that means."""
    row = result.to_pandas().iloc[0]
    other = "than the sum of their single losses"
    more = "more" if row["interaction"] > 0 else "less"
    size = plus_minus(abs(row["interaction"]), row["stderr"]).lstrip("+")
    told = f"together they lose {size} {result.unit} {more} {other}"
    how = "stand in for each other" if row["interaction"] > 0 else "need each other, or one acts through the other"
    return f"{row['first']} and {row['second']} interact most: {told}, so they {how}."


def tables(result: Interactions, top: int = PAIRS_SHOWN) -> list[Table]:
    """The group, the largest interactions, the redundant groups."""
    found = [] if result.group is None else [_table_of_group(result, result.group)]
    frame = result.to_pandas().head(top)
    has_second = result.second is not None
    found.append(
        Table(
            "Largest interactions",
            ["pair", "E1", "E2", "E12", "interaction", "hidden", *(["second order"] if has_second else [])],
            [
                [f"{row.first}, {row.second}", number(row.single_first), number(row.single_second), number(row.joint),
                 plus_minus(row.interaction, row.stderr), f"{row.hidden:.0%}",
                 *([number(row.second_order)] if has_second else [])]
                for row in frame.itertuples()
            ],
            short="Pairs",
            note=f"E1, E2, E12: what {result.metric} loses, in {result.unit}, without the first, the second, both. "
            "interaction: E12 - E1 - E2, ± its standard error over prompts; above 0 the two stand in for each other, "
            "below 0 they need each other or one acts through the other. hidden: interaction / E12, 0 where the "
            "interaction is within noise of all the pairs."
            + (" second order: the interaction by second derivatives at the clean run." if has_second else ""),
        )
    )  # fmt: skip
    redundant = [[str(len(members)), ", ".join(members)] for members in result.redundant()[:GROUPS_SHOWN]]
    found.append(
        Table(
            "Redundant groups", ["components", "names"], redundant, left=2,
            short="Groups",
            note="Average linkage on 1 - hidden, cut at one half, over the pairs that were run.",
        )
    )  # fmt: skip
    return found


def _table_of_group(result: Interactions, group: GroupEffect) -> Table:
    found = group.summary()
    lines = [
        [name, plus_minus(found[key]["mean"], found[key]["stderr"])]
        for name, key in (
            ("joint loss", "joint"),
            ("mean of single losses", "mean_single"),
            ("sum of single losses", "sum_of_singles"),
        )
    ]
    lines.append(["joint over mean single", str(group.over_mean_single)])
    lines.append(["joint over sum of singles", str(group.over_sum_of_singles)])
    if group.second_order is not None:
        lines.append(["joint by first derivatives", number(group.first_order)])
        lines.append(["joint by first and second", number(group.second_order)])
    return Table(
        f"The group: {', '.join(group.names)}", ["", f"{result.metric} ({result.unit})"], lines,
        short="The group",
        note="In brackets: 95 % bootstrap intervals over prompts. A ratio is told only where the single losses are "
        "beyond noise.",
    )  # fmt: skip


def figures(result: Interactions) -> list[Figure]:
    """The matrix, and second order against what was run."""
    order, groups = _in_groups(result)
    matrix, names = result.matrix()[np.ix_(order, order)], [result.names[i] for i in order]
    size = float(np.nanmax(np.abs(matrix), initial=0.0)) or 1.0
    heat = go.Figure(
        go.Heatmap(
            z=matrix, x=names, y=names, colorscale=DIVERGING, zmin=-size, zmax=size,
            colorbar={"title": {"text": result.unit}, "thickness": 12},
            hovertemplate="%{y}, %{x}<br>interaction %{z:+.3g}<extra></extra>",
        )
    )  # fmt: skip
    heat.update_yaxes(autorange="reversed")
    heat.update_xaxes(tickangle=90)
    start = 0
    for size_of in groups:  # redundant groups are framed
        low, high = start - 0.5, start + size_of - 0.5
        heat.add_shape(type="rect", x0=low, x1=high, y0=low, y1=high, line={"color": INK_SOFT, "width": 2})
        start += size_of
    how = "" if result.is_complete else " (second order where not run)"
    note = "Red: the two stand in for each other. Blue: they need each other, or one acts through the other."
    note += " Framed: redundant groups." if groups else ""
    found = [Figure("matrix", f"Interaction of each pair{how}", styled(heat, height=560), note)]
    if result.second is not None and len(result.couples):
        predicted = result.second[result.couples[:, 0], result.couples[:, 1]]
        exact = result.interaction.mean(1)
        names = [f"{result.names[i]}, {result.names[j]}" for i, j in result.couples.tolist()]
        ends = [float(min(exact.min(), 0)), float(max(exact.max(), 0))]
        scatter = go.Figure(
            go.Scatter(x=exact, y=predicted, text=names, mode="markers", marker={"color": POSITIVE, "size": 5},
                       hovertemplate="%{text}<br>run %{x:+.3g}, second order %{y:+.3g}<extra></extra>",
                       showlegend=False)
        )  # fmt: skip
        scatter.add_scatter(
            x=ends, y=ends, mode="lines", line={"color": "#98a2b3", "dash": "dash"}, showlegend=False, hoverinfo="skip"
        )
        scatter.update_xaxes(title_text=f"interaction as run ({result.unit})")
        scatter.update_yaxes(title_text="second order")
        found.append(Figure("second-order", "Second order against what was run", styled(scatter, height=560)))
    return found


def _in_groups(result: Interactions) -> tuple[list[int], list[int]]:
    """Components, members of redundant groups first and side by side, and the sizes of these groups."""
    found = result.redundant() if len(result.couples) else []
    first = [result.names.index(name) for members in found for name in members]
    return [*first, *(i for i in range(len(result.names)) if i not in set(first))], [len(members) for members in found]


def print_interactions(console: Console, result: Interactions, top: int = PAIRS_SHOWN) -> None:
    """Question, answer, baseline, tables, cost."""
    console.print(f"\n[bold]{escape(question(result))}[/bold]")
    for sentence in answer(result):
        console.print(escape(sentence), highlight=False)
    metric = KeptMetric(result.metric, **result.provenance["metric"])
    print_baseline(console, result.baseline, metric, result.provenance["metric_chosen_because"])
    print_tables(console, tables(result, top))
    spent = result.cost
    console.print(
        f"Cost: {spent['forward_equivalents']:.1f} forward-equivalents, {sum(spent['seconds'].values()):.1f} s",
        style="dim",
    )


def write_interactions_page(result: Interactions, path: str | Path) -> None:
    """Write the page: one file that opens offline."""
    write_tables_page(
        path, title=question(result), answer=answer(result), tables=tables(result, 50), figures=figures(result),
        kicker=words.kicker(
            result.provenance, result.pairs, f"{result.metric} in {result.unit}", f"{result.ablation} ablation"
        ),
        prompts=[prompts_shown(result.pairs, result.baseline, result.metric, result.unit)],
        stages=words.stages(result.cost),
        kept="Losses per prompt are in scores.parquet beside this page; assay.Interactions.load(folder) reads them.",
        provenance=result.provenance,
        details={"configuration": result.configuration, "cost": result.cost, "provenance": result.provenance},
    )  # fmt: skip


def as_json(result: Interactions, top: int) -> dict[str, Any]:
    """Summary, the largest interactions, each component."""
    return {
        "metric": result.metric,
        "unit": result.unit,
        "ablation": result.ablation,
        "summary": result.summary(),
        "pairs": json.loads(result.to_pandas().head(top).to_json(orient="records")),
        "components": json.loads(result.per_component().to_json(orient="records")),
        "cost": result.cost,
        "configuration": result.configuration,
        "provenance": result.provenance,
    }
