"""``assay doctor``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from assay.cli.console import make_console


def doctor(
    model: Annotated[str, typer.Argument(help="Short name, local folder, GGUF file, or hub id.", show_default=False)],
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    revision: Annotated[str | None, typer.Option(help="Of a hub model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check that assay sees MODEL as it is; exits with 1 if a check fails."""
    from assay.doctor import examine
    from assay.model.loading import load

    loaded = load(model, dtype=dtype, device=device, revision=revision, check=False)
    checks = examine(loaded)
    sound = all(check.passed for check in checks)
    if as_json:
        findings = [
            {"name": check.name, "explanation": check.explanation, "figure": repr_number(check.figure),
             "limit": check.limit, "passed": check.passed}
            for check in checks
        ]  # fmt: skip
        print(
            json.dumps(
                {
                    "model": loaded.name,
                    "family": loaded.family.name,
                    "quantisation": loaded.quantisation,
                    "sound": sound,
                    "checks": findings,
                },
                indent=2,
            )
        )
    else:
        console = make_console()
        console.print(escape(repr(loaded)), style="dim", highlight=False)
        table = Table(box=None, pad_edge=False)
        for name in ("check", "figure", "limit", "", "what it means"):
            table.add_column(name, justify="right" if name in ("figure", "limit") else "left")
        for check in checks:
            mark = "[green]ok[/green]" if check.passed else "[bold red]FAILED[/bold red]"
            table.add_row(check.name, f"{check.figure:.1e}", f"{check.limit:.0e}", mark, check.explanation)
        console.print(table)
    if not sound:
        sys.exit(1)


def repr_number(figure: float) -> float | None:
    """JSON has no NaN."""
    return figure if figure == figure else None
