"""``assay compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line
from assay.cli.early import processes_for


def compare_methods(
    model: options.Model,
    task: options.Task,
    methods: Annotated[
        str, typer.Option(help="Such as attribution-patching,hvp,ms-hvp:segments=2,hvp-sampled:probes=16.")
    ] = "attribution-patching,hvp,ms-hvp,hvp-sampled,integrated-gradients",
    sites: options.Sites = "heads",
    k: Annotated[int, typer.Option(help="Overlap of the k largest components.")] = 10,
    n: options.Number = None,
    seed: options.Seed = 0,
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
    memory: options.Memory = options.DEFAULT_MEMORY,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    force: options.Force = False,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/compare-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Hold METHODS against exhaustive exact patching: how far off is each, and what does it cost?"""
    given = dict(locals())
    with processes_for(given) as processes:
        from assay.cli.comparing import compare_methods as carry_out

        carry_out(given, command_line(compare_methods, "compare", given), processes)
