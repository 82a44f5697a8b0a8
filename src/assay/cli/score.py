"""``assay score``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line
from assay.cli.early import processes_for


def score(
    model: options.Model,
    task: options.Task,
    n: options.Number = None,
    seed: options.Seed = 0,
    sites: options.Sites = options.DEFAULT_SITES,
    method: Annotated[str, typer.Option(help="See assay list methods.")] = "activation-patching",
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
    mean: Annotated[str | None, typer.Option(help="Of mean-ablation: position (default) or all-positions.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Of mean- and resample-ablation: a file of pairs whose corrupted prompts serve instead of the run's."
        ),
    ] = None,
    receivers: Annotated[
        str | None,
        typer.Option(
            help="Of path-patching: what reads the change: q, k, v, mlps and logits, as in q[9:12],mlps[10],logits."
        ),
    ] = None,
    segments: Annotated[int | None, typer.Option(help="Of ms-hvp: second-order steps (default 5).")] = None,
    probes: Annotated[int | None, typer.Option(help="Of hvp-sampled: products for each kind (default 8).")] = None,
    precision: Annotated[
        float | None, typer.Option(help="Of hvp-sampled: more probes, until the relative error of curvature is this.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help=f"Of integrated-gradients: {', '.join(options.RULES)} (default midpoint).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Of integrated-gradients (default 10) and integrated-hessians (default 5).")
    ] = None,
    gap: Annotated[
        bool | None,
        typer.Option("--gap", help="Of integrated-gradients: also what the rule misses; a forward pass per component."),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            help="Of first-order gradient methods: backward rules (assay list rules), such as gim; default plain."
        ),
    ] = None,
    qk_fix: Annotated[
        bool | None, typer.Option("--qk-fix/--no-qk-fix", help="Of atp-star: queries and keys through the softmax.")
    ] = None,
    grad_drop: Annotated[
        bool | None, typer.Option("--grad-drop/--no-grad-drop", help="Of atp-star: a backward pass without each layer.")
    ] = None,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    device_map: options.DeviceMap = None,
    max_memory: options.MaxMemory = None,
    checkpointing: options.Checkpointing = False,
    revision: options.Revision = None,
    memory: options.Memory = options.DEFAULT_MEMORY,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    top: Annotated[int, typer.Option(help="Components to print.")] = 20,
    skip: Annotated[bool, typer.Option(help="--no-skip also runs what is known to change nothing.")] = True,
    force: options.Force = False,
    out: options.Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Score every component of MODEL on a task: how much does each drive the behaviour?"""
    given = dict(locals())
    with processes_for(given) as processes:
        from assay.cli.scoring import score as carry_out

        carry_out(given, command_line(score, "score", given), processes)
