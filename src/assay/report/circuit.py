"""A tested circuit in words, in the terminal and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.circuits.edges import EdgeScores
from assay.circuits.faithfulness import Estimate
from assay.circuits.found import RANKINGS, FoundCircuit, describe_curve, estimate_as_json
from assay.report.circuit_drawing import nodes_of
from assay.store.files import SCHEMA_VERSION

ITEMS = {"edge": "edges", "node": "nodes", "neuron": "nodes and neurons"}


def question(found: FoundCircuit) -> str:
    model = found.provenance.get("model", {}).get("name", "the model")
    return f"Which {ITEMS[found.level]} of {model} carry {found.evaluated.behaviour} by themselves?"


def answer(found: FoundCircuit) -> list[str]:
    """CPR, CMD, and the chosen circuit."""
    total = found.graph.n_edges if found.level == "edge" else found.signed.counts[-1]
    n = int(found.kept.sum()) if found.level == "edge" else None
    how = f"the smallest found to reach {found.target:g}" if found.target is not None else f"size {found.size:g}"
    chosen = f"{n} of {total} edges, pruned" if n is not None else f"{len(nodes_of(found)) - 1} nodes"
    sentences = [
        f"CPR {interval(found.cpr)} (1 is the model, random circuits have .25; circuits of highest score). "
        f"CMD {interval(found.cmd)} (0 is perfect; circuits of highest absolute score).",
        f"The chosen circuit ({how}, by absolute score): {chosen}, faithfulness {interval(found.faithfulness)}.",
    ]
    if found.target is not None:
        sentences.append(
            "Its size was chosen on the prompts that it is measured on, which flatters its faithfulness there."
        )
    return sentences


def split_sentence(found: FoundCircuit) -> str:
    """Which prompts were for what."""
    seen, n = found.scores.pairs, len(found.evaluated)
    if seen is None:
        return (
            f"Circuits ran on {n} pairs. The file does not say on which prompts its scores were made, so whether any "
            "of these is among them cannot be known."
        )
    return f"Scores were made on {len(seen)} pairs, circuits ran on {n} others: no pair is in both."


def label_sentence(found: FoundCircuit) -> str:
    """What was measured and what was not."""
    scores = f"Scores ({found.scores.method}): {found.label}."
    return f"{scores} Faithfulness: measured by running circuits; intervals are bootstraps over prompts (95 %)."


def curve_rows(found: FoundCircuit) -> list[list[str]]:
    """Size, how many are kept and left after pruning, and faithfulness by both rankings."""
    rows = []
    curves = [getattr(found, name) for name in RANKINGS]
    estimates = [curve.curve.faithfulness for curve in curves]
    for i, size in enumerate(curves[0].curve.sizes):
        row = [f"{size:g}", str(curves[0].counts[i])]
        for curve, of_curve in zip(curves, estimates, strict=True):
            row += [str(curve.pruned_counts[i]), interval(of_curve[i])]
        rows.append(row)
    return rows


CURVE_COLUMNS = ["size", ITEMS["edge"], "pruned", "f, by score", "pruned", "f, by absolute score"]


def score_rows(found: FoundCircuit, top: int) -> list[list[str]]:
    """The largest absolute scores: name, score, its error, whether it is in the chosen circuit, verdict."""
    rows = []
    if isinstance(found.scores, EdgeScores):
        graph = found.scores.graph
        inside = set(np.array(graph.edge_names)[found.kept])
        for row in found.scores.top(top).itertuples():
            there = "in the circuit" if row.edge in inside else ""
            rows.append([row.edge, f"{row.importance:+.4g}", _error(row.stderr_prompts), row.verdict, there])
        return rows
    for row in found.scores.top(top).itertuples():
        rows.append([row.component, f"{row.importance:+.4g}", _error(row.stderr_prompts), row.verdict, ""])
    return rows


SCORE_COLUMNS = ["", "score", "±", "verdict", ""]


def interval(estimate: Estimate) -> str:
    if not np.isfinite(estimate.lower):
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.lower:.3f}, {estimate.upper:.3f}]"


def _error(value: float) -> str:
    return f"{value:.2g}" if np.isfinite(value) else "n/a"


def print_circuit(console: Console, found: FoundCircuit, top: int, folder: Path | None = None) -> None:
    """Question, answer, curve, largest scores, and where it is kept."""
    console.print(f"\n[bold]{escape(question(found))}[/bold]")
    for sentence in answer(found):
        console.print(escape(sentence), highlight=False)
    console.print(escape(label_sentence(found)), style="yellow" if not found.scores.exact else "dim", highlight=False)
    console.print(escape(split_sentence(found)), style="dim", highlight=False)
    columns = [ITEMS[found.level] if name == ITEMS["edge"] else name for name in CURVE_COLUMNS]
    _print_table(console, "Faithfulness over size", columns, curve_rows(found), left=0)
    _print_table(console, "Largest scores", SCORE_COLUMNS, score_rows(found, top), left=1)
    cost = found.scores.cost.get("forward_equivalents")
    if cost is not None:
        console.print(f"Cost of the scores: {cost:.1f} forward-equivalents", style="dim")
    if folder is not None:
        console.print(f"Run folder: {escape(str(folder))}", style="dim", soft_wrap=True)
        if (page := folder / "report.html").is_file():
            console.print(f"Page: {escape(str(page.resolve()))}", style="dim", soft_wrap=True)


def _print_table(console: Console, title: str, columns: list[str], rows: list[list[str]], left: int) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        words = number < left or (rows and not rows[0][number].lstrip("+-")[:1].isdigit() and number > 2)
        table.add_column(escape(name), justify="left" if words else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def circuit_as_json(found: FoundCircuit, top: int) -> dict[str, Any]:
    """Label, curves, the chosen circuit and the largest scores."""
    circuit: dict[str, Any] = {
        "size": found.size,
        "target": found.target,
        "ranking": "absolute",
        "faithfulness": estimate_as_json(found.faithfulness),
        "nodes": nodes_of(found),
    }
    if isinstance(found.scores, EdgeScores):
        circuit["edges"] = [found.scores.graph.edge_name(int(edge)) for edge in np.flatnonzero(found.kept)]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "circuit",
        "label": found.label,
        "level": found.level,
        "method": found.scores.method,
        "metric": found.scores.metric,
        "unit": found.scores.unit,
        "split": split_sentence(found),
        "cpr": estimate_as_json(found.cpr),
        "cmd": estimate_as_json(found.cmd),
        "curves": {name: describe_curve(getattr(found, name)) for name in RANKINGS},
        "circuit": circuit,
        "top": [{"name": row[0], "score": float(row[1]), "verdict": row[3]} for row in score_rows(found, top)],
        "cost": found.scores.cost,
        "configuration": found.scores.configuration,
        "provenance": found.provenance,
    }
