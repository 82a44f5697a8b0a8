"""``assay show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    folder: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    top: Annotated[int, typer.Option(help="Components to print.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Print a finished run."""
    from assay.cli.showing import show as carry_out

    carry_out(folder, top, as_json)
