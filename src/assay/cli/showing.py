"""What ``assay show`` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from assay.cli.console import make_console
from assay.errors import OptionError
from assay.interactions.folder import KIND as SELF_REPAIR
from assay.interactions.folder import load_self_repair
from assay.report import print_finished, response
from assay.report.comparison import print_comparison, print_setting, read_comparison
from assay.report.self_repair import as_json as self_repair_as_json
from assay.report.self_repair import print_self_repair
from assay.scores import Scores
from assay.screening import KIND, ScreenedScores
from assay.store.files import SCHEMA_VERSION, read_run_json


def show(folder: Path, top: int, as_json: bool) -> None:
    """Print the largest components of a finished run, or what a comparison found."""
    if top < 1:
        raise OptionError(f"--top must be at least 1, not {top}.")
    run = read_run_json(folder)
    if run.get("kind") == "comparison":
        if as_json:
            print(json.dumps(run, indent=2, ensure_ascii=False))
        else:
            console = make_console()
            print_setting(console, run)
            print_comparison(console, read_comparison(run), run["request"]["k"])
        return
    if run.get("kind") == response.KIND:
        curve = response.read_response(run)
        if as_json:
            print(json.dumps(response.response_to_dict(curve), indent=2, ensure_ascii=False))
        else:
            response.print_response(make_console(), curve, folder)
        return
    if run.get("kind") == SELF_REPAIR:
        found = load_self_repair(folder)
        if as_json:
            print(json.dumps(self_repair_as_json(found, top), indent=2, ensure_ascii=False))
        else:
            print_self_repair(make_console(), found, top)
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
        "schema_version": SCHEMA_VERSION,
        "kind": KIND if isinstance(scores, ScreenedScores) else "scores",
        **(scores.summary() if isinstance(scores, ScreenedScores) else {}),
        "method": scores.method,
        "direction": scores.direction,
        "metric": scores.metric,
        "unit": scores.unit,
        "baseline": scores.baseline.summary(),
        "examples": len(scores.pairs),
        "components": len(scores.components),
        "top": records,
        "cost": scores.cost,
        "configuration": scores.configuration,
        "provenance": scores.provenance,
    }
