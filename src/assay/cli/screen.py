"""``assay screen`` and ``assay demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from assay.cli import options
from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, carry_out, check_common, command_line, without
from assay.data import PromptPairs
from assay.data.metrics import metric_named
from assay.engine.batches import DEFAULT_MEMORY
from assay.methods import METHODS
from assay.methods.requirements import require_direction
from assay.model import Model
from assay.model.loading import fingerprint
from assay.report import print_baseline, print_finished, print_screening
from assay.scores import configuration_hash
from assay.screening import FIXES, LIMIT, Options, ScreenedScores
from assay.screening import screen as screen_model
from assay.sites import parse
from assay.store import RunFolder


def screen(
    model: options.Model,
    task: options.Task,
    n: options.Number = None,
    seed: options.Seed = 0,
    sites: options.Sites = "heads",
    top: Annotated[int, typer.Option(help="How many of the largest components are wanted.")] = 10,
    level: Annotated[float, typer.Option(help="Of the intervals of components that were not patched.")] = 0.95,
    probes: Annotated[int, typer.Option(help="Of curvature, for each kind of site; 0 for none.")] = 8,
    threshold: Annotated[
        float, typer.Option(help="Flag where curvature surely exceeds this share of the first-order term.")
    ] = 0.5,
    fix: Annotated[str, typer.Option(help=f"What flagged components are corrected by: {', '.join(FIXES)}.")] = "exact",
    budget: Annotated[float | None, typer.Option(help="Forward-equivalents to stop at, everything included.")] = None,
    metric: options.MetricName = None,
    direction: options.DirectionName = None,
    corruption: options.Corruption = None,
    length: options.Length = None,
    relation: options.Relation = None,
    kind: options.TaskKind = None,
    operation: options.Operation = None,
    columns: options.Columns = None,
    template: options.Template = None,
    align: options.AlignName = "reject",
    chat: options.Chat = False,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    revision: options.Revision = None,
    memory: options.Memory = DEFAULT_MEMORY,
    jobs: options.Jobs = None,
    force: options.Force = False,
    out: options.Out = None,
) -> None:
    """Find the largest components of MODEL with few exact runs: how far can each score be trusted?"""
    given = dict(locals())
    check_common(given)
    parse(sites)
    asked = Options(top, level, probes, threshold, fix, budget)  # type: ignore[arg-type]  # checks it
    direction = require_direction(METHODS["activation-patching"], direction)
    if metric is not None:
        metric_named(metric)
    prompts = TaskPrompts(given)
    request = {
        "command": "screen",
        "model": fingerprint(model, revision),
        "task": prompts.description,
        "metric": metric or prompts.metric,
        "direction": direction,
        **{name: given[name] for name in ("seed", "sites", "align", "chat", "dtype", "device", "force")},
        **vars(asked),
    }
    folder = out or Path("runs") / f"screen-{prompts.name}-{configuration_hash(without(request, LIMIT))}"
    console = make_console()

    def compute(loaded: Model, pairs: PromptPairs, kept: RunFolder) -> ScreenedScores:
        return screen_model(
            loaded,
            pairs,
            sites=sites,
            **vars(asked),
            metric=metric,
            direction=direction,
            memory=memory,
            seed=seed,
            align=align,  # type: ignore[arg-type]
            chat=chat,
            force=force,
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
        command=command_line(screen, "screen", given),
        finished=lambda reason: _show_finished(console, folder, reason),
        limit=LIMIT,
    )
    if scores is not None:
        print_screening(console, scores, folder=folder)


def demo(out: options.Out = None) -> None:
    """Run the main job on a small model that the package carries: which of its neurons sort the numbers?"""
    screen(model="sequence-sort", task="sort", sites="neurons", out=out)


def _show_finished(console: Console, folder: Path, reason: str) -> None:
    console.print(f"{reason} Folder: {escape(str(folder))}", style="dim")
    print_finished(console, ScreenedScores.load(folder), folder=folder)
