"""Tables in the terminal."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.data.baseline import Baseline, standard_error
from assay.report import words
from assay.scores import Scores


def print_baseline(console: Console, baseline: Baseline, metric: str, unit: str) -> None:
    """The metric and the rate of right answers, unpatched."""
    table = Table(title="Baseline (unpatched prompts)", title_justify="left", box=None, pad_edge=False)
    for name in ("", "clean", "corrupted", "difference"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row(
        f"{metric} ({unit})",
        *(plus_minus(values) for values in (baseline.clean, baseline.corrupted, baseline.clean - baseline.corrupted)),
    )
    table.add_row(
        "greedy answer right",
        words.accuracy(baseline.clean_right),
        words.accuracy(baseline.corrupted_right),
        "",
    )
    console.print(table)
    if (warning := words.caution(baseline)) is not None:
        console.print(warning, style="yellow")


def print_scores(console: Console, scores: Scores, top: int, folder: str | None = None) -> None:
    """Question, answer, the largest components, cost and where it is kept."""
    console.print(f"\n[bold]{escape(words.question(scores))}[/bold]")
    console.print(escape(words.answer(scores)))
    console.print(escape(words.meaning(scores)), style="dim")
    table = Table(box=None, pad_edge=False)
    for name in ("#", "component", "importance", "±", "of difference", "verdict"):
        table.add_column(name, justify="left" if name in ("component", "verdict") else "right")
    difference = scores.baseline.difference
    shown = scores.top(top)
    for rank, row in enumerate(shown.itertuples(), 1):
        share = f"{row.importance / difference:+.1%}" if difference and scores.estimates_effect else ""
        error = "n/a" if np.isnan(row.stderr_prompts) else f"{row.stderr_prompts:.2g}"
        table.add_row(str(rank), row.component, f"{row.importance:+.4g}", error, share, row.verdict)
    console.print(table)
    console.print(f"Cost: {words.cost(scores)}", style="dim")
    if folder is not None:
        console.print(f"Run folder: {escape(folder)} (page: report.html)", style="dim")


def plus_minus(values: np.ndarray) -> str:
    error = standard_error(values)
    return f"{values.mean():+.4g}" + (f" ± {error:.2g}" if np.isfinite(error) else "")
