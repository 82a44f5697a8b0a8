"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.data.baseline import Baseline, standard_error
from assay.data.metrics import metric_named
from assay.report import words
from assay.report.places import print_folder
from assay.report.screening import print_screening
from assay.scores import Scores
from assay.screening import ScreenedScores

BESIDE = {"stderr_probes": "± probes", "gap": "gap"}
FORMATS = {"stderr_probes": ".2g", "gap": "+.2g"}
"""Columns that only some methods have."""


class Described(Protocol):
    """What is shown of a metric: `Metric` itself, or what a run folder keeps of one."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def description(self) -> str: ...


@dataclass(frozen=True)
class KeptMetric:
    """A metric as a run folder describes it, which may be a user's own."""

    name: str
    unit: str
    description: str


def print_finished(console: Console, scores: Scores, top: int | None = None, folder: Path | None = None) -> None:
    """All that a finished run has to show."""
    kept = scores.provenance.get("metric")  # run folders of before kept the name alone
    metric = KeptMetric(scores.metric, **kept) if kept else metric_named(scores.metric)

    def baseline() -> None:
        print_baseline(console, scores.baseline, metric, scores.provenance["metric_chosen_because"])

    if isinstance(scores, ScreenedScores):
        print_screening(console, scores, top, folder, baseline)
    else:
        print_scores(console, scores, top or 20, folder, baseline)


def print_baseline(console: Console, baseline: Baseline, metric: Described, why: str) -> None:
    """The metric, why it was chosen, and the rate of right answers, unpatched."""
    console.print(escape(f"Metric {metric.name}: {metric.description} ({why})."), style="dim", highlight=False)
    table = Table(title="Baseline (unpatched prompts)", title_justify="left", box=None, pad_edge=False)
    for name in ("", "clean", "corrupted", "difference"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row(
        f"{metric.name} ({metric.unit})",
        *(plus_minus(values) for values in (baseline.clean, baseline.corrupted, baseline.clean - baseline.corrupted)),
    )
    table.add_row(
        "greedy answer right",
        words.accuracy(baseline.clean_right),
        words.accuracy(baseline.corrupted_right),
        "",
    )
    console.print(table)
    if (warning := words.caution(baseline, metric.name)) is not None:
        console.print(warning, style="yellow")


def print_scores(
    console: Console,
    scores: Scores,
    top: int,
    folder: Path | None = None,
    beneath: Callable[[], object] = lambda: None,
) -> None:
    """Question, answer, the largest components, cost and where it is kept; ``beneath`` prints under the answer."""
    console.print(f"\n[bold]{escape(words.question(scores))}[/bold]")
    console.print(escape(words.answer(scores)), highlight=False)
    beneath()
    console.print(escape(words.method(scores)), style="dim")
    for sentence in filter(None, (words.meaning(scores), words.beside(scores))):
        console.print(escape(sentence), style="dim")
    for warning in words.cautions(scores):
        console.print(escape(warning), style="yellow")
    shares = words.has_shares(scores)
    table = Table(box=None, pad_edge=False)
    frame = scores.top(top)
    beside = {name: title for name, title in BESIDE.items() if name in frame}
    names = ("#", "component", "importance", "±", *beside.values(), *(["of difference"] if shares else []), "verdict")
    for name in names:
        table.add_column(name, justify="left" if name in ("component", "verdict") else "right")
    for rank, row in enumerate(frame.itertuples(), 1):
        error = "n/a" if np.isnan(row.stderr_prompts) else f"{row.stderr_prompts:.2g}"
        share = [f"{row.importance / scores.baseline.difference:+.1%}"] if shares else []
        further = [f"{getattr(row, name):{FORMATS[name]}}" for name in beside]
        table.add_row(str(rank), row.component, f"{row.importance:+.4g}", error, *further, *share, row.verdict)
    console.print(table)
    if not scores.exact:
        console.print(escape(words.verdicts(scores)), style="dim")
    if (step := words.next_step(scores)) is not None:
        console.print(escape(step), style="yellow")
    console.print(f"Cost: {words.cost(scores)}", style="dim")
    if folder is not None:
        print_folder(console, folder)


def plus_minus(values: np.ndarray) -> str:
    error = standard_error(values)
    return f"{values.mean():+.4g}" + (f" ± {error:.2g}" if np.isfinite(error) else "")
