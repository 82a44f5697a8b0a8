"""``assay interactions``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line
from assay.cli.early import processes_for


def interactions(
    model: options.Model,
    task: options.Task,
    group: Annotated[
        str | None,
        typer.Option(
            help="Ablate these together: names (L1H0,L2 MLP), layer:1, or the heroes or bloats of an audit on the same "
            "prompts."
        ),
    ] = None,
    sites: Annotated[str, typer.Option(help="Heads and MLPs, such as heads[8:24],mlps.")] = options.DEFAULT_SITES,
    ablation: Annotated[str, typer.Option(help="What components are set to: mean, zero or resample.")] = "mean",
    exact: Annotated[
        int | None,
        typer.Option(help="Run only so many pairs, the largest by second order. Default: all."),
    ] = None,
    second_order: Annotated[
        bool | None,
        typer.Option(
            "--second-order/--no-second-order",
            help="Second derivatives, one product with a Hessian per component. Default: where the metric has any.",
        ),
    ] = None,
    mean: Annotated[str | None, typer.Option(help="Of mean ablation: position (default) or all-positions.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Of mean and resample ablation: pairs whose corrupted prompts serve instead."),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", help="Prompt pairs. Default: 64 of a task, all of a file."),
    ] = None,
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
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    force: options.Force = False,
    top: Annotated[int, typer.Option(help="Pairs to print.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/interactions-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Which components stand in for each other, and what does a group lose that its members do not show?"""
    given = dict(locals())
    with processes_for(given) as processes:
        from assay.cli.interacting import carry_out

        carry_out(given, command_line(interactions, "interactions", given), processes)
