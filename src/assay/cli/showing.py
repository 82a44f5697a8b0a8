"""What ``assay show`` does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from assay.audit import Audit
from assay.audit.folder import KIND as AUDIT
from assay.circuits.found import KIND as CIRCUIT
from assay.circuits.found import FoundCircuit
from assay.cli.console import make_console
from assay.errors import OptionError
from assay.interactions.folder import KIND as SELF_REPAIR
from assay.interactions.folder import load_self_repair
from assay.interactions.pairs import Interactions
from assay.interactions.pairs_folder import KIND as INTERACTIONS
from assay.report import audit, interactions, print_finished, response
from assay.report.circuit_terminal import circuit_as_json, print_circuit
from assay.report.comparison import print_comparison, print_headline, print_setting, read_comparison
from assay.report.explanations import print_explanations
from assay.report.self_repair import as_json as self_repair_as_json
from assay.report.self_repair import print_self_repair
from assay.scores import Scores
from assay.screening import KIND, ScreenedScores
from assay.store.files import SCHEMA_VERSION, read_run_json
from assay.tokens import Explanations
from assay.tokens.result import KIND as EXPLANATION


def show(folder: Path, top: int, as_json: bool) -> None:
    """Print a finished run, whatever it is of.

    Args:
        top: how many of the largest components, or heads, where there are any.
    """
    if top < 1:
        raise OptionError(f"--top must be at least 1, not {top}.")
    run = read_run_json(folder)
    content, to_console = _SHOWN.get(run.get("kind", ""), _scores)(folder, run, top)
    if as_json:
        print(json.dumps(content(), indent=2, ensure_ascii=False))
    else:
        to_console(make_console())


Shown = tuple[Callable[[], Any], Callable[[Console], None]]
"""What ``--json`` prints, and what prints a run for people."""


def _comparison(folder: Path, run: dict[str, Any], top: int) -> Shown:
    def to_console(console: Console) -> None:
        print_headline(console, run)
        print_setting(console, run)
        print_comparison(console, read_comparison(run), run["request"]["k"])

    return lambda: run, to_console


def _response(folder: Path, run: dict[str, Any], top: int) -> Shown:
    curve = response.read_response(run)
    return lambda: response.response_to_dict(curve), lambda console: response.print_response(console, curve, folder)


def _self_repair(folder: Path, run: dict[str, Any], top: int) -> Shown:
    found = load_self_repair(folder)
    return lambda: self_repair_as_json(found, top), lambda console: print_self_repair(console, found, top)


def _interactions(folder: Path, run: dict[str, Any], top: int) -> Shown:
    found = Interactions.load(folder)
    return lambda: interactions.as_json(found, top), lambda console: interactions.print_interactions(
        console, found, top
    )


def _audit(folder: Path, run: dict[str, Any], top: int) -> Shown:
    found = Audit.load(folder)
    return lambda: audit.as_json(found, top), lambda console: audit.print_audit(console, found, top)


def _explanations(folder: Path, run: dict[str, Any], top: int) -> Shown:
    found = Explanations.load(folder)
    return found.to_dict, lambda console: print_explanations(console, found, folder)


def _circuit(folder: Path, run: dict[str, Any], top: int) -> Shown:
    found = FoundCircuit.load(folder)
    return lambda: circuit_as_json(found, top), lambda console: print_circuit(console, found, top, folder)


def _scores(folder: Path, run: dict[str, Any], top: int) -> Shown:
    scores = ScreenedScores.load(folder) if run.get("kind") == KIND else Scores.load(folder)
    return lambda: _as_json(scores, top), lambda console: print_finished(console, scores, top, folder)


_SHOWN: dict[str, Callable[[Path, dict[str, Any], int], Shown]] = {
    "comparison": _comparison,
    response.KIND: _response,
    SELF_REPAIR: _self_repair,
    INTERACTIONS: _interactions,
    AUDIT: _audit,
    EXPLANATION: _explanations,
    CIRCUIT: _circuit,
}
"""By ``kind`` in run.json; others hold scores."""


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
