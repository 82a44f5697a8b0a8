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
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from assay.errors import StoreError
from assay.store.differences import differences

SCHEMA_VERSION = 1
SCRATCH = ".assay-"
UNFINISHED = ("plan.json", "lock", "shards")
"""What lies in a run folder while its run is being computed; see `assay.store.unfinished`."""
SHARDS_KEPT = "shards_kept"
"""In run.json of a run that ended at a limit and can be gone on with: plan and shards are still there."""


@dataclass(frozen=True, eq=False)
class RunFiles:
    """The content of a run folder."""

    run: dict[str, Any]
    scores: pd.DataFrame
    components: pd.DataFrame
    prompts: list[dict[str, Any]]
    tensors: dict[str, np.ndarray]


def write_run(
    folder: str | Path,
    files: RunFiles,
    overwrite: bool = False,
    finish: Callable[[Path], object] = lambda _: None,
    *,
    held: bool = False,
) -> Path:
    """Write a run folder under a temporary name, then give it its own.

    An empty folder that is there already (it may be a mount point) is filled instead, run.json last.

    Args:
        overwrite: replace a run folder that is there already.
        finish: called with the temporary folder, to add more files.
        held: the folder is there, and this process holds the unfinished run in it.

    Raises:
        StoreError: the folder exists already or cannot be written.
    """
    folder = Path(folder).resolve()
    if held:
        pass
    elif overwrite and (folder / "run.json").is_file():
        read_run_json(folder)  # only a run of ours is ever replaced
    else:
        require_writable(folder)
    there = folder.is_dir()
    parent = folder if there and not overwrite else folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        scratch = Path(tempfile.mkdtemp(dir=parent, prefix=f"{SCRATCH}{socket.gethostname()}-{os.getpid()}-"))
    except OSError as error:
        raise StoreError(f"Cannot write to {parent}: {error.strerror}.") from error
    try:
        _write_files(scratch, files)
        finish(scratch)
        for path in scratch.iterdir():
            path.chmod(0o666 & ~_umask())
            sync(path)
        if parent == folder:
            names = sorted((path.name for path in scratch.iterdir()), key=lambda name: name == "run.json")
            for name in names:
                (scratch / name).rename(folder / name)
            sync(folder)
        else:
            scratch.chmod(0o777 & ~_umask())
            if there:
                shutil.rmtree(folder)
            scratch.rename(folder)
    except (OSError, UnicodeError) as error:
        raise StoreError(f"Cannot write {folder}: {getattr(error, 'strerror', None) or error}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _write_files(scratch: Path, files: RunFiles) -> None:
    files.scores.to_parquet(scratch / "scores.parquet", index=False)
    files.components.to_parquet(scratch / "components.parquet", index=False)
    lines = [json.dumps(prompt, ensure_ascii=False) for prompt in files.prompts]
    (scratch / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tensors = {name: np.ascontiguousarray(array) for name, array in files.tensors.items()}
    (scratch / "tensors.safetensors").write_bytes(save(tensors))
    run = {"schema_version": SCHEMA_VERSION, **files.run}
    text = json.dumps(run, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (scratch / "run.json").write_text(text, encoding="utf-8")


def _remove_abandoned(parent: Path) -> None:
    """Temporary folders whose process on this machine is gone (it was killed while writing)."""
    for path in parent.glob(f"{SCRATCH}{socket.gethostname()}-*"):
        process = path.name.rsplit("-", 2)[-2]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (OSError, ValueError):
            continue


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
        raise StoreError(f"{folder} is not a folder." if folder.exists() else f"There is no folder {folder}.")
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
    except FileNotFoundError as error:
        if (folder / UNFINISHED[0]).is_file():
            kept = len(list((folder / "shards").glob("*.safetensors")))
            raise StoreError(
                f"The run in {folder} is not finished: {kept} shards are there; its {UNFINISHED[0]} says of what. "
                "Give the command that began it again, unless it is still running."
            ) from error
        raise StoreError(f"{folder} is not a run folder: it has no run.json.") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder / 'run.json'} is damaged: {error}") from error
    found = run.get("schema_version") if isinstance(run, dict) else None
    if type(found) is not int or found != SCHEMA_VERSION:
        raise StoreError(
            f"{folder} has schema version {found}; this assay reads version {SCHEMA_VERSION}. Run it again."
        )
    return cast(dict[str, Any], run)


def finished_run(folder: Path, request: dict[str, Any], limit: str | None = None) -> bool:
    """Whether the folder holds a finished run of just this request.

    Args:
        limit: see `allows_more`. A run that it stopped is not finished if more is allowed now; one that ended by
            itself is.

    Raises:
        StoreError: it holds something else; the message names what differs.
    """
    if not os.path.exists(folder) or (folder.is_dir() and _is_ours_unfinished(folder)):
        return False
    run = read_run_json(folder)
    there = run.get("request", {})
    more = False
    if limit is not None and allows_more(there, request, limit):
        there, more = {**there, limit: request[limit]}, bool(run.get(SHARDS_KEPT))
    if different := differences(there, request):
        raise StoreError(
            f"{folder} holds a finished run of another configuration:\n"
            + "\n".join(different)
            + "\nChoose another --out."
        )
    return not more


def allows_more(there: dict[str, Any], now: dict[str, Any], limit: str) -> bool:
    """Whether a run had a limit, and a higher one (or none) is given now.

    Args:
        there: what was asked for then, or the configuration of then.
        limit: the entry that says how much may be spent; None is no limit.
    """
    spent, allowed = there.get(limit), now[limit]
    return spent is not None and (allowed is None or allowed > spent)


def require_writable(folder: Path) -> None:
    """Raise, before anything slow has begun, if ``folder`` cannot be created; nothing is left behind.

    Raises:
        StoreError: it exists and is not empty, or the place is not writable.
    """
    if os.path.exists(folder):
        if not folder.is_dir():
            raise StoreError(f"{folder} exists and is not a folder. Choose another --out.")
        if _content(folder):
            raise StoreError(f"{folder} exists already. Choose another folder, or overwrite=True from Python.")
    for part in reversed(make_folders(folder)):
        part.rmdir()


def require_ours_or_empty(folder: Path) -> None:
    """Refuse a folder that holds anything but a run of ours, finished or not.

    Raises:
        StoreError: it does.
    """
    if not os.path.exists(folder):
        return
    if not folder.is_dir():
        raise StoreError(f"{folder} exists and is not a folder. Choose another.")
    if not (_is_ours_unfinished(folder) or (folder / "run.json").is_file()):
        raise StoreError(f"{folder} exists already and holds no run. Choose another folder.")


def make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it, and see that files can be written there; gives the new ones, outermost first.

    Raises:
        StoreError: the place is not writable; nothing is left behind.
    """
    made: list[Path] = []
    try:
        for part in reversed([folder, *folder.parents]):
            if not os.path.exists(part):
                part.mkdir()
                made.append(part)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        for part in reversed(made):
            part.rmdir()
        raise StoreError(f"Cannot write {folder}: {error.strerror or error}.") from error
    return made


def sync(path: Path) -> None:
    """Bring a file or folder to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _is_ours_unfinished(folder: Path) -> bool:
    """Whether there is nothing in the folder, or a run that is not finished."""
    if (folder / "run.json").exists():
        return False
    ours = (*UNFINISHED, f".{UNFINISHED[0]}")  # the last is a plan that was being written when the process was killed
    return (folder / UNFINISHED[0]).is_file() or all(path.name in ours for path in _content(folder))


def _content(folder: Path) -> list[Path]:
    """What is in the folder, temporary folders apart."""
    return [path for path in folder.iterdir() if not path.name.startswith(SCRATCH)]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
