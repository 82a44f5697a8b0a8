"""Results that are told in sentences, tables and figures: the same in the terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as TerminalTable

from assay.report.html import Figure, render, write

__all__ = ["Figure", "Table", "number", "plus_minus", "print_tables", "write_tables_page"]


@dataclass(frozen=True)
class Table:
    """Lines of text under a title, and how to read them."""

    title: str
    columns: list[str]
    lines: list[list[str]]
    left: int = 1
    """How many columns are words."""
    note: str = ""
    short: str = ""
    """The title in the bar on top."""


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Tables with their titles and notes; empty ones are left out."""
    for table in tables:
        if not table.lines:
            continue
        console.print(f"\n[bold]{escape(table.title)}[/bold]")
        shown = TerminalTable(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for i, name in enumerate(table.columns):
            shown.add_column(escape(name), justify="left" if i < table.left else "right", overflow="fold")
        for line in table.lines:
            shown.add_row(*map(escape, line))
        console.print(shown)
        if table.note:
            console.print(escape(table.note), style="dim", highlight=False)


def write_tables_page(
    path: str | Path,
    *,
    title: str,
    answer: Sequence[str],
    tables: Sequence[Table],
    figures: Sequence[Figure],
    provenance: dict[str, Any],
    details: dict[str, Any],
    kicker: str = "",
    prompts: Sequence[dict[str, Any]] = (),
    stages: Sequence[Sequence[str]] = (),
    kept: str = "",
) -> None:
    """Write the page: one file that opens offline.

    Args:
        answer: what was found, in a sentence; more sentences stand below it.
        kicker: model and prompts in a line above the question. The model's name, if empty.
        prompts: `html.prompts_shown` of each kind.
        stages: `words.stages` of the cost.
        kept: what else lies beside the page.
    """
    name = provenance["model"]["name"]
    page = render(
        "tables.html",
        figures=figures,
        title=title,
        answer=answer,
        tables=tables,
        kicker=kicker or name,
        prompts=prompts,
        stages=stages,
        cited=f"Model: {name}. Method: {provenance['method_source']}, as implemented in assay "
        f"{provenance['versions']['assay']}.",
        kept=kept,
        provenance=provenance,
        details=details,
    )
    write(page, path)


def number(value: float | None, sign: str = "+") -> str:
    """Three digits, or n/a."""
    return "n/a" if value is None or not np.isfinite(value) else f"{value:{sign}.3g}"


def plus_minus(value: float, error: float | None) -> str:
    """A mean and its standard error."""
    return number(value) if error is None or not np.isfinite(error) else f"{value:+.3g} ± {error:.2g}"
