"""``assay response``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line


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
    device_map: options.DeviceMap = None,
    max_memory: options.MaxMemory = None,
    checkpointing: options.Checkpointing = False,
    revision: options.Revision = None,
    memory: options.Memory = options.DEFAULT_MEMORY,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/response-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Draw how the metric responds to one component's patch, from none of it to all: is it straight?"""
    given = dict(locals())
    from assay.cli.responding import respond

    respond(given, command_line(response, "response", given))
