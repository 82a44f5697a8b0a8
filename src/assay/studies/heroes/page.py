"""The study's page: tables and figures of `tables`, in the words of a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.audit.result import BEYOND, MAGNITUDE, WITHIN
from assay.errors import StoreError
from assay.studies.heroes import drawing
from assay.studies.heroes.claims import EXACT, claims, shown, shown_percent
from assay.studies.heroes.measuring import LOG_PROB
from assay.studies.heroes.settings import FULL, SEQUENCES, WINDOW, Setting, Sizes
from assay.studies.heroes.tables import (
    Estimate,
    Measured,
    correlations,
    group_effects,
    over_seeds,
    pruned,
    ratio_over_seeds,
    read_along,
    read_setting,
    read_sizes,
    rho,
    roles,
    shortfall,
    stability,
    trained,
)
from assay.studies.pages import SHORT, number, percent, template, write_files

FIGURES = "heroes"
"""Folder beside the page."""
SETS = (WITHIN, BEYOND)
ROLES = ("hero", "bloat", "aligned", "unsettled")


def write_page(folder: Path, page: Path, settings: Sequence[Setting] | None = None) -> list[Path]:
    """Write the page of a study that was measured, as far as it was.

    Args:
        folder: of the study.
        page: a Markdown file; figures and tables of all numbers are written into a folder beside it.
        settings: those to show; all of the study's sizes if None.

    Returns:
        The files written, the page first.

    Raises:
        StoreError: nothing is measured, files are damaged, or the page cannot be written.
    """
    sizes = read_sizes(folder)
    wanted = sizes.settings() if settings is None else list(settings)
    read = {each: read_setting(folder, each) for each in wanted}
    measured = [each for each in read.values() if each is not None]
    if not measured:
        raise StoreError(f"No model in {folder} is audited. Run assay study heroes first.")
    along = {
        (task, seed): table
        for task in SEQUENCES
        for seed in sizes.seeds_along()
        if (table := read_along(folder, task, seed)) is not None
    }
    tables = {
        "correlations": correlations(measured),
        "components": roles(measured),
        "groups": group_effects(measured),
        "pruning": pruned(measured),
    }
    missing = [each.title for each, found in read.items() if found is None]
    missing += [
        f"{task} along its training"
        for task in dict.fromkeys(each.task for each in wanted if each.is_trained)
        if not all((task, seed) in along for seed in sizes.seeds_along())
    ]
    beside = page.parent / FIGURES
    drawn = drawing.figures(tables, along)
    files = {beside / name: svg for name, svg in drawn.items()}
    files[page] = text(tables, measured, sizes, along, missing, list(drawn))
    for name, table in tables.items():
        files[beside / f"{name}.csv"] = table.to_csv(index=False, float_format="%.6g")
    write_files(files)
    return [page, *(path for path in files if path.suffix == ".svg")]


def text(
    tables: dict[str, pd.DataFrame],
    measured: Sequence[Measured],
    sizes: Sizes,
    along: dict[tuple[str, int], pd.DataFrame],
    missing: Sequence[str],
    drawn: Sequence[str],
) -> str:
    """The page in Markdown."""
    rhos, of_components, groups = tables["correlations"], tables["components"], tables["groups"]
    tasks = [task for task in SEQUENCES if any(each.setting.task == task for each in measured)]
    return template("heroes", shown=shown).render(
        claims=claims(rhos, of_components, groups),
        sizes=sizes,
        full=sizes == replace(FULL, seeds=sizes.seeds),
        window=WINDOW,
        missing=missing,
        tasks=tasks,
        trainings=[_training(measured, task) for task in tasks],
        seeds=seeds_table(rhos, tasks),
        measures=measures_table(rhos, tasks),
        shortfalls=[
            found
            for task in tasks
            for of_set in SETS
            if np.isfinite((found := shortfall(rhos, task, of_set, EXACT)).gained.lower)
        ],
        named=named_table(rhos),
        layers=layers_table(of_components, tasks),
        stability=[{"task": task, "set": s, **stability(of_components, task, s)} for task in tasks for s in SETS],
        groups=groups_table(groups, tasks),
        kept=kept_table(tables["pruning"], tasks),
        along=along_table(along),
        models=models_table(rhos, measured),
        figure=lambda name: f"{FIGURES}/{name}" if name in drawn else None,
        numbers={name: f"{FIGURES}/{name}.csv" for name in tables},
    )


def _training(measured: Sequence[Measured], task: str) -> dict[str, Any]:
    chosen = [each.chosen for each in measured if each.setting.task == task and each.setting.is_trained]
    lengths = [each.length for each in chosen if each.length is not None]
    steps = [each.steps for each in chosen if each.steps is not None]
    return {
        "task": task,
        "seeds": len(chosen),
        "reached": sum(bool(each.reached) for each in chosen),
        "steps": f"{min(steps)} to {max(steps)}",
        "held_out": float(np.mean([each.held_out for each in chosen if each.held_out is not None])),
        "lengths": ", ".join(f"{length}: {lengths.count(length)}" for length in sorted(set(lengths))) or "none",
        "without": len(chosen) - len(lengths),
    }


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, numbers to the right of the first column."""
    first, *others = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (heads, *rows))
    return "\n".join([first, "|---|" + "---:|" * (len(heads) - 1), *others])


