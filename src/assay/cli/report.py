"""``assay report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(help="The page. Default: report.html in the run folder; of several, report.html here."),
    ] = None,
) -> None:
    """Write the page of a finished run anew, or one that shows several runs of scores side by side."""
    from assay.cli.reporting import report as carry_out

    carry_out(folders, out)
