"""How methods compare with exact patching: sentences, table, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.comparison import Comparison
from assay.data.baseline import Baseline
from assay.errors import StoreError
from assay.report import words
from assay.report.terminal import KeptMetric, print_baseline
from assay.scores import Scores


def setting_of(exact: Scores) -> dict[str, Any]:
    """What methods were compared on, for ``run.json``."""
    per_example = {name: values.tolist() for name, values in vars(exact.baseline).items()}
    return {
        "direction": exact.direction,
        "metric": exact.metric,
        "unit": exact.unit,
        "examples": len(exact.pairs),
        "components": len(exact.components),
        "baseline": {**exact.baseline.summary(), "per_example": per_example},
    }


def print_headline(console: Console, run: dict[str, Any]) -> None:
    """Question and answer, from the content of ``run.json``."""
    if "baseline" in run:  # not in comparisons of before
        console.print(f"\n[bold]{escape(question(run))}[/bold]")
    console.print(escape(headline(read_comparison(run))), highlight=False)


def print_setting(console: Console, run: dict[str, Any]) -> None:
    """What methods were compared on, from the content of ``run.json``: metric, baseline, prompts, direction."""
    if "baseline" not in run:
        return  # comparisons of before
    provenance = run["provenance"]
    arrays = {name: np.array(values) for name, values in run["baseline"]["per_example"].items()}
    metric = KeptMetric(run["metric"], **provenance["metric"])
    print_baseline(console, Baseline(**arrays), metric, provenance["metric_chosen_because"])
    console.print(escape(setting(run)), style="dim")


def setting(run: dict[str, Any]) -> str:
    """Components, prompts, direction, unit."""
    return (
        f"{run['components']} components, {run['examples']} prompt pairs, direction {run['direction']}, effects on "
        f"{run['metric']} in {run['unit']}; clean - corrupted {run['baseline']['difference']:+.4g}. "
        f"{words.DIRECTIONS[run['direction']]}"
    )


def question(run: dict[str, Any]) -> str:
    """What a comparison asks, from the content of ``run.json``."""
    model, task = run["provenance"]["model"]["name"], run["configuration"]["task"]["name"]
    return f"Which estimates of effects come close to exact patching of {model} on {task}, and at what cost?"


def headline(found: Sequence[Comparison]) -> str:
    """The estimate that is closest to exact patching, by how much, and at what cost; the exact one is the first."""
    exact = found[0]
    estimates = [row for row in found[1:] if row.scale == 1]
    price = f"exact patching costs {exact.forward_equivalents:.1f}"
    if not estimates:
        others = (
            f"none of the {len(found) - 1} methods estimates the effect itself" if found[1:] else "nothing else ran"
        )
        return f"There is no estimate to hold against exact patching: {others}; {price} forward-equivalents."
    name, error = _measure(estimates)
    best = min(estimates, key=error)
    few = len(estimates) == 1
    opening = f"{best.method} against" if few else f"Of {len(estimates)} estimates {best.method} comes closest to"
    sentence = (
        f"{opening} exact patching: {name} {error(best):.3f} at "
        f"{best.forward_equivalents:.1f} forward-equivalents; {price}."
    )
    if best.forward_equivalents < exact.forward_equivalents:
        return sentence
    cheaper = [row for row in estimates if row.forward_equivalents < exact.forward_equivalents]
    if not cheaper:
        return f"{sentence} No estimate costs less."
    best = min(cheaper, key=error)
    which = f"The only one that costs less than exact patching is {best.method}"
    if len(cheaper) > 1:
        which = f"Of the {len(cheaper)} that cost less than exact patching {best.method} comes closest"
    return f"{sentence} {which}: {error(best):.3f} at {best.forward_equivalents:.1f}."


def _measure(found: Sequence[Comparison]) -> tuple[str, Callable[[Comparison], float]]:
    """What methods are ranked by: the error of the five largest, or of all where those have none."""
    if any(row.top_error is None for row in found):
        return "L1 error", lambda row: row.l1_error
    return "top-5 error", lambda row: row.top_error or 0.0


def columns(k: int) -> tuple[str, ...]:
    """Of the table, after the method."""
    return ("top-5", "L1", "r", "rho", f"top {k}", "sign", "passes", "bwd", "s")


def cells(row: Comparison, k: int) -> list[str]:
    """A method's line of the table, but for its name."""
    shown = (row.top_error, row.l1_error, row.pearson, row.spearman, row.overlap[k], row.sign_errors)
    digits = (3, 3, 3, 3, 2, 2)  # eighty columns hold no more
    pairs = zip(shown, digits, strict=True)
    figures = ["n/a" if value is None else f"{value:.{count}f}" for value, count in pairs]
    passes = "n/a" if row.backward_passes is None else f"{row.backward_passes:.3g}"
    return [*figures, f"{row.forward_equivalents:.1f}", passes, f"{row.seconds:.1f}"]


def legend(k: int) -> str:
    """What the columns are."""
    return (
        "All against exhaustive activation patching. top-5: |estimate - exact| / |exact| of a prompt's five largest "
        "exact effects, median prompt. L1: summed absolute error over summed absolute effect. r, rho: Pearson and "
        f"Spearman of the means over prompts. top {k}: share of the {k} largest that are among the exact ones'. sign: "
        "share with the wrong sign (n/a for absolute estimates). passes: forward-equivalents, baseline included. bwd: "
        "backward passes per component, the unit of arXiv 2606.09899, in which exact patching is free. s: seconds."
    )


def scaled(found: Sequence[Comparison]) -> list[str]:
    """Which methods were multiplied by a fitted factor first."""
    return [
        f"{row.method} is no estimate of the effect: multiplied by a fitted {row.scale:.3g} first."
        for row in found
        if row.scale != 1
    ]


def print_comparison(console: Console, found: Sequence[Comparison], k: int) -> None:
    """One line a method."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold", min_width=22)
    for name in columns(k):
        table.add_column(name, justify="right")
    for row in found:
        table.add_row(escape(row.method), *cells(row, k))
    console.print(table)
    for sentence in (legend(k), *scaled(found)):
        console.print(escape(sentence), style="dim")


def read_comparison(run: dict[str, Any]) -> list[Comparison]:
    """The figures of every method, from the content of ``run.json``.

    Raises:
        StoreError: it is not that of a comparison.
    """
    try:
        return [
            Comparison(**{**row, "overlap": {int(k): value for k, value in row["overlap"].items()}})
            for row in run["methods"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"run.json is not that of a comparison: {error}") from error