def _places(tasks: Sequence[str]) -> list[tuple[str, str]]:
    return [(task, of_set) for task in tasks for of_set in SETS]


def _interval(value: float, lower: float, upper: float) -> str:
    return shown(Estimate(value, lower, upper, 1)) if np.isfinite(value) else ""


def seeds_table(table: pd.DataFrame, tasks: Sequence[str]) -> str:
    """rho of G with its interval over examples and batches, a line for each seed."""
    rows = trained(table).query("measure == @MAGNITUDE and cause == @EXACT")
    cells = {
        (row["seed"], row["task"], row["set"]): _interval(row["rho"], row["lower"], row["upper"])
        for row in rows.to_dict("records")
    }
    lines = [
        [str(seed), *(cells.get((seed, *place), "") for place in _places(tasks))] for seed in sorted(set(rows["seed"]))
    ]
    means = [shown(over_seeds(rho(table, *place, MAGNITUDE, EXACT).to_numpy())) for place in _places(tasks)]
    return markdown(
        ["seed", *(f"{task}, {of_set}" for task, of_set in _places(tasks))], [*lines, ["**mean over seeds**", *means]]
    )


def measures_table(table: pd.DataFrame, tasks: Sequence[str]) -> str:
    """Mean rho over seeds: measures by task, set and what cause is measured in."""
    columns = [(*place, cause) for place in _places(tasks) for cause in (EXACT, LOG_PROB)]
    names = list(dict.fromkeys(trained(table)["measure"]))
    rows = [
        [
            f"`{name}`",
            *(shown(over_seeds(rho(table, task, of_set, name, cause).to_numpy())) for task, of_set, cause in columns),
        ]
        for name in names
    ]
    return markdown(["", *(", ".join(column) for column in columns)], rows)


def named_table(table: pd.DataFrame) -> str:
    """Heroes and bloats of a seed: how many each measure gives, by Delta alone and surely."""
    rows = trained(table).query("cause == @EXACT and measure in [@MAGNITUDE, '|grad.delta|']")
    if rows.empty:
        return ""
    means = rows.groupby(["task", "set", "measure"], sort=False)[
        ["hero_by_delta", "hero", "bloat_by_delta", "bloat", "unsettled"]
    ].mean()
    lines = [
        [f"{task}, {of_set}, `{name}`", *map(number, row)]
        for (task, of_set, name), row in zip(means.index, means.to_numpy(), strict=True)
    ]
    heads = ["", "heroes by Delta", "surely", "bloats by Delta", "surely", "unsettled"]
    return markdown(heads, lines)


def layers_table(table: pd.DataFrame, tasks: Sequence[str]) -> str:
    """Classes by layer, summed over seeds: by Delta alone, and surely."""
    lines = []
    for task, of_set in _places(tasks):
        rows = trained(table).query("task == @task and set == @of_set")
        for layer, part in rows.groupby("layer"):
            counts = [f"{(part['by_delta'] == role).sum()} ({(part['class'] == role).sum()})" for role in ROLES[:2]]
            delta = over_seeds(part.groupby("seed")["delta"].mean().to_numpy())
            unsettled = str((part["class"] == "unsettled").sum())
            lines.append([f"{task}, {of_set}, layer {layer}", str(len(part)), *counts, unsettled, shown(delta)])
    return markdown(["", "components", "heroes", "bloats", "unsettled", "mean Delta"], lines)


