"""Run folders: plain files that any tool reads, written whole or not at all.

run.json             configuration, provenance, cost, baseline
scores.parquet       one value per component and example
components.parquet   one row per component
prompts.jsonl        the prompt pairs as they were used
tensors.safetensors  metric values of the unpatched runs, per example
report.html          the page, where one was made
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from assay.errors import StoreError

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class RunFiles:
    """The content of a run folder."""

    run: dict[str, Any]
    scores: pd.DataFrame
    components: pd.DataFrame
    prompts: list[dict[str, Any]]
    tensors: dict[str, np.ndarray]


def write_run(folder: str | Path, files: RunFiles, finish: Callable[[Path], object] = lambda _: None) -> Path:
    """Write a run folder under a temporary name, then give it its own.

    Args:
        finish: called with the temporary folder before it is renamed, to add more files.

    Raises:
        StoreError: the folder exists already or cannot be written.
    """
    folder = Path(folder)
    require_writable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise StoreError(f"Cannot write to {folder.parent}: {error.strerror}.") from error
    try:
        scratch.chmod(0o777 & ~_umask())
        files.scores.to_parquet(scratch / "scores.parquet", index=False)
        files.components.to_parquet(scratch / "components.parquet", index=False)
        lines = [json.dumps(prompt, ensure_ascii=False) for prompt in files.prompts]
        (scratch / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        tensors = {name: np.ascontiguousarray(array) for name, array in files.tensors.items()}
        save_file(tensors, scratch / "tensors.safetensors")
        run = {"schema_version": SCHEMA_VERSION, **files.run}
        text = json.dumps(run, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        (scratch / "run.json").write_text(text, encoding="utf-8")
        finish(scratch)
        for path in scratch.iterdir():
            path.chmod(0o666 & ~_umask())
        scratch.rename(folder)
    except OSError as error:
        raise StoreError(f"Cannot write {folder}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def read_run(folder: str | Path) -> RunFiles:
    """Read a run folder.

    Raises:
        StoreError: no such folder, not a run folder, another schema version, or a damaged file.
    """
    folder = Path(folder)
    run = read_run_json(folder)
    path = folder
    try:
        path = folder / "scores.parquet"
        scores = pd.read_parquet(path)
        path = folder / "components.parquet"
        components = pd.read_parquet(path)
        path = folder / "prompts.jsonl"
        prompts = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
        path = folder / "tensors.safetensors"
        tensors = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError(f"{path} is missing or damaged: {error}") from error
    return RunFiles(run, scores, components, prompts, tensors)


def read_run_json(folder: Path) -> dict[str, Any]:
    """The folder's run.json.

    Raises:
        StoreError: see `read_run`.
    """
    if not folder.is_dir():
        raise StoreError(f"There is no folder {folder}.")
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
    except FileNotFoundError as error:
        raise StoreError(f"{folder} is not a run folder: it has no run.json.") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder / 'run.json'} is damaged: {error}") from error
    found = run.get("schema_version") if isinstance(run, dict) else None
    if found != SCHEMA_VERSION:
        raise StoreError(
            f"{folder} has schema version {found}; this assay reads version {SCHEMA_VERSION}. Run it again."
        )
    return cast(dict[str, Any], run)


def finished_run(folder: Path, configuration: dict[str, Any]) -> bool:
    """Whether the folder holds a finished run of just this configuration.

    Raises:
        StoreError: it holds something else; the message names what differs.
    """
    if not folder.exists():
        return False
    if folder.is_dir() and not any(folder.iterdir()):
        return False
    found = read_run_json(folder).get("configuration", {})
    names = sorted({*found, *configuration})
    different = [
        f"  {name}: {json.dumps(found.get(name))} there, {json.dumps(configuration.get(name))} now"
        for name in names
        if found.get(name) != configuration.get(name)
    ]
    if different:
        raise StoreError(
            f"{folder} holds a finished run of another configuration:\n"
            + "\n".join(different)
            + "\nChoose another --out."
        )
    return True


def require_writable(folder: Path) -> None:
    """Raise, before anything slow has begun, if ``folder`` cannot be created.

    Raises:
        StoreError: it exists and is not empty, or the place is not writable.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise StoreError(f"{folder} exists already. Choose another folder.")
    ancestor = folder.absolute().parent
    while not ancestor.exists():
        ancestor = ancestor.parent
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
        raise StoreError(f"Cannot write {folder}: {ancestor} is not a writable folder.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
