"""``assay train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.early import trainers_for


def train(
    task: Annotated[str, typer.Argument(help="reverse, sort or modular-addition.", show_default=False)],
    seeds: Annotated[int, typer.Option(help="Models, of seeds 0, 1, ...")] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Seeds trained side by side, each by a process of one thread. Default: 1; with --ray one for each "
            "processor."
        ),
    ] = None,
    ray: options.Ray = None,
    positions: Annotated[str, typer.Option(help="none (the causal mask alone), rotary or learned.")] = "none",
    steps: Annotated[
        int | None, typer.Option(help="At most. Default: 15000 of reverse, 3000 of sort, 20000 of modular-addition.")
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="Take all steps, also after 90 % of the held-out examples are right.")
    ] = False,
    weight_decay: Annotated[float | None, typer.Option(help="Default: 0; of modular-addition 1.")] = None,
    share: Annotated[
        float | None, typer.Option(help="Of modular-addition: share of all sums to train on, 0.3 to 0.7 (default 0.5).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/train-TASK.")] = None,
) -> None:
    """Train small models from nothing, with checkpoints on the way (arXiv 2602.01442; grokking: 2201.02177).

    Stopped at any moment, the same command goes on and ends with the same bytes.
    """
    given = dict(locals())
    with trainers_for(given) as trainers:
        from assay.cli.training import carry_out

        carry_out(given, trainers)
