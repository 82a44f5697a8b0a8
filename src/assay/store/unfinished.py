"""A run folder while its run is being computed. It can be left at any moment and gone on with.

lock                     held by the process that computes (see `lock`)
plan.json                what the run is, and what it is cut into: whatever decides its bytes
shards/00012.safetensors what one shard gave: ``values`` (components, rows), float64; in the header's metadata
                         its number, its cost and a SHA-256 over those, the plan, what it is of and the values

Every file is written under another name, brought to the disk and renamed, so it is there whole or not at all.
A run that ends at a limit keeps plan and shards beside its result: with a higher limit it is gone on with.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from assay.errors import StoreError
from assay.store.differences import differences
from assay.store.files import (
    SHARDS_KEPT,
    UNFINISHED,
    RunFiles,
    make_folders,
    read_run_json,
    require_ours_or_empty,
    sync,
    write_run,
)
from assay.store.lock import FolderLock

PLAN_VERSION = 1
VALUES = "values"


class RunFolder:
    """Holds a run folder for this process, from ``with`` on until its block ends.

    What was finished of the run stays when the block is left by an error; a folder in which nothing was finished
    is left as it was found.

    Args:
        request: what was asked for on the command line; None from Python.

    Raises:
        StoreError: another process holds the folder, it cannot be written, or it holds something else.
    """

    def __init__(self, folder: str | Path, request: dict[str, Any] | None = None) -> None:
        self.path = Path(folder).resolve()
        self.request = request
        self._lock = FolderLock(self.path / "lock")
        self._made: list[Path] = []
        self._hash = ""

    def __enter__(self) -> RunFolder:
        require_ours_or_empty(self.path)
        self._made = make_folders(self.path)
        try:
            self._lock.acquire()
            if not self.kept:
                self._clear()  # it was stopped before anything was finished
            there = read_plan(self.path)
            if there is not None and there["request"] and self.request:
                self._require_same(there["request"], self.request)
        except OSError as error:
            self._leave()
            raise StoreError(f"Cannot write {self.path}: {error.strerror}.") from error
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        try:
            if self._lock.held:
                if (self.is_finished and not self._ended_at_a_limit) or not self.kept:
                    self._clear()
                self._lock.release()
            for made in reversed(self._made):
                made.rmdir()
        except OSError:
            return  # not empty, or the disk is gone: nothing is lost by what is left behind

    @property
    def is_finished(self) -> bool:
        return (self.path / "run.json").is_file()

    @property
    def _ended_at_a_limit(self) -> bool:
        try:
            return bool(read_run_json(self.path).get(SHARDS_KEPT))
        except StoreError:
            return False

    @property
    def kept(self) -> int:
        """How many shards are there."""
        return len(list((self.path / "shards").glob("*.safetensors")))

    @property
    def progress(self) -> str:
        """How many shards are there, and of how many where that is known."""
        kept, plan = self.kept, self.plan
        if plan is not None and isinstance(plan["shards"], int):
            return f"{kept} of {plan['shards']} shards are"
        return "1 shard is" if kept == 1 else f"{kept} shards are"

    @property
    def plan(self) -> dict[str, Any] | None:
        """The plan of the run that is going on here; None before it began."""
        there = read_plan(self.path)
        return None if there is None else there["plan"]

    def begin(self, plan: dict[str, Any]) -> None:
        """Write the plan down, or make sure that it is the one that is being carried out here. The result of a run
        that ended at a limit is given up; its shards give it again.

        Raises:
            StoreError: it is not (the message names what differs), or it cannot be written.
        """
        now = json.loads(json.dumps(plan))
        if (there := self.plan) is not None:
            self._require_same(there, now)
        else:
            content = {"schema_version": PLAN_VERSION, "request": self.request or {}, "plan": now}
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            self._write(self.path / "plan.json", text.encode())
        (self.path / "run.json").unlink(missing_ok=True)
        self._hash = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()

    def _require_same(self, there: dict[str, Any], now: dict[str, Any]) -> None:
        if different := differences(there, now):
            raise StoreError(
                f"{self.path} holds an unfinished run of another configuration:\n"
                + "\n".join(different)
                + "\nGo on with the command that began it, choose another folder, or delete this one."
            )

    def read_shard(self, number: int, content: str) -> tuple[np.ndarray, dict[str, Any]] | None:
        """Values and cost of a finished shard; None if it must be done again: it is missing, damaged, or of something
        else.

        Args:
            content: what it is of, as it was written.
        """
        try:
            data = self._shard(number).read_bytes()
            (size,) = np.frombuffer(data[:8], "<u8")
            metadata = json.loads(data[8 : 8 + int(size)])["__metadata__"]
            values = load(data)[VALUES]
            whole = metadata["sha256"] == self._digest(number, content, values, metadata["cost"])
            return (values, json.loads(metadata["cost"])) if whole else None
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            return None

    def write_shard(self, number: int, content: str, values: np.ndarray, cost: dict[str, Any]) -> None:
        """Keep what a shard gave.

        Raises:
            StoreError: the disk is full, or what else the system says.
        """
        values = np.ascontiguousarray(values, "<f8")
        text = json.dumps(cost)
        metadata = {"number": str(number), "cost": text, "sha256": self._digest(number, content, values, text)}
        self._write(self._shard(number), save({VALUES: values}, metadata))

    def _shard(self, number: int) -> Path:
        return self.path / "shards" / f"{number:05d}.safetensors"

    def _digest(self, number: int, content: str, values: np.ndarray, cost: str) -> str:
        label = json.dumps([self._hash, number, content, list(values.shape), cost])
        return hashlib.sha256(label.encode() + values.tobytes()).hexdigest()

    def _write(self, path: Path, data: bytes) -> None:
        scratch = path.with_name(f".{path.name}")
        try:
            path.parent.mkdir(exist_ok=True)
            scratch.write_bytes(data)
            sync(scratch)
            scratch.rename(path)
            sync(path.parent)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise StoreError(
                f"Cannot write {path}: {error.strerror}. The {self.kept} shards that are finished are kept; make room "
                "and give the same command again to go on."
            ) from error

    def write(
        self, files: RunFiles, finish: Callable[[Path], object] = lambda _: None, *, keep_shards: bool = False
    ) -> Path:
        """Write the finished run and remove what was kept on the way.

        Args:
            keep_shards: the run ended at a limit; leave what was kept, to go on from with a higher one.

        Raises:
            StoreError: it cannot be written; the shards are still there.
        """
        if keep_shards:
            files = replace(files, run={**files.run, SHARDS_KEPT: True})
        try:
            write_run(self.path, files, finish=finish, held=True)
        except StoreError as error:
            raise StoreError(f"{error} All shards are kept; give the same command again to finish.") from error
        if not keep_shards:
            self._clear()
        return self.path

    def _clear(self) -> None:
        for name in ("plan.json", ".plan.json"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "shards", ignore_errors=True)


def read_plan(folder: Path) -> dict[str, Any] | None:
    """The plan.json of an unfinished run; None if there is none.

    Raises:
        StoreError: it is damaged or of another schema version.
    """
    try:
        content = json.loads((folder / UNFINISHED[0]).read_text("utf-8"))
        if content["schema_version"] == PLAN_VERSION:
            return {"request": dict(content["request"]), "plan": dict(content["plan"])}
        problem = f"has schema version {content['schema_version']}, not {PLAN_VERSION}"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"is damaged: {error}"
    raise StoreError(f"{folder / UNFINISHED[0]} {problem}. Delete {folder} and begin again.")
