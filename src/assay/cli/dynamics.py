"""``assay dynamics``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dynamics(
    training: Annotated[Path, typer.Argument(help="Folder of assay train.", show_default=False)],
    n: Annotated[int, typer.Option("--n", help="Prompts in distribution, and as many out of it.")] = 500,
    length: Annotated[int, typer.Option(help="Of reverse and sort: numbers of a prompt in distribution.")] = 5,
    ood_length: Annotated[int, typer.Option(min=8, max=11, help="Of reverse and sort: out of distribution.")] = 9,
    ablation: Annotated[str, typer.Option(help="mean, zero or resample.")] = "mean",
    seeds: Annotated[str | None, typer.Option(help="Of the training, such as 0,3. Default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: TRAINING-dynamics.")] = None,
) -> None:
    """Gradient against cause at every checkpoint of a training: correlation, classes, redundancy, accuracy.

    Out of distribution are longer sequences, or the sums that modular-addition was not trained on. Stopped at any
    moment, the same command goes on.
    """
    given = dict(locals())
    from assay.cli.again import command_line
    from assay.cli.dynamic import carry_out

    carry_out(given, command_line(dynamics, "dynamics", given, ("training",)))
