"""``assay circuit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line
from assay.cli.early import processes_for


def circuit(
    model: options.Model,
    task: options.Task,
    level: Annotated[
        str, typer.Option(help="edge: between heads and MLPs. node: heads and MLPs. neuron: heads and MLP neurons.")
    ] = "edge",
    method: Annotated[
        str | None,
        typer.Option(
            help="Of edges (assay list edge-methods): default eap-ig-inputs. Of nodes, neurons (assay list methods): "
            "default attribution-patching."
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Scores made before: a JSON file of MIB or EAP-IG, or a run folder."),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            help="How the circuit is chosen. absolute: by absolute score. top: by signed score. greedy: by absolute "
            "score from the logits up. threshold: all of at least --threshold."
        ),
    ] = "absolute",
    size: Annotated[
        float | None,
        typer.Option(
            help="Of the circuit that is chosen: a share of what was scored. Default: the smallest size of the curve "
            "whose faithfulness is at least 0.5."
        ),
    ] = None,
    faithfulness: Annotated[
        float | None, typer.Option(help="Instead of --size: the smallest circuit found that reaches it, as in 0.85.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Of --select threshold: the least absolute score.")] = None,
    ablation: Annotated[
        str,
        typer.Option(
            help="What absent edges carry. patch: what is written on the corrupted prompt. zero: nothing. mean: a mean."
        ),
    ] = "patch",
    mean: Annotated[
        str | None, typer.Option(help="Of --ablation mean: per position (default), or over all-positions.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Of --ablation mean: prompts to average over. Default: the pairs that are run.")
    ] = None,
    completeness: Annotated[
        bool, typer.Option("--completeness", help="Also run what each circuit leaves out, by itself.")
    ] = False,
    ungrouped: Annotated[
        bool, typer.Option("--ungrouped", help="Of edges: keys and values for every query head, as MIB has them.")
    ] = False,
    rule: Annotated[
        str | None, typer.Option(help=f"Of methods that integrate: {', '.join(options.RULES)} (default midpoint).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Of methods that integrate (default 5 of edges), and of edge-masks (100).")
    ] = None,
    probes: Annotated[int | None, typer.Option(help="Of second-order and hvp-sampled (default 8).")] = None,
    rules: Annotated[
        str | None, typer.Option(help="Of first-order methods: backward rules (assay list rules), such as gim.")
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(
            help="Prompt pairs that scores are made on; circuits run on as many others, the next ones. Default: 16 of "
            "a task, half of a file."
        ),
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
    top: Annotated[int, typer.Option(help="Scores to print.")] = 20,
    submission: Annotated[
        Path | None,
        typer.Option(help="Folder for MIB's leaderboard that the scores are added to, as TASK_MODEL/importances.json."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder. Default: runs/circuit-TASK-HASH. The same command goes on with a run that was "
            "interrupted."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Which edges, nodes or neurons of MODEL carry a task by themselves?"""
    given = dict(locals())
    with processes_for(given) as processes:
        from assay.cli.finding import carry_out

        named = {"from" if name == "from_" else name: value for name, value in given.items()}
        carry_out(named, command_line(circuit, "circuit", given).replace("--from- ", "--from "), processes)
