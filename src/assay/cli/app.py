"""Entry point: runs a command, and turns what went wrong into one readable message."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from assay.cli.audit import audit
from assay.cli.circuit import circuit
from assay.cli.compare import compare_methods
from assay.cli.console import INTERRUPTED, Interrupted
from assay.cli.doctor import doctor
from assay.cli.dynamics import dynamics
from assay.cli.explain import explain
from assay.cli.interactions import interactions
from assay.cli.interrupts import heard
from assay.cli.listing import list_kind
from assay.cli.plan import plan
from assay.cli.report import report
from assay.cli.response import response
from assay.cli.score import score
from assay.cli.screen import demo, screen
from assay.cli.self_repair import self_repair
from assay.cli.show import show
from assay.cli.study import study
from assay.cli.train import train
from assay.cli.with_ray import WithRay
from assay.errors import AssayError

TRACEBACK_VARIABLE = "ASSAY_TRACEBACK"
_asked_for_traceback = ContextVar("asked_for_traceback", default=False)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command(cls=WithRay)(score)
app.command(cls=WithRay)(screen)
app.command()(response)
app.command("compare", cls=WithRay)(compare_methods)
app.command("self-repair")(self_repair)
app.command(cls=WithRay)(interactions)
app.command(cls=WithRay)(audit)
app.command()(explain)
app.command(cls=WithRay)(circuit)
app.command()(show)
app.command()(report)
app.command("list")(list_kind)
app.command()(doctor)
app.command()(plan)
app.command()(demo)
app.command(cls=WithRay)(train)
app.command()(dynamics)
app.add_typer(study, name="study")


@app.callback()
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show Python's traceback on errors.")] = False,
) -> None:
    """Which heads and MLPs of a language model drive a behaviour, in numbers that can be trusted."""
    _asked_for_traceback.set(traceback)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 2 refused with a reason, 1 a fault of assay's, 130 interrupted."""
    errors = Console(stderr=True)
    _asked_for_traceback.set(False)
    try:
        app()
    except AssayError as error:
        _show_traceback_if_asked()
        errors.print(f"[bold red]Error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            said = ending.said if isinstance(ending, Interrupted) else "nothing is kept of what was not finished."
            errors.print(f"Interrupted; {escape(said)}", highlight=False, soft_wrap=True)
        raise
    except Exception as error:
        if heard:
            raise  # what an interrupt left behind
        _show_traceback_if_asked()
        errors.print(
            f"[bold red]Internal error:[/bold red] {escape(type(error).__name__)}: {escape(str(error))}\n"
            "This is a fault of assay's. `assay --traceback ...` shows where.",
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(1)


def _show_traceback_if_asked() -> None:
    if _asked_for_traceback.get() or os.environ.get(TRACEBACK_VARIABLE):
        raise
