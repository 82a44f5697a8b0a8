"""``assay response``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from assay.cli import options
from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, check_common
from assay.data.metrics import metric_named
from assay.engine.batches import DEFAULT_MEMORY
from assay.methods import METHODS
from assay.methods.requirements import require_direction
from assay.model.loading import fingerprint, load
from assay.report import describe
from assay.report.response import print_response, read_response, response_to_dict, write_response
from assay.scores import configuration_hash
from assay.screening import response_curve
from assay.screening.curve import require_grid
from assay.store import finished_run, require_writable
from assay.store.files import read_run_json


def response(
    model: options.Model,
    task: options.Task,
    component: Annotated[str, typer.Option(help="As tables call it: L23H3, L3 MLP, L0N17.", show_default=False)],
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
    memory: options.Memory = DEFAULT_MEMORY,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/response-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Draw how the metric responds to one component's patch, from none of it to all: is it straight?"""
    given = dict(locals())
    check_common({**given, "jobs": None, "top": 1})
    require_grid(points, segments)
    direction = require_direction(METHODS["activation-patching"], direction)
    if metric is not None:
        metric_named(metric)
    prompts = TaskPrompts(given)
    request: dict[str, Any] = {
        "command": "response",
        "model": fingerprint(model, revision),
        "task": prompts.description,
        "metric": metric or prompts.metric,
        "direction": direction,
        **{
            name: given[name]
            for name in ("component", "points", "segments", "seed", "align", "chat", "dtype", "device")
        },
    }
    folder = out or Path("runs") / f"response-{prompts.name}-{configuration_hash(request)}"
    console = make_console()
    if finished_run(folder, request):
        curve = read_response(read_run_json(folder))
        if not as_json:
            console.print(f"This response is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        loaded = load(model, dtype=dtype, device=device, revision=revision)
        if not as_json:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        curve = response_curve(
            loaded,
            prompts.pairs(loaded),
            component,
            points=points,
            segments=segments,
            metric=metric,
            direction=direction,
            memory=memory,
            align=align,  # type: ignore[arg-type]  # checked above
            chat=chat,
        )
        write_response(folder, curve, request)
    if as_json:
        print(json.dumps(response_to_dict(curve), indent=2, ensure_ascii=False))
    else:
        print_response(console, curve, folder)
