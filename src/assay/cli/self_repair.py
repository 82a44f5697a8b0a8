"""``assay self-repair``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line


def self_repair(
    model: options.Model,
    task: options.Task,
    threshold: Annotated[
        float, typer.Option(help="A key matters if it contributes more than this, in the metric's unit.")
    ] = 1.0,
    relative: Annotated[
        float, typer.Option(help="Or more than this share of the prompt's largest contribution.")
    ] = 0.1,
    temperature: Annotated[
        float, typer.Option(help="Of the softmax in the gradient that is held against the true one.")
    ] = 2.0,
    rerun: Annotated[
        int, typer.Option(help="Rows, drawn at random, whose ablations are also measured by running the model.")
    ] = 256,
    components: Annotated[
        str | None,
        typer.Option(help="Also ablate each head, zero, mean or resample: what do later components give back?"),
    ] = None,
    mean: Annotated[str | None, typer.Option(help="Of --components mean: position (default) or all-positions.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Of --components mean and resample: pairs whose corrupted prompts serve instead."),
    ] = None,
    n: options.Number = None,
    seed: options.Seed = 0,
    metric: options.MetricName = None,
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
    force: options.Force = False,
    top: Annotated[int, typer.Option(help="Heads to print.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/self-repair-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """How often do two keys of a head stand in for each other, so that ablating one, or its gradient, shows nothing?"""
    given = dict(locals())
    from assay.cli.self_repairing import carry_out

    carry_out(given, command_line(self_repair, "self-repair", given))
