"""``assay list``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from assay.cli.console import make_console
from assay.errors import OptionError, instead_of

KINDS = ("tasks", "methods", "token-methods", "edge-methods", "models", "sites", "metrics", "rules")


def list_kind(kind: Annotated[str, typer.Argument(help=", ".join(KINDS), show_default=False)]) -> None:
    """List the tasks, methods, token methods, edge methods, models, sites, metrics or backward rules there are."""
    if kind not in KINDS:
        raise OptionError(f"assay list does not know {kind!r}. {instead_of(kind, KINDS)}")
    from assay.circuits.registry import EDGE_METHODS
    from assay.data.metrics import METRICS
    from assay.data.tasks import TASKS
    from assay.methods.registry import METHODS
    from assay.model.backward import PRESETS
    from assay.model.catalogue import CATALOGUE
    from assay.model.families import FAMILIES
    from assay.sites import KINDS as SITES
    from assay.sites import POSITIONS
    from assay.tokens import METHODS as TOKEN_METHODS

    rows: dict[str, list[tuple[str, ...]]] = {
        "tasks": [(task.name, task.description, f"metric {task.metric}") for task in TASKS.values()],
        "methods": [(method.name, method.description, method.source_note) for method in METHODS.values()],
        "token-methods": [(method.name, method.description, method.source) for method in TOKEN_METHODS.values()],
        "edge-methods": [(name, make().description, make().source) for name, make in EDGE_METHODS.items()],
        "models": [(entry.name, entry.description, entry.licence) for entry in CATALOGUE.values()],
        "sites": [(site.name, site.description) for site in SITES.values()],
        "metrics": [(metric.name, metric.description, metric.unit) for metric in METRICS.values()],
        "rules": [(name, preset.description, preset.source) for name, preset in PRESETS.items()],
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in rows[kind]:
        table.add_row(*row)
    console = make_console()
    console.print(table)
    if kind == "sites":
        console.print("\nLayers and positions: heads[8:24], heads@last, mlps[3]@-1. Positions by name:", style="dim")
        for name, description in POSITIONS.items():
            console.print(f"  @{name}: {description}", style="dim")
    if kind == "models":
        families = ", ".join(family.name for family in FAMILIES)
        console.print(f"\nAlso: any local folder, GGUF file or hub id of these families: {families}.", style="dim")
    if kind == "tasks":
        console.print(
            "\nAlso: your own prompts, with columns clean, corrupted, answer and wrong_answer: a .jsonl, .csv, "
            ".parquet or .json file, or hf:owner/name[:config][:split]. assay score --help says more.",
            style="dim",
        )
