"""What ``assay dynamics`` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from assay.audit.measuring import Choices
from assay.cli.console import Interrupted, make_console
from assay.errors import OptionError, StoreError
from assay.studies.dynamics import dynamics
from assay.studies.dynamics_audit import audit_at
from assay.studies.dynamics_page import answer, write_dynamics_page
from assay.studies.folder import read_json
from assay.training.checkpoints import ABOUT


def carry_out(given: dict[str, Any], command: str) -> None:
    """Measure, keep, say where.

    Args:
        given: the command's arguments by name.
        command: the command line that measures this again.
    """
    training: Path = given["training"]
    about = read_json(training / ABOUT, "a training")
    try:
        task = about["setting"]["task"]
    except (KeyError, TypeError) as error:
        raise StoreError(f"{training / ABOUT} is no file of a training.") from error
    Choices(given["ablation"])
    if given["n"] < 32:  # what a mean per position needs
        raise OptionError(f"--n must be at least 32, not {given['n']}.")
    within: dict[str, Any] = {"length": given["length"]}
    beyond: dict[str, Any] = {"length": given["ood_length"]}
    if task != "modular-addition" and given["length"] == given["ood_length"]:
        raise OptionError(f"--ood-length {given['ood_length']} is --length: prompts out of distribution have another.")
    if task == "modular-addition":
        within, beyond = {"kind": "trained"}, {"kind": "held-out"}
    request = {
        "task": task,
        "within": within,
        "beyond": beyond,
        **{name: given[name] for name in ("n", "ablation", "seed")},
    }
    measure = audit_at(task, within, beyond, n=given["n"], seed=given["seed"], ablation=given["ablation"], rivals=())
    out = given["out"] or training.with_name(f"{training.name}-dynamics")
    console = make_console()
    try:
        table = dynamics(
            training, out, measure, request, _seeds(given["seeds"]), lambda line: console.print(line, highlight=False)
        )
    except KeyboardInterrupt:
        raise Interrupted(f"what was measured is kept in {out}; the same command goes on.") from None
    write_dynamics_page(table, {"training": about, "measured": request, "command": command}, out / "report.html")
    console.print(f"\n[bold]{escape(answer(table)[0])}[/bold]", highlight=False)
    console.print(f"Table, figures and page (report.html): {escape(str(out))}", style="dim", soft_wrap=True)


def _seeds(given: str | None) -> list[int] | None:
    try:
        return None if given is None else [int(seed) for seed in given.split(",")]
    except ValueError:
        raise OptionError(f"--seeds is a list of numbers such as 0,3, not {given!r}.") from None
