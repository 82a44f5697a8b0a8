"""An audit in the terminal, as a page and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from rich.console import Console
from rich.markup import escape

from assay.audit.ranks import CLASSES, SHARE, UNSETTLED
from assay.audit.result import CAUSE, MAGNITUDE, Audit, AuditedSet
from assay.report import words
from assay.report.figures import INK_SOFT, NEGATIVE, POSITIVE, styled
from assay.report.html import prompts_shown
from assay.report.tables import Figure, Table, number, plus_minus, print_tables, write_tables_page
from assay.report.terminal import KeptMetric, print_baseline

COMPONENTS_SHOWN = 20
SYMBOLS = {"hero": "triangle-up", "bloat": "square", "aligned": "circle", UNSETTLED: "circle-open"}
DASHES = ("solid", "dash", "dot", "dashdot")
COLOURS = {"hero": POSITIVE, "bloat": NEGATIVE, "aligned": "#98a2b3", UNSETTLED: "#98a2b3"}
PALETTE = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#666666")


def question(result: Audit) -> str:
    name = result.provenance["model"]["name"]
    return f"Does the size of a gradient tell what matters in {name}, for {result.sets[0].pairs.behaviour}?"


def answer(result: Audit) -> list[str]:
    """What was found, in a few sentences."""
    sentences = []
    for of in result.sets:
        audit = of.audits[MAGNITUDE]
        told = f"{of.name.capitalize()}, gradient magnitude and causal loss rank {len(result.components)} components "
        sentences.append(told + f"with a correlation of {_rho(audit.rho, audit.rho_lower, audit.rho_upper)}.")
    heroes, bloats = result.members("hero"), result.members("bloat")
    sentences.append(
        f"Hidden heroes ({result.last.name}): {', '.join(heroes) or 'none'}. Gradient bloats: "
        f"{', '.join(bloats) or 'none'}. Unsettled: {len(result.members(UNSETTLED))}."
    )
    return sentences


def tables(result: Audit, top: int = COMPONENTS_SHOWN) -> list[Table]:
    """Correlations, components, layers, and what pruning gave."""
    found = [_correlations(result), _components(result, result.last, top), _layers(result)]
    return found if result.pruning is None else [*found, *_pruned(result)]


def _correlations(result: Audit) -> Table:
    return Table(
        "Correlation with causal losses (Spearman)",
        ["prompts", "measure", "rho", *CLASSES, UNSETTLED],
        [
            [row.set, row.measure, _rho(row.rho, row.lower, row.upper),
             *(str(getattr(row, name)) for name in (*CLASSES, UNSETTLED))]
            for row in result.correlations().itertuples()
        ],
        left=2,
        short="Correlations",
        note=f"{MAGNITUDE}: norm of the loss gradient of a component's weights over the square root of their number. "
        f"Others: the gradient of {result.gradient_metric} met with the ablation's own change. In brackets: 95 % "
        "bootstrap intervals over prompts and batches.",
    )  # fmt: skip


def _components(result: Audit, of: AuditedSet, top: int) -> Table:
    limit = SHARE * len(result.components)
    return Table(
        f"Components, {of.name}",
        ["component", CAUSE, MAGNITUDE, "rank G", "rank C", "Delta", "class", "p"],
        [
            [row["component"], plus_minus(row[CAUSE], row["stderr"]), number(row[MAGNITUDE], ""),
             f"{row['rank_G']:g}", f"{row['rank_C']:g}",
             f"{row['delta']:+g} ({row['delta_lower']:+.3g} to {row['delta_upper']:+.3g})", row["class"],
             f"{max(row[f'p_{name}'] for name in CLASSES):.2f}"]
            for row in result.to_pandas(of).head(top).to_dict("records")
        ],
        short="Components",
        note=f"{CAUSE}: what {result.metric} loses, in {result.unit}, under {result.ablation} ablation, ± its standard "
        f"error. Delta: rank by {MAGNITUDE} less rank by {CAUSE}; hero at -{limit:.3g} or less, bloat at {limit:.3g} "
        "or more. p: share of bootstrap draws that give the likeliest class; below 0.9 it is unsettled.",
    )  # fmt: skip


def _layers(result: Audit) -> Table:
    return Table(
        f"Layers, {result.last.name}",
        ["layer", CAUSE, MAGNITUDE, "Delta", *CLASSES, UNSETTLED],
        [
            [str(row["layer"]), number(row[CAUSE]), number(row[MAGNITUDE], ""), number(row["delta"]),
             *(str(row[name]) for name in (*CLASSES, UNSETTLED))]
            for row in result.layer_profile().to_dict("records")
        ],
        short="Layers",
        note="Means over the layer's components, and how many there are of each class.",
    )  # fmt: skip


def _pruned(result: Audit) -> list[Table]:
    assert result.pruning is not None
    kept = result.pruning.kept()
    names = list(result.pruning.orders)
    lines = []
    for name in names:
        cells = [kept[(kept["set"] == of.name) & (kept["measure"] == name)].iloc[0] for of in result.sets]
        lines.append([name, *(plus_minus(cell["mean"], cell["stderr"]) for cell in cells)])
    groups = [
        [row["set"], f"{row['class']} ({row['components']})", number(row["mean_single"]), number(row["joint"]),
         row["joint_over_mean_single"], row["joint_over_sum_of_singles"]]
        for row in result.pruning.table().to_dict("records")
    ]  # fmt: skip
    return [
        Table(
            "Heroes and bloats, one by one and together",
            ["prompts", "class", "mean single", "joint", "joint / mean single", "joint / sum of singles"], groups, 2,
            short="Groups",
            note=f"Losses of {result.metric} on the first {len(result.pruning.sets[0].clean)} prompts. Ratios with "
            "95 % intervals, where single losses are beyond noise.",
        ),
        Table(
            f"{result.metric} while components are pruned, averaged over all sizes",
            ["order of", *(of.name for of in result.sets)], lines,
            short="Pruning",
            note="The least important go first; higher is better. random: one random order.",
        ),
    ]  # fmt: skip


def figures(result: Audit) -> list[Figure]:
    """Ranks, layers, and the metric while components are pruned."""
    found = [Figure("ranks", f"Rank by gradient magnitude and by cause, {result.last.name}", _ranks(result))]
    found.append(Figure("layers", "Delta by layer", _delta_by_layer(result)))
    if result.pruning is not None:
        for i, of in enumerate(result.pruning.sets):
            figure = go.Figure()
            for i_line, (name, table) in enumerate(of.values.items()):
                line = {"color": PALETTE[i_line % len(PALETTE)], "dash": DASHES[i_line % len(DASHES)]}
                figure.add_scatter(x=result.pruning.sizes, y=table.mean(1), name=name, line=line)
            figure.update_xaxes(title_text="components ablated, least important first")
            figure.update_yaxes(title_text=result.metric)
            found.append(Figure(f"pruning-{i}", f"Pruning, {of.name}", styled(figure, height=380)))
    return found


def _ranks(result: Audit) -> go.Figure:
    frame, figure = result.to_pandas(), go.Figure()
    for name in (*CLASSES, UNSETTLED):
        mine = frame[frame["class"] == name]
        figure.add_scatter(
            x=mine["rank_C"], y=mine["rank_G"], text=mine["component"], name=name,
            mode="markers" if name == UNSETTLED else "markers+text",
            textposition="top center",
            marker={"color": COLOURS[name], "symbol": SYMBOLS[name], "size": 9},
            hovertemplate="%{text}: rank by cause %{x}, by gradient %{y}",
        )  # fmt: skip
    figure.update_xaxes(title_text=f"rank by cause ({result.ablation} ablation)")
    figure.update_yaxes(title_text="rank by gradient magnitude")
    return styled(figure, height=420).update_layout(
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"}, margin={"t": 36}
    )


def _delta_by_layer(result: Audit) -> go.Figure:
    frame = result.to_pandas()
    figure = go.Figure(
        go.Box(x=frame["layer"], y=frame["delta"], boxpoints="all", pointpos=0, marker={"color": INK_SOFT, "size": 5},
               text=frame["component"], showlegend=False)
    )  # fmt: skip
    figure.update_xaxes(title_text="layer")
    figure.update_yaxes(title_text="Delta (heroes below, bloats above)")
    return styled(figure, height=420)


def print_audit(console: Console, result: Audit, top: int = COMPONENTS_SHOWN) -> None:
    """Question, answer, baseline, tables, cost."""
    console.print(f"\n[bold]{escape(question(result))}[/bold]")
    for sentence in answer(result):
        console.print(escape(sentence), highlight=False)
    metric = KeptMetric(result.metric, **result.provenance["metric"])
    for of in result.sets:
        print_baseline(console, of.baseline, metric, f"{of.name}, {len(of.pairs)} prompts")
    print_tables(console, tables(result, top))
    seconds = sum(sum(spent["seconds"].values()) for of in result.cost.values() for spent in of.values())
    console.print(f"Cost: {seconds:.1f} s", style="dim")


def write_audit_page(result: Audit, path: str | Path) -> None:
    """Write the page: one file that opens offline."""
    write_tables_page(
        path, title=question(result), answer=answer(result), tables=tables(result, len(result.components)),
        figures=figures(result), provenance=result.provenance,
        kicker=words.kicker(result.provenance, result.sets[0].pairs, result.metric, f"{result.ablation} ablation"),
        prompts=[
            prompts_shown(of.pairs, of.baseline, result.metric, result.unit, of.name if len(result.sets) > 1 else "")
            for of in result.sets
        ],
        stages=words.stages(result.cost),
        kept="All losses and estimates are in scores.parquet beside this page; assay.Audit.load(folder) reads them.",
        details={"configuration": result.configuration, "cost": result.cost, "provenance": result.provenance},
    )  # fmt: skip


def as_json(result: Audit, top: int) -> dict[str, Any]:
    """Summary, and the components of each set."""
    return {
        "metric": result.metric,
        "unit": result.unit,
        "ablation": result.ablation,
        "gradient_metric": result.gradient_metric,
        "summary": json.loads(json.dumps(result.summary())),
        "components": {
            of.name: json.loads(result.to_pandas(of).head(top).to_json(orient="records")) for of in result.sets
        },
        "layers": json.loads(result.layer_profile().to_json(orient="records")),
        "cost": result.cost,
        "configuration": result.configuration,
        "provenance": result.provenance,
    }


def _rho(value: float, lower: float, upper: float) -> str:
    return f"{number(value, '')} ({number(lower, '')} to {number(upper, '')})"
