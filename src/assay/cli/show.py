"""``assay show``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from assay.cli.console import make_console
from assay.errors import OptionError
from assay.report import print_finished
from assay.report.comparison import print_comparison, read_comparison
from assay.report.explanations import print_explanations
from assay.scores import Scores
from assay.screening import KIND, ScreenedScores
from assay.store.files import read_run_json
from assay.tokens import Explanations
from assay.tokens.result import KIND as EXPLANATION


def show(
    folder: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    top: Annotated[int, typer.Option(help="Components to print.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Print a finished run."""
    if top < 1:
        raise OptionError(f"--top must be at least 1, not {top}.")
    run = read_run_json(folder)
    if run.get("kind") == "comparison":
        if as_json:
            print(json.dumps(run, indent=2, ensure_ascii=False))
        else:
            print_comparison(make_console(), read_comparison(run), run["request"]["k"])
        return
    if run.get("kind") == EXPLANATION:
        found = Explanations.load(folder)
        if as_json:
            print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
        else:
            print_explanations(make_console(), found, folder)
        return
    screened = run.get("kind") == KIND
    scores = ScreenedScores.load(folder) if screened else Scores.load(folder)
    if as_json:
        print(json.dumps(_as_json(scores, top), indent=2, ensure_ascii=False))
        return
    console = make_console()
    print_finished(console, scores, top, folder)


def _as_json(scores: Scores, top: int) -> dict[str, Any]:
    frame = scores.top(top)
    records = frame.astype(object).where(pd.notna(frame), None).to_dict("records")
    return {
        **(scores.summary() if isinstance(scores, ScreenedScores) else {}),
        "method": scores.method,
        "direction": scores.direction,
        "metric": scores.metric,
        "unit": scores.unit,
        "baseline": {
            "clean": float(scores.baseline.clean.mean()),
            "corrupted": float(scores.baseline.corrupted.mean()),
            "difference": scores.baseline.difference,
        },
        "examples": len(scores.pairs),
        "components": len(scores.components),
        "top": records,
        "cost": scores.cost,
        "configuration": scores.configuration,
        "provenance": scores.provenance,
    }
