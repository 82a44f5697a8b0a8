"""Run folders of self-repair.

run.json              request, configuration, provenance, cost, summary, tokens
rows.parquet          one line per row of attention in which two keys matter (`SelfRepair.rows`)
compensation.parquet  one line per head and prompt, where components were ablated
prompts.jsonl         the prompt pairs as they were used
report.html           the page, where one was made
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.data.baseline import Baseline
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import AssayError, StoreError
from assay.interactions.compensation import Compensation
from assay.interactions.result import COLUMNS, SelfRepair, Sequences
from assay.sites import Component
from assay.store import require_writable
from assay.store.files import SCHEMA_VERSION, SCRATCH, read_run_json

KIND = "self-repair"
SCALARS = ("layers", "heads", "threshold", "relative", "temperature", "metric", "unit", "cost", "configuration")
OF_COMPENSATION = ("ablation", "metric", "unit", "cost", "configuration")


def save_self_repair(
    result: SelfRepair,
    folder: str | Path,
    request: dict[str, Any] | None = None,
    finish: Callable[[Path], object] = lambda _: None,
) -> None:
    """Write the folder whole, or nothing.

    Args:
        request: what was asked for on the command line.
        finish: called with the temporary folder, to add more files.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    folder = Path(folder)
    require_writable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=SCRATCH))
        try:
            _write(result, scratch, request or {})
            finish(scratch)
            scratch.chmod(0o755)
            if folder.is_dir():
                folder.rmdir()  # empty, or `require_writable` would have refused it
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"Cannot write {folder}: {error.strerror or error}.") from error


def _write(result: SelfRepair, scratch: Path, request: dict[str, Any]) -> None:
    pairs, components = result.pairs, result.compensation
    run = {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "request": request,
        **{name: getattr(result, name) for name in SCALARS},
        "provenance": result.provenance,
        "task": {"name": pairs.task, "metric": pairs.metric, "options": pairs.options},
        "baseline": {name: np.asarray(values, float).tolist() for name, values in vars(result.baseline).items()},
        "sequences": {"examples": result.sequences.examples, "tokens": result.sequences.tokens},
        "summary": result.summary(),
        "compensation": None
        if components is None
        else {
            **{name: getattr(components, name) for name in OF_COMPENSATION},
            "components": [[component.layer, component.unit] for component in components.components],
            "summary": components.summary(),
        },
    }
    text = json.dumps(run, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (scratch / "run.json").write_text(text, encoding="utf-8")
    lines = [json.dumps(record, ensure_ascii=False) for record in pairs.to_records()]
    (scratch / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    result.rows.to_parquet(scratch / "rows.parquet", index=False)
    if components is not None:
        components.per_example().to_parquet(scratch / "compensation.parquet", index=False)


def load_self_repair(folder: str | Path) -> SelfRepair:
    """Read a folder that `save_self_repair` or ``assay self-repair`` wrote.

    Raises:
        StoreError: not such a folder, or a damaged one.
    """
    folder = Path(folder)
    run = read_run_json(folder)
    if run.get("kind") != KIND:
        raise StoreError(f"{folder} holds no run of self-repair.")
    try:
        rows = pd.read_parquet(folder / "rows.parquet")
        if list(rows) != list(COLUMNS):
            raise ValueError("rows.parquet has other columns")
        lines = (folder / "prompts.jsonl").read_text("utf-8").split("\n")
        pairs = tuple(PromptPair(**json.loads(line)) for line in lines if line)
        task = run["task"]
        return SelfRepair(
            rows=rows,
            sequences=Sequences(
                tuple(run["sequences"]["examples"]), tuple(tuple(tokens) for tokens in run["sequences"]["tokens"])
            ),
            pairs=PromptPairs(pairs, task["name"], task["metric"], task["options"]),
            baseline=Baseline(**{name: np.array(values) for name, values in run["baseline"].items()}),
            compensation=None
            if run["compensation"] is None
            else _compensation(folder, run["compensation"], len(pairs)),
            provenance=run["provenance"],
            **{name: run[name] for name in SCALARS},
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError, AssayError) as error:
        raise StoreError(f"The files of {folder} are damaged or do not fit together: {error}") from error


def _compensation(folder: Path, kept: dict[str, Any], n: int) -> Compensation:
    frame = pd.read_parquet(folder / "compensation.parquet")
    return Compensation(
        components=tuple(Component(layer, "heads", unit) for layer, unit in kept["components"]),
        **{name: frame[name].to_numpy(float).reshape(-1, n) for name in ("direct", "rescaled", "total")},
        **{name: kept[name] for name in OF_COMPENSATION},
    )
