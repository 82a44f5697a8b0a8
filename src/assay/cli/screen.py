"""``assay screen`` and ``assay demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line
from assay.cli.early import processes_for


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
    fix: Annotated[
        str, typer.Option(help=f"What flagged components are corrected by: {', '.join(options.FIXES)}.")
    ] = "exact",
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
    device_map: options.DeviceMap = None,
    max_memory: options.MaxMemory = None,
    checkpointing: options.Checkpointing = False,
    revision: options.Revision = None,
    memory: options.Memory = options.DEFAULT_MEMORY,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    force: options.Force = False,
    out: options.Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Find the largest components of MODEL with few exact runs: how far can each score be trusted?"""
    given = dict(locals())
    with processes_for(given) as processes:
        from assay.cli.screening import screen as carry_out

        carry_out(given, command_line(screen, "screen", given), processes)


def demo(out: options.Out = None) -> None:
    """Run the main job on a small model that the package carries: which of its neurons sort the numbers?"""
    screen(model="sequence-sort", task="sort", sites="neurons", out=out)