def groups_table(table: pd.DataFrame, tasks: Sequence[str]) -> str:
    """Groups one by one and together, over seeds."""
    lines = []
    for task, of_set in _places(tasks):
        rows = trained(table).query("task == @task and set == @of_set")
        for name, part in sorted(rows.groupby("group"), key=lambda each: str(each[0])):
            single, joint = part["single"].to_numpy(float), part["joint"].to_numpy(float)
            count = part["components"].to_numpy(float)
            clean = percent(float(part["clean"].mean()))
            ratios = [shown(ratio_over_seeds(joint, single)), shown(ratio_over_seeds(joint, single * count))]
            losses = [shown_percent(over_seeds(values)) for values in (single, joint)]
            lines.append([f"{task}, {of_set}, {name}", str(len(part)), number(count.mean()), clean, *losses, *ratios])
    heads = [
        "",
        "seeds",
        "components",
        "right",
        "mean single loss",
        "joint loss",
        "joint / mean single",
        "joint / sum of singles",
    ]
    return markdown(heads, lines)


def kept_table(table: pd.DataFrame, tasks: Sequence[str]) -> str:
    """Accuracy averaged over all sizes of pruning, over seeds."""
    if table.empty:
        return ""
    by_seed = table.groupby(["task", "set", "measure", "seed"], as_index=False)["mean"].mean()
    names = list(dict.fromkeys(table["measure"]))

    def cell(task: str, of_set: str, name: str) -> str:
        rows = by_seed.query("task == @task and set == @of_set and measure == @name")
        return shown(over_seeds(rows["mean"].to_numpy()))

    rows = [[f"`{name}`", *(cell(*place, name) for place in _places(tasks))] for name in names]
    return markdown(["in the order of", *(", ".join(place) for place in _places(tasks))], rows)


def along_table(along: dict[tuple[str, int], pd.DataFrame]) -> str:
    """The audit along training, a line for each checkpoint."""
    columns = {
        "accuracy": "held out", "metric_out": "longer prompts", "rho_in_G": "rho of G, in distribution",
        "rho_out_G": "rho of G, out", "rho_out_|grad.delta|": "rho of grad.delta, out", "hero_out": "heroes",
        "bloat_out": "bloats", "unsettled_out": "unsettled", "redundancy_of_bloats": "bloats: joint / sum",
    }  # fmt: skip
    lines = [
        [f"{task}, seed {seed}, step {row['step']}", *(number(row[name]) for name in columns)]
        for (task, seed), table in along.items()
        for row in table.astype(dict.fromkeys(columns, float)).to_dict("records")
    ]
    return markdown(["", *columns.values()], lines) if lines else ""


def models_table(table: pd.DataFrame, measured: Sequence[Measured]) -> str:
    """Language models: rho of each measure, and how many heroes and bloats G gives."""
    rows = table[table["model"] != ""]
    if rows.empty:
        return ""
    names = list(dict.fromkeys(rows["measure"]))
    lines = []
    for each in measured:
        if each.setting.is_trained:
            continue
        setting, (of, *_) = each.setting, each.audit.sets
        own = (rows["model"] == setting.model) & (rows["task"] == setting.task) & (rows["cause"] == each.audit.metric)
        part = rows[own].set_index("measure")
        found = [_interval(*part.loc[name, ["rho", "lower", "upper"]]) if name in part.index else "" for name in names]
        g = part.loc[MAGNITUDE]
        counts = [f"{g[f'{role}_by_delta']} ({g[role]})" for role in ROLES[:2]]
        clean = of.baseline.clean
        error = f"{number(float(clean.mean()))} ± {number(float(clean.std(ddof=1) / len(clean) ** 0.5), 2)}"
        what = f"{SHORT.get(setting.model, setting.model)}, {setting.task}"
        lines.append([what, str(len(each.audit.components)), error, *found, *counts])
    heads: list[str] = ["", "components", "logit difference", *(f"`{name}`" for name in names), "heroes", "bloats"]
    return markdown(heads, lines)
