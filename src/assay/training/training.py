"""Seeds of one setting, trained into a folder by one or several processes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import OptionError, StoreError
from assay.methods.provenance import require_same_rounding, what_rounds
from assay.scale import Advance, Crew, Executor, InProcess, LocalProcesses
from assay.store.differences import differences
from assay.store.files import SCHEMA_VERSION, SCRATCH, make_folders, sync
from assay.store.lock import FolderLock
from assay.training.checkpoints import ABOUT, FINAL, Checkpoint, read_checkpoint, seed_folder
from assay.training.seed import train_seed
from assay.training.setting import TrainingSetting
from assay.training.state import read_log

LOCK = "lock"
Tell = Callable[[int, dict[str, Any]], object]
"""Called with a seed and what its log says of an evaluation."""


def train(
    setting: TrainingSetting,
    folder: str | Path,
    seeds: int = 1,
    jobs: int | Crew = 1,
    tell: Tell = lambda seed, line: None,
) -> list[Checkpoint]:
    """Train seeds 0 to ``seeds`` - 1, each with checkpoints, or go on with what was begun in the folder.

    Each seed is computed by one thread, and ends with the same bytes however often it was interrupted. The folder's
    seeds may become more later.

    Args:
        jobs: processes that train side by side, or who they are. Workers on other machines need the folder at the same
            path; a `assay.scale.RayCluster` is made with ``slow=None``, since one worker at a time trains a seed.
        tell: called after each evaluation.

    Returns:
        The last model of each seed.

    Raises:
        OptionError: fewer than one seed or job.
        StoreError: the folder holds something else or another setting, or another process trains in it.
        ModelError: a loss that is not a finite number.

    Source: Ye, arXiv 2602.01442; modular addition: Power et al., arXiv 2201.02177.
    """
    for name, value in (("--seeds", seeds), ("--jobs", 1 if isinstance(jobs, Crew) else jobs)):
        if value < 1:
            raise OptionError(f"{name} must be at least 1, not {value}.")
    folder = Path(folder).resolve()
    _require_same(folder, setting)
    make_folders(folder)
    lock = FolderLock(folder / LOCK)
    lock.acquire()
    try:
        _require_same(folder, setting)
        _write_setting(folder, setting)
        unfinished = [seed for seed in range(seeds) if not (seed_folder(folder, seed) / FINAL).is_dir()]
        news = _News(folder, unfinished, tell)
        workshop = Trainer(setting, folder)
        with _trainers(jobs, len(unfinished)) as trainers:
            for _ in trainers.run(workshop, unfinished, news.advance):
                pass
    finally:
        lock.release()
    return [read_checkpoint(seed_folder(folder, seed) / FINAL) for seed in range(seeds)]


@contextmanager
def _trainers(jobs: int | Crew, seeds: int) -> Iterator[Executor]:
    if isinstance(jobs, Crew):
        yield jobs
    elif jobs == 1 or seeds < 2:
        yield InProcess()
    else:
        with LocalProcesses(min(jobs, seeds)) as processes:
            yield processes


@dataclass(frozen=True)
class Trainer:
    """What a process needs to train a seed when it is told one."""

    setting: TrainingSetting
    folder: Path
    environment: dict[str, str] = field(default_factory=what_rounds)

    def __call__(self, advance: Advance) -> Callable[[int], None]:
        require_same_rounding(self.environment)
        if not (self.folder / ABOUT).is_file():
            raise StoreError(
                f"A worker on {socket.gethostname()} does not find {self.folder}. Every machine that trains must have "
                "the folder at the same path: use one that they share."
            )
        return lambda seed: train_seed(self.setting, seed, seed_folder(self.folder, seed), advance)


class _News:
    """Tells what processes add to the logs."""

    def __init__(self, folder: Path, seeds: list[int], tell: Tell) -> None:
        self._tell = tell
        self._folders = {seed: seed_folder(folder, seed) for seed in seeds}
        self._told = {seed: len(read_log(place)) for seed, place in self._folders.items()}

    def advance(self, _: int) -> None:
        for seed, place in self._folders.items():
            lines = read_log(place)
            for line in lines[self._told[seed] :]:
                self._tell(seed, line)
            self._told[seed] = max(self._told[seed], len(lines))


def _require_same(folder: Path, setting: TrainingSetting) -> None:
    """Refuse a folder that holds anything but a training of this setting.

    Raises:
        StoreError: it does.
    """
    if not os.path.exists(folder):
        return
    if not folder.is_dir():
        raise StoreError(f"{folder} exists and is not a folder. Choose another --out.")
    path = folder / ABOUT
    if not path.exists():
        if any(entry.name != LOCK and not entry.name.startswith(SCRATCH) for entry in folder.iterdir()):
            raise StoreError(f"{folder} exists already and holds no training. Choose another --out.")
        return
    try:
        there = json.loads(path.read_text("utf-8"))
        setting_there = TrainingSetting(**there["setting"]).to_dict()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged or no file of a training: {error}. Choose another --out.") from error
    if there.get("schema_version") != SCHEMA_VERSION:
        raise StoreError(
            f"{folder} has schema version {there.get('schema_version')}; this assay reads {SCHEMA_VERSION}."
        )
    if different := differences(setting_there, setting.to_dict()):
        raise StoreError(
            f"{folder} holds a training of another configuration:\n" + "\n".join(different) + "\nChoose another --out."
        )


def _write_setting(folder: Path, setting: TrainingSetting) -> None:
    if (folder / ABOUT).exists():
        return
    scratch = folder / f"{SCRATCH}{ABOUT}"
    content = {"schema_version": SCHEMA_VERSION, "kind": "training", "setting": setting.to_dict()}
    scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    sync(scratch)
    scratch.replace(folder / ABOUT)
