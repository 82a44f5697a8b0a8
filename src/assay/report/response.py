"""A component's response, in a table and on a page of its own."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.errors import StoreError
from assay.screening import ResponseCurve


def print_response(console: Console, curve: ResponseCurve) -> None:
    """The exact effect and what the derivatives make of it."""
    table = Table(box=None, pad_edge=False)
    for name in (curve.component.name, f"effect ({curve.unit})", "error"):
        table.add_column(escape(name), justify="left" if name == curve.component.name else "right")
    table.add_row("exact", f"{curve.effect:+.4g}", "")
    for name, estimate in curve.estimates().items():
        table.add_row(name, f"{estimate:+.4g}", f"{estimate - curve.effect:+.2g}")
    console.print(table)
    for note in curve.notes:
        console.print(escape(note), style="dim")


def write_response(curve: ResponseCurve, path: Path) -> None:
    """Write the figure as a page that opens offline.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        curve.plot().write_html(path, include_plotlyjs=True)
    except OSError as error:
        raise StoreError(f"Cannot write {path}: {error.strerror or error}.") from error
