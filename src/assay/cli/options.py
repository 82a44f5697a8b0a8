"""Options that several commands take, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Written out, not imported: that would take seconds before a mistyped option is refused. tests/cli/test_start.py
# compares them with what they stand for.
DTYPES = ("float32", "float64", "bfloat16", "float16")
DEFAULT_MEMORY = "2G"
DEFAULT_SITES = "heads,mlps"
RULES = ("left", "right", "midpoint", "trapezoid", "gauss-legendre")
RIVALS = ("|grad.delta|", "grad.delta", "gim", "integrated-gradients", "hvp")
FIXES = ("exact", "hvp", "ms-hvp")

Model = Annotated[
    str, typer.Argument(help="Short name (assay list models), local folder, GGUF file, or hub id.", show_default=False)
]
Task = Annotated[
    str,
    typer.Option(
        help="A task (assay list tasks), a .jsonl, .csv, .parquet or .json file of prompts, or a data set as "
        "hf:owner/name[:config][:split]."
    ),
]
Number = Annotated[
    int | None,
    typer.Option("--n", help="Prompt pairs; of a file, the first so many. Default: 16 of a task, all of a file."),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the task's prompts and of everything that is drawn.")]
Sites = Annotated[str, typer.Option(help="Comma-separated (assay list sites), such as heads[8:24]@last,mlps.")]
MetricName = Annotated[str | None, typer.Option(help="See assay list metrics. Default: the task's.")]
DirectionName = Annotated[
    str | None, typer.Option(help="denoise: clean into corrupted (default). noise: corrupted into clean.")
]
Corruption = Annotated[str | None, typer.Option(help="Of ioi: abc (default), swap, random-token.")]
Length = Annotated[
    int | None, typer.Option(help="Of sort and reverse: numbers (default 5). Of induction: words (default 6).")
]
Relation = Annotated[str | None, typer.Option(help="Of facts: one, such as country-capital; default all.")]
TaskKind = Annotated[
    str | None,
    typer.Option(
        help="Of sentiment: reviews (default) or words. Of modular-addition: held-out (default), trained or all."
    ),
]
Operation = Annotated[str | None, typer.Option(help="Of arithmetic: plus (default) or minus.")]
Columns = Annotated[
    str | None, typer.Option(help="Of a table: what its columns are called, as in clean=prompt,answer=target.")
]
Template = Annotated[int | None, typer.Option(help="Of a relation: which of its templates (default 0).")]
AlignName = Annotated[
    str,
    typer.Option(
        help="Prompts of unequal token length: reject; skip: leave such pairs out, --n counts the others; pad the "
        "shorter in front, with tokens that are attended to; last-k: keep only the last tokens of both."
    ),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Put prompts into the model's chat template; answers then need no space.")
]
Dtype = Annotated[str, typer.Option(help=f"Of the weights: {', '.join(DTYPES)}.")]
Device = Annotated[str, typer.Option(help="A torch device.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="auto, balanced, sequential: spread over all devices. cpu, disk: weights stay in main memory or in their "
        "files, and come to --device when they are called. Or a .json file: module names and their devices.",
    ),
]
MaxMemory = Annotated[
    str | None, typer.Option(metavar="LIMITS", help="Of each device, for --device-map: 0=20GiB,cpu=60GiB.")
]
Checkpointing = Annotated[
    bool, typer.Option("--checkpointing", help="Gradients compute a layer's inside again, instead of keeping it.")
]
Revision = Annotated[str | None, typer.Option(help="Of a hub model: branch, tag or commit.")]
Memory = Annotated[str, typer.Option(help="Working memory of each process beyond the weights; sets batch sizes.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Compute in so many processes of one thread each. Default: in this one, with torch's own threads."
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:PORT]",
        help="Compute on a Ray cluster, by --jobs workers (default: one for each processor): one that is started here, "
        "or the one whose head is at this address (auto: the one of this machine).",
    ),
]
Force = Annotated[bool, typer.Option(help="Go on although the model cannot do the task.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Run folder. Default: runs/<command>-<task>-<hash>. The same command goes on with a run that was "
        "interrupted."
    ),
]
