"""``assay plan``."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli import options


def plan(
    model: options.Model,
    task: options.Task = "ioi",
    n: options.Number = None,
    sites: options.Sites = options.DEFAULT_SITES,
    methods: Annotated[
        str | None, typer.Option(help="Separated by commas (assay list methods). Default: the usual ones.")
    ] = None,
    metric: options.MetricName = None,
    top: Annotated[int, typer.Option(help="Of screening: how many of the largest components are wanted.")] = 10,
    level: Annotated[float, typer.Option(help="Of screening: of the intervals.")] = 0.95,
    tokens: Annotated[
        str | None,
        typer.Option(
            help="Length of the prompts, and how many tokens clean and corrupted begin with alike, such as 15:10, "
            "where the model has no tokenizer or the prompts are not there yet."
        ),
    ] = None,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    revision: options.Revision = None,
    memory: options.Memory = options.DEFAULT_MEMORY,
    tflops: Annotated[
        float | None,
        typer.Option(
            help="What the machine that will compute does in matrix products, in 10^12 operations a second. Default: "
            "this machine and device are measured."
        ),
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="Of the devices that weights are to be spread over, such as 80G,80G.")
    ] = None,
    hours: Annotated[float, typer.Option(help="How long the run that is chosen may take.")] = 1.0,
    seed: options.Seed = 0,
    corruption: options.Corruption = None,
    length: options.Length = None,
    relation: options.Relation = None,
    kind: options.TaskKind = None,
    operation: options.Operation = None,
    columns: options.Columns = None,
    template: options.Template = None,
    align: options.AlignName = "reject",
    chat: options.Chat = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Foresee what methods would cost on MODEL, and which to choose. No weights are read, only the configuration."""
    given = dict(locals())
    from assay.cli.planning import carry_out

    carry_out(given)
