"""``assay audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line
from assay.cli.early import processes_for


def audit(
    model: options.Model,
    task: options.Task,
    ood: Annotated[
        str | None,
        typer.Option(help="Out of distribution, too: a length of sort or reverse, or a file of prompts."),
    ] = None,
    sites: Annotated[str, typer.Option(help="Heads and MLPs, such as heads[8:24],mlps.")] = options.DEFAULT_SITES,
    ablation: Annotated[str, typer.Option(help="What components are set to: mean, zero or resample.")] = "mean",
    rivals: Annotated[
        str,
        typer.Option(help="Other measures, comma-separated, or none."),
    ] = ",".join(options.RIVALS),
    rival_examples: Annotated[int, typer.Option(help="Prompt pairs that these are measured on, the first.")] = 200,
    batches: Annotated[int, typer.Option(help="Gradient magnitude is averaged over so many.")] = 50,
    mlp_weights: Annotated[str, typer.Option(help="Of an MLP's gradient: its output matrix, or all.")] = "output",
    pruning: Annotated[
        bool, typer.Option("--pruning", help="Also ablate components together, in the order of each measure.")
    ] = False,
    pruned_examples: Annotated[int, typer.Option(help="Prompt pairs of --pruning, the first.")] = 500,
    mean: Annotated[str | None, typer.Option(help="Of mean ablation: position (default) or all-positions.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Of mean and resample ablation: pairs whose corrupted prompts serve instead."),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", help="Prompt pairs. Default: 2500 of sort and reverse, 64 of others, all of a file."),
    ] = None,
    seed: options.Seed = 0,
    metric: Annotated[
        str | None,
        typer.Option(help="Of losses (assay list metrics). Default: exact-match of sort and reverse, else the task's."),
    ] = None,
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
    top: Annotated[int, typer.Option(help="Components to print.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/audit-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Does the size of a component's gradient tell how much the model loses without it?"""
    given = dict(locals())
    with processes_for(given) as processes:
        from assay.cli.auditing import carry_out

        carry_out(given, command_line(audit, "audit", given), processes)
