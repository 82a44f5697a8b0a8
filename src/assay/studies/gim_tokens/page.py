"""The study's page: tables and figures of `tables`, in the words of a template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from assay.data.readers.yes_no import TASKS as DATA_SETS
from assay.errors import StoreError
from assay.studies.gim_tokens.arrays import Measured, read_setting, read_sizes
from assay.studies.gim_tokens.settings import FULL, GIM, MODELS, Setting, Sizes
from assay.studies.gim_tokens.tables import COMPREHENSIVENESS, SUFFICIENCY, claims, duels, values
from assay.studies.pages import SHORT, number, template, write_files
from assay.studies.svg import Dots, dot_chart
from assay.tokens.faithfulness import MEASURES, RANDOM

FIGURES, NUMBERS = "gim-tokens", "numbers.csv"
"""Folder beside the page, and a file in it."""
UNITS = ("logits", "probability")


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
    there = [name for name in DATA_SETS if any((folder / Setting(model, name).folder).is_dir() for model in MODELS)]
    wanted = sizes.settings(there) if settings is None else settings
    read = {each: read_setting(folder, each) for each in wanted}
    measured = [each for each in read.values() if each is not None]
    table = values(measured)
    if table.empty:
        raise StoreError(f"No text in {folder} is explained. Run assay study gim-tokens first.")
    missing = [each for each, found in read.items() if found is None or len(found.texts) < len(found.chosen.questions)]
    beside = page.parent / FIGURES
    files = {beside / name: svg for name, svg in figures(table).items()}
    files |= {
        page: text(table, measured, sizes, missing),
        beside / NUMBERS: table.to_csv(index=False, float_format="%.6g"),
    }
    write_files(files)
    return [page, *(path for path in files if path.suffix == ".svg")]


def figures(table: pd.DataFrame) -> dict[str, str]:
    """SVG by file name: by how much GIM is better than each method, in probability."""
    drawn = {}
    for model in dict.fromkeys(table["model"]):
        for measure in MEASURES:
            rows = _headline(table, model, measure, "probability")
            rows = rows[rows["method"] != GIM]
            series = [
                Dots(task, part["gim_over"].tolist(), part["gim_over_lower"].tolist(), part["gim_over_upper"].tolist())
                for task, part in rows.groupby("task", sort=False)
            ]
            names = list(dict.fromkeys(rows["method"]))
            title = f"{measure} (probability): GIM better than the method by"
            drawn[f"{model.replace('/', '-')}-{measure}.svg"] = dot_chart(names, series, x_title=title)
    return drawn


def _headline(table: pd.DataFrame, model: str, measure: str, unit: str) -> pd.DataFrame:
    chosen = table["headline"] & (table["model"] == model) & (table["measure"] == measure) & (table["unit"] == unit)
    return table[chosen]


def text(table: pd.DataFrame, measured: Sequence[Measured], sizes: Sizes, missing: Sequence[Setting]) -> str:
    """The page in Markdown."""
    return template("gim_tokens").render(
        claims=claims(table),
        measured=measured,
        sizes=sizes,
        full=sizes == FULL,
        missing=missing,
        models=list(dict.fromkeys(table["model"])),
        measures={COMPREHENSIVENESS: "Higher is better.", SUFFICIENCY: "Lower is better."},
        units=UNITS,
        by_setting=lambda model, measure, unit: by_setting(_headline(table, model, measure, unit)),
        duels=duels_table(table),
        short=lambda name: SHORT.get(name, name),
        file_of=lambda model, measure: f"{FIGURES}/{model.replace('/', '-')}-{measure}.svg",
        numbers=f"{FIGURES}/{NUMBERS}",
    )


def by_setting(rows: pd.DataFrame) -> str:
    """A Markdown table of means: methods by tasks. Methods that random orders match are in brackets."""
    tasks = list(dict.fromkeys(rows["task"]))
    lines = ["| | " + " | ".join(tasks) + " |", "|---|" + "---:|" * len(tasks)]
    for method, part in rows.groupby("method", sort=False):
        cells = {row["task"]: _cell(row) for row in part.to_dict("records")}
        lines.append(f"| `{method}` | " + " | ".join(cells.get(task, "") for task in tasks) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    shown = number(row["mean"])
    if row["method"] == RANDOM:
        return f"{shown} ± {number(row['spread'], 2)}"
    return shown if row["over_random_lower"] > 0 or math.isnan(row["over_random_lower"]) else f"({shown})"


def duels_table(table: pd.DataFrame) -> str:
    """A Markdown table: settings in which GIM is better and worse than each method."""
    found = duels(table)
    columns = [(measure, unit) for measure in MEASURES for unit in UNITS]
    lines = ["| | " + " | ".join(f"{m}, {u}" for m, u in columns) + " |", "|---|" + "---|" * len(columns)]
    for method, part in found.groupby("method", sort=False):
        cells = {(row["measure"], row["unit"]): row for row in part.to_dict("records")}
        shown = [f"{cells[each]['better']} / {cells[each]['worse']} of {cells[each]['settings']}" for each in columns]
        lines.append(f"| `{method}` | " + " | ".join(shown) + " |")
    return "\n".join(lines)
