"""A tested circuit in the terminal and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.circuits.edges import EdgeScores
from assay.circuits.faithfulness import CircuitValues
from assay.circuits.found import FoundCircuit, describe_curve, estimate_as_json
from assay.circuits.naming import items_in, nodes_of
from assay.data.baseline import Baseline
from assay.data.metrics import Metric
from assay.report import circuit as words
from assay.report.places import print_folder
from assay.report.words import caution
from assay.store.files import SCHEMA_VERSION


def print_ends(
    console: Console, baseline: Baseline, ends: CircuitValues, metric: Metric, why: str, *, ablation: str
) -> None:
    """Whether the model can do the task, before an hour of scores."""
    console.print(escape(f"Metric {metric.name}: {metric.description} ({why})."), style="dim", highlight=False)
    rows = [
        *words.ends_rows(ends, metric.unit, metric.name),
        words.right_row((baseline.clean_right, baseline.corrupted_right), ablation),
    ]
    _print_table(console, "On the prompts that circuits run on", words.ENDS_COLUMNS, rows)
    if (warning := caution(baseline, metric.name)) is not None:
        console.print(escape(warning), style="yellow")


def print_circuit(
    console: Console, found: FoundCircuit, top: int, folder: Path | None = None, *, ends: bool = True
) -> None:
    """Question, answer, curve, largest scores, cost, and where it is kept.

    Args:
        ends: print the metric and the two runs that faithfulness lies between; they may have been printed before.
    """
    console.print(f"\n[bold]{escape(words.question(found))}[/bold]")
    for sentence in words.answer(found):
        console.print(escape(sentence), highlight=False)
    style = "yellow" if not found.scores.exact else "dim"
    console.print(escape(words.label_sentence(found)), style=style, highlight=False)
    console.print(escape(words.split_sentence(found)), style="dim", highlight=False)
    if ends and (metric := words.metric_sentence(found)) is not None:
        console.print(escape(metric), style="dim", highlight=False)
        _print_table(console, "On the prompts that circuits run on", words.ENDS_COLUMNS, words.ends_table(found))
    _print_table(console, "Faithfulness over size", words.curve_columns(found), words.curve_rows(found), left=0)
    console.print(escape(words.meaning_of_faithfulness(found)), style="dim", highlight=False)
    columns = words.score_columns(found)
    _print_table(
        console,
        f"Largest scores ({words.verdict(found)}: {words.VERDICTS[words.verdict(found)]})",
        columns,
        words.score_rows(found, top),
    )
    console.print(escape(words.meaning_of_scores(found)), style="dim", highlight=False)
    if cost := words.cost_sentence(found):
        console.print(escape(cost), style="dim", highlight=False)
    step = words.next_step(found, str(folder) if folder is not None else "FOLDER")
    console.print(escape(step), style="yellow", highlight=False)
    if folder is not None:
        print_folder(console, folder)


def _print_table(console: Console, title: str, columns: list[str], rows: list[list[str]], left: int = 1) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(escape(name), justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def circuit_as_json(found: FoundCircuit, top: int) -> dict[str, Any]:
    """Label, curves, the chosen circuit and the largest scores."""
    circuit: dict[str, Any] = {
        "size": found.size,
        "target": found.target,
        "select": found.setting.get("select", "absolute"),
        "threshold": found.setting.get("threshold"),
        "faithfulness": estimate_as_json(found.faithfulness),
        "nodes": nodes_of(found),
    }
    if isinstance(found.scores, EdgeScores):
        circuit["edges"] = [found.scores.graph.edge_name(int(edge)) for edge in np.flatnonzero(found.kept)]
    else:
        circuit["items"] = items_in(found)
    if found.values.values.shape[1] > 1:
        circuit["completeness"] = estimate_as_json(found.values.estimates(seed=found.seed)[1])
    ends = {name: float(getattr(found.values, name).mean()) for name in ("full", "empty")}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "circuit",
        "label": found.label,
        "level": found.level,
        "method": found.scores.method,
        "metric": found.scores.metric,
        "unit": found.scores.unit,
        "split": words.split_sentence(found),
        "setting": found.setting,
        "ends": ends,
        "baseline": None if found.baseline is None else found.baseline.summary(),
        "cpr": estimate_as_json(found.cpr),
        "cmd": estimate_as_json(found.cmd),
        "curves": {name: describe_curve(curve) for name, curve in found.curves.items()},
        "circuit": circuit,
        "top": [
            {"name": row[0], "score": float(row[1]), "in_circuit": row[3] == "yes", "verdict": words.verdict(found)}
            for row in words.score_rows(found, top)
        ],
        "cost": found.costs,
        "configuration": found.scores.configuration,
        "provenance": found.provenance,
    }
