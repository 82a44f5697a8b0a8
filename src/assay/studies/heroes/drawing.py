"""The page's figures."""

from __future__ import annotations

import numpy as np
import pandas as pd

from assay.audit.result import BEYOND, MAGNITUDE, WITHIN
from assay.studies.heroes.claims import EXACT
from assay.studies.heroes.tables import trained
from assay.studies.pages import SHORT
from assay.studies.svg import Dots, Line, dot_chart, line_chart

SHORT_SETS = {WITHIN: "in", BEYOND: "out"}


def figures(tables: dict[str, pd.DataFrame], along: dict[tuple[str, int], pd.DataFrame]) -> dict[str, str]:
    """SVG by file name."""
    found = {}
    for task in dict.fromkeys(trained(tables["correlations"])["task"]):
        found[f"rho-{task}.svg"] = _rho(tables["correlations"], task)
        found |= _pruning(tables["pruning"], task)
        of_task = {seed: table for (name, seed), table in along.items() if name == task}
        if of_task:
            found[f"training-{task}.svg"] = _along(of_task)
    found["layers.svg"] = _layers(tables["components"])
    return found


def _rho(table: pd.DataFrame, task: str) -> str:
    rows = trained(table)
    rows = rows[(rows["task"] == task) & (rows["cause"] == EXACT)]
    seeds = sorted(set(rows["seed"]))
    series = []
    for measure, of_set in ((MAGNITUDE, WITHIN), (MAGNITUDE, BEYOND), ("|grad.delta|", BEYOND)):
        part = rows[(rows["measure"] == measure) & (rows["set"] == of_set)].set_index("seed").reindex(seeds)
        series.append(Dots(f"{measure}, {of_set}", *(part[name].tolist() for name in ("rho", "lower", "upper"))))
    return dot_chart([f"seed {seed}" for seed in seeds], series, x_title=f"Spearman's rho with cause, {task}")


def _pruning(table: pd.DataFrame, task: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if table.empty:
        return found
    for of_set, short in SHORT_SETS.items():
        means = (
            table.query("task == @task and set == @of_set").groupby(["measure", "ablated"], sort=False)["mean"].mean()
        )
        if means.empty:
            continue
        lines = [
            Line(name, means.loc[name].index.tolist(), means.loc[name].tolist(), name == "random")
            for name in dict.fromkeys(means.index.get_level_values(0))
        ]
        title = "components ablated"
        found[f"pruning-{task}-{short}.svg"] = line_chart(lines, x_title=title, y_title=f"exact match, {of_set}")
    return found


def _along(tables: dict[int, pd.DataFrame]) -> str:
    shown = {"rho_out_G": "rho of G", "rho_out_|grad.delta|": "of grad.delta", "metric_out": "accuracy"}
    lines = [
        Line(f"seed {seed}, {title}", table["step"].tolist(), table[name].astype(float).tolist(), name == "metric_out")
        for seed, table in tables.items()
        for name, title in shown.items()
    ]
    return line_chart(lines, x_title="step", y_title="out of distribution", log_x=True)


def _layers(table: pd.DataFrame) -> str:
    """Mean Delta, as a share of the components, by depth; of the last set of prompts of each model."""
    rows = table[(table["model"] != "") | (table["set"] == BEYOND)].copy()
    rows["what"] = np.where(
        rows["model"] == "", rows["task"], rows["model"].map(lambda name: SHORT.get(name, name)) + ", " + rows["task"]
    )
    lines = []
    for what, part in rows.groupby("what", sort=False):
        count = part["component"].nunique()
        means = part.groupby("layer")["delta"].mean() / count
        depth = means.index.to_numpy(float) / max(1, means.index.max())
        lines.append(Line(str(what), depth.tolist(), means.tolist()))
    return line_chart(lines, x_title="depth of the layer (0 first, 1 last)", y_title="mean Delta / components")
