"""What ``assay screen`` does."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, carry_out, check_common, without
from assay.cli.showing import show
from assay.data import PromptPairs
from assay.data.metrics import metric_named
from assay.methods import METHODS
from assay.methods.requirements import require_direction
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.model.loading import fingerprint
from assay.report import print_baseline, print_finished, print_screening
from assay.scores import configuration_hash
from assay.screening import LIMIT, Options, ScreenedScores
from assay.screening import screen as screen_model
from assay.sites import parse
from assay.store import RunFolder


def screen(given: dict[str, Any], command: str, jobs: Jobs) -> None:
    """Screen, keep, print.

    Args:
        given: the command's arguments by name.
        command: the command line that makes this run again.
    """
    check_common(given)
    parse(given["sites"])
    asked = Options(**{field.name: given[field.name] for field in fields(Options)})
    direction = require_direction(METHODS["activation-patching"], given["direction"])
    if given["metric"] is not None:
        metric_named(given["metric"])
    prompts = TaskPrompts(given)
    request = {
        "command": "screen",
        "model": fingerprint(given["model"], given["revision"]),
        "task": prompts.description,
        "metric": given["metric"] or prompts.metric,
        "direction": direction,
        **{
            name: given[name]
            for name in ("seed", "sites", "align", "chat", "dtype", "device", "device_map", "max_memory", "force")
        },
        **vars(asked),
    }
    folder = given["out"] or Path("runs") / f"screen-{prompts.name}-{configuration_hash(without(request, LIMIT))}"
    console = make_console(quiet=given["as_json"])

    def compute(loaded: Model, pairs: PromptPairs, kept: RunFolder) -> ScreenedScores:
        return screen_model(
            loaded,
            pairs,
            sites=given["sites"],
            **vars(asked),
            metric=given["metric"],
            direction=direction,
            memory=given["memory"],
            seed=given["seed"],
            align=given["align"],
            chat=given["chat"],
            force=given["force"],
            progress=True,
            jobs=jobs,
            run_folder=kept,
            on_baseline=lambda baseline, chosen, why: print_baseline(console, baseline, chosen, why),
        )

    scores = carry_out(
        console,
        given,
        prompts,
        request,
        folder,
        compute,
        command=command,
        finished=lambda reason: _show_finished(console, folder, reason),
        limit=LIMIT,
    )
    if given["as_json"]:
        show(folder, given["top"], as_json=True)
    elif scores is not None:
        print_screening(console, scores, folder=folder)


def _show_finished(console: Console, folder: Path, reason: str) -> None:
    console.print(f"{reason} Folder: {escape(str(folder))}", style="dim")
    print_finished(console, ScreenedScores.load(folder), folder=folder)
