"""The study's page: tables and figures of `tables`, in the words of a template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from assay.errors import StoreError
from assay.studies.gim_circuits.settings import ENSEMBLES, FULL, GIM, MODELS, TASKS, Setting, Sizes
from assay.studies.gim_circuits.tables import (
    CMD,
    CPR,
    MEASURES,
    Measured,
    circuits_of,
    claims,
    duels,
    ranks,
    read_setting,
    read_sizes,
    values,
)
from assay.studies.pages import SHORT, number, template, write_files
from assay.studies.svg import Line, line_chart

FIGURES, NUMBERS = "gim-circuits", "numbers.csv"
"""Folder beside the page, and a file in it."""
DRAWN = (GIM, "eap", "eap-ig-inputs", "edge-masks", "hybrid", "random")
PUBLISHED = (
    ("exact edge patching", 2.30), ("EAP-IG-inputs", 1.85), ("EAP-IG-activations", 1.82), ("EAP", 1.20), ("UGS", 0.97),
    ("NAP-IG", 0.76), ("IFR", 0.58), ("random", 0.25),
)  # fmt: skip
"""CPR of MIB on IOI with GPT-2 small (Mueller et al., arXiv 2504.13151)."""


def write_page(folder: Path, page: Path, settings: Sequence[Setting] | None = None) -> list[Path]:
    """Write the page of a study that was measured, as far as it was.

    Args:
        folder: of the study.
        page: a Markdown file; figures and a table of all numbers are written into a folder beside it.
        settings: those to show; all of the study's sizes, and the data sets that are in the folder, if None.

    Returns:
        The files written, the page first.

    Raises:
        StoreError: nothing is measured, files are damaged, or the page cannot be written.
    """
    sizes = read_sizes(folder)
    read = {each: read_setting(folder, each) for each in settings or _settings(folder, sizes)}
    measured = [each for each in read.values() if each is not None]
    table = values(measured, sizes)
    if table.empty:
        raise StoreError(f"No circuit in {folder} is measured. Run assay study gim-circuits first.")
    missing = [each for each, found in read.items() if found is None or found.missing]
    beside = page.parent / FIGURES
    files = {beside / name: svg for name, svg in figures(measured, sizes).items()}
    files |= {
        page: text(table, measured, sizes, missing),
        beside / NUMBERS: table.to_csv(index=False, float_format="%.6g"),
    }
    write_files(files)
    return [page, *(path for path in files if path.suffix == ".svg")]


def _settings(folder: Path, sizes: Sizes) -> list[Setting]:
    known = sizes.settings()
    there = {path.parent.name for path in folder.glob("*/prompts.json")} - {each.folder for each in known}
    data = [
        Setting(model, name.removeprefix(f"{model}-"))
        for model in MODELS
        for name in sorted(there)
        if name.startswith(f"{model}-")
    ]
    return known + [each for each in data if each.task not in TASKS]


def figures(measured: Sequence[Measured], sizes: Sizes) -> dict[str, str]:
    """SVG by file name: faithfulness over size, by signed score, of one setting each."""
    drawn = {}
    for each in measured:
        lines = [
            Line(name, sizes.shares, circuits_of(each.found[name], CPR).faithfulness().tolist(), name == "random")
            for name in DRAWN
            if name in each.found
        ]
        if lines:
            title = "share of the edges that are kept"
            drawn[file_of(each.setting)] = line_chart(lines, x_title=title, y_title="faithfulness", log_x=True)
    return drawn


def file_of(setting: Setting) -> str:
    return f"{setting.folder}.svg"


def text(table: pd.DataFrame, measured: Sequence[Measured], sizes: Sizes, missing: Sequence[Setting]) -> str:
    """The page in Markdown."""
    return template("gim_circuits").render(
        claims=claims(table),
        measured=measured,
        sizes=sizes,
        full=sizes == FULL,
        missing=missing,
        models=list(dict.fromkeys(table["model"])),
        meanings={CPR: "Higher is better.", CMD: "Lower is better, 0 is perfect."},
        by_task=lambda model, measure: by_task(table[(table["model"] == model) & (table["measure"] == measure)]),
        duels=duels_table(table),
        ranks=ranks_table(table),
        cost=cost_table(table),
        ensembles=ENSEMBLES,
        published=PUBLISHED,
        ours=ours(table),
        short=lambda name: SHORT.get(name, name),
        file_of=lambda setting: f"{FIGURES}/{file_of(setting)}",
        numbers=f"{FIGURES}/{NUMBERS}",
    )


def by_task(rows: pd.DataFrame) -> str:
    """A Markdown table: methods by tasks, values with intervals and ranks."""
    tasks = list(dict.fromkeys(rows["task"]))
    lines = ["| | " + " | ".join(tasks) + " |", "|---|" + "---:|" * len(tasks)]
    for method, part in rows.groupby("method", sort=False):
        cells = {row["task"]: _cell(row) for row in part.to_dict("records")}
        lines.append(f"| `{method}` | " + " | ".join(cells.get(task, "") for task in tasks) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    return f"{_interval(row)} ({row['rank']})"


def _interval(row: dict[str, Any]) -> str:
    return f"{number(row['value'])} [{number(row['lower'])}, {number(row['upper'])}]"


def _columns(found: pd.DataFrame) -> list[tuple[str, bool]]:
    return [(m, multi) for m in MEASURES for multi in (True, False) if multi in set(found["multi_step"])]


def _by_steps(found: pd.DataFrame, cell: Any) -> str:
    """A Markdown table: methods by measure and kind of task."""
    columns = _columns(found)
    heads = [f"{m}, {'several steps' if multi else 'one step'}" for m, multi in columns]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(columns)]
    for method, part in found.groupby("method", sort=False):
        cells = {(row["measure"], row["multi_step"]): cell(row) for row in part.to_dict("records")}
        lines.append(f"| `{method}` | " + " | ".join(cells.get(each, "") for each in columns) + " |")
    return "\n".join(lines)


def duels_table(table: pd.DataFrame) -> str:
    """A Markdown table: settings in which GIM is better and worse than each method."""
    return _by_steps(duels(table), lambda row: f"{row['better']} / {row['worse']} of {row['settings']}")


def ranks_table(table: pd.DataFrame) -> str:
    """A Markdown table: median rank and range."""
    return _by_steps(ranks(table), lambda row: f"{row['median']:g} ({row['min']} to {row['max']})")


def cost_table(table: pd.DataFrame) -> str:
    """A Markdown table: forward passes of the scored prompts, and seconds, that scores took; medians over tasks."""
    rows = table[table["measure"] == CPR]
    models = list(dict.fromkeys(rows["model"]))
    lines = ["| | " + " | ".join(f"{SHORT.get(m, m)}, passes | seconds" for m in models) + " |"]
    lines.append("|---|" + "---:|---:|" * len(models))
    for method, part in rows.groupby("method", sort=False):
        middle = part.groupby("model")[["passes", "seconds"]].median()
        cells = [
            f"{number(middle['passes'][m])} | {number(middle['seconds'][m])}" if m in middle.index else " | "
            for m in models
        ]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ours(table: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Model, method and CPR on IOI, to stand beside the published ones."""
    rows = table[(table["task"] == "ioi") & (table["measure"] == CPR)].to_dict("records")
    return [(SHORT.get(row["model"], row["model"]), row["method"], _interval(row)) for row in rows]
