"""``assay explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.again import command_line


def explain(
    model: options.Model,
    text: Annotated[str | None, typer.Argument(help="The prompt; or give --file.", show_default=False)] = None,
    target: Annotated[
        str | None, typer.Option(help='What continues it, as in " Paris". Default: the model\'s most probable token.')
    ] = None,
    against: Annotated[
        str | None, typer.Option(help='Another continuation, as in " Rome": the difference is explained.')
    ] = None,
    methods: Annotated[str, typer.Option(help="Comma-separated; assay list token-methods.")] = "gim",
    baseline: Annotated[
        str, typer.Option(help="What a token is compared with: space, pad, mean, or a text of one token or as many.")
    ] = "space",
    file: Annotated[
        Path | None, typer.Option(help="JSON Lines with text and, where wanted, target, against and id.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put texts into the model's chat template.")] = False,
    faithfulness: Annotated[
        bool, typer.Option("--faithfulness", help="Measure comprehensiveness and sufficiency of the methods.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Of integrated-gradients.")] = 50,
    draws: Annotated[int, typer.Option(help="Of --faithfulness: random orders to compare with.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of random scores and orders.")] = 0,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    device_map: options.DeviceMap = None,
    max_memory: options.MaxMemory = None,
    checkpointing: options.Checkpointing = False,
    revision: options.Revision = None,
    memory: options.Memory = options.DEFAULT_MEMORY,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/explain-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of coloured text.")] = False,
) -> None:
    """Which tokens of TEXT make MODEL say what it says next?"""
    given = dict(locals())
    from assay.cli.explaining import carry_out

    carry_out(given, command_line(explain, "explain", given, positional=("model", "text")))
