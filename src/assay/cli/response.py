"""``assay response``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from assay.cli import options
from assay.cli.console import make_console
from assay.errors import OptionError


def response(
    model: options.Model,
    task: options.Task,
    component: Annotated[str, typer.Option(help="As tables call it: L23H3, L3 MLP, L0N17.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("response.html"),
    n: options.Number = None,
    seed: options.Seed = 0,
    points: Annotated[int, typer.Option(help="Strengths of the patch, from 0 to 1.")] = 21,
    segments: Annotated[int, typer.Option(help="Steps of MS-HVP.")] = 5,
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
    memory: options.Memory = options.DEFAULT_MEMORY,
) -> None:
    """Draw how the metric responds to one component's patch, from none of it to all: is it straight?"""
    given = dict(locals())
    if out.exists():
        raise OptionError(f"{out} exists already. Choose another --out.")
    from assay.cli.running import TaskPrompts
    from assay.model.loading import load
    from assay.report import describe
    from assay.report.response import print_response, write_response
    from assay.screening import response_curve

    prompts = TaskPrompts(given)
    console = make_console()
    loaded = load(model, dtype=dtype, device=device, revision=revision)
    console.print(escape(describe(loaded)), style="dim", highlight=False)
    curve = response_curve(
        loaded,
        prompts.pairs(loaded),
        component,
        points=points,
        segments=segments,
        metric=metric,
        direction=direction,  # type: ignore[arg-type]  # checked there
        memory=memory,
        align=align,  # type: ignore[arg-type]
        chat=chat,
    )
    print_response(console, curve)
    write_response(curve, out)
    console.print(f"Page: {escape(str(out.resolve()))}", style="dim", soft_wrap=True)
