"""What ``assay train`` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from assay.cli.console import Interrupted, make_console
from assay.scale import Crew
from assay.training import train, training_setting

OPTIONS = ("positions", "steps", "long", "weight_decay", "share")


def carry_out(given: dict[str, Any], trainers: int | Crew) -> None:
    """Train, tell, print a table of what came out.

    Args:
        given: the command's arguments by name.
        trainers: how many train side by side, or who.
    """
    setting = training_setting(given["task"], **{name: given[name] for name in OPTIONS})
    folder = given["out"] or Path("runs") / f"train-{given['task']}"
    console = make_console()

    def tell(seed: int, line: dict[str, Any]) -> None:
        loss = "" if line["loss"] is None else f"  loss {line['loss']:.4f}  trained {line['trained']:.3f}"
        step = f"step {line['step']} of at most {setting.steps}"
        console.print(f"seed {seed}  {step}{loss}  held out {line['accuracy']:.3f}", highlight=False)

    try:
        models = train(setting, folder, given["seeds"], trainers, tell)
    except KeyboardInterrupt:
        raise Interrupted(f"what was trained is kept in {folder}; the same command goes on.") from None
    table = Table("seed", "steps", "loss", "exact match", "model", box=None, pad_edge=False)
    for model in models:
        loss = "" if model.loss is None else f"{model.loss:.4f}"
        table.add_row(str(model.seed), str(model.step), loss, f"{model.accuracy:.3f}", escape(str(model.folder)))
    console.print(table)
    reached = sum(model.accuracy >= setting.wanted for model in models)
    console.print(
        f"{reached} of {len(models)} seeds answer {setting.wanted:.0%} of {setting.held_out} held-out examples."
    )
