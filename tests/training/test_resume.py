"""A training that was killed, however often, ends with the bytes of one that never was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from assay.errors import StoreError
from assay.training import train
from assay.training.seed import train_seed
from assay.training.state import STATE
from training.test_training import contents, tiny

STEPS = 150
PROGRAM = """
import sys
from assay.training import train, training_setting
if __name__ == "__main__":
    setting = training_setting({task!r}, layers=1, heads=2, width=16, batch=8, held_out=20, evaluate_every=10,
                               steps={steps})
    train(setting, sys.argv[1], seeds=2, jobs={jobs})
"""


def evaluations(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("seed-*/log.jsonl"))


def is_finished(folder: Path) -> bool:
    return all((folder / f"seed-{seed}" / "final").is_dir() for seed in (0, 1))


@pytest.mark.parametrize(("task", "jobs"), [("sort", 1), ("reverse", 2)])
def test_killed_and_resumed_is_as_never_killed(task: str, jobs: int, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(task=task, jobs=jobs, steps=STEPS))
    killed = tmp_path / "killed"
    kills = 0
    for more in (1, 5, 11):
        begun = evaluations(killed)
        process = subprocess.Popen([sys.executable, str(script), str(killed)], stderr=subprocess.PIPE)
        deadline = time.monotonic() + 240
        while process.poll() is None and evaluations(killed) < begun + more and time.monotonic() < deadline:
            time.sleep(0.001)
        assert process.poll() in (None, 0), process.stderr and process.stderr.read().decode()
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += not is_finished(killed)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        time.sleep(1)  # workers end with their parent, a moment after it
    assert kills, "it was never killed on the way"
    subprocess.run([sys.executable, str(script), str(killed)], check=True, timeout=240)
    train(tiny(task, steps=STEPS), tmp_path / "whole", seeds=2)
    there, whole = contents(killed), contents(tmp_path / "whole")
    there.pop("lock", None)
    assert sorted(there) == sorted(whole)
    assert there == whole


def interrupt(folder: Path, after: int) -> None:
    """Train seed 0, until so many evaluations are through."""
    left = [after]

    def advance(_: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_seed(tiny(), 0, folder / "seed-0", advance)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_what_was_logged_or_kept_after_the_last_state_is_done_again(after: int, tmp_path: Path) -> None:
    train(tiny(), tmp_path / "whole")
    folder = tmp_path / "part"
    interrupt(folder, after)
    with (folder / "seed-0/log.jsonl").open("a") as file:
        file.write(json.dumps({"step": 29, "loss": 1.0, "trained": 0.0, "accuracy": 1.0}) + '\n{"step": 3')
    (folder / "seed-0/.assay-half").mkdir()
    (folder / "seed-0/.assay-half/config.json").write_text("{")
    train_seed(tiny(), 0, folder / "seed-0", lambda _: None)
    assert contents(folder / "seed-0") == contents(tmp_path / "whole/seed-0")


def test_a_state_of_another_torch_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    interrupt(tmp_path, 3)
    path = tmp_path / "seed-0" / STATE
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {"step": "13", "torch": "1.0"})
    with pytest.raises(StoreError, match=r"begun with torch 1\.0"):
        train_seed(tiny(), 0, tmp_path / "seed-0", lambda _: None)
    tensors.pop("generator")
    save_file(tensors, path, {"step": "13", "torch": torch.__version__})
    with pytest.raises(StoreError, match="is damaged"):
        train_seed(tiny(), 0, tmp_path / "seed-0", lambda _: None)
    path.write_bytes(b"half")
    with pytest.raises(StoreError, match="is damaged"):
        train_seed(tiny(), 0, tmp_path / "seed-0", lambda _: None)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    setting = tiny(steps=2)

    def meanwhile(seed: int, line: dict[str, Any]) -> None:
        if line["step"] == 0:
            with pytest.raises(StoreError, match="in use"):
                train_seed(setting, seed, tmp_path / "seed-0", lambda _: None)
            with pytest.raises(StoreError, match="in use"):
                train(setting, tmp_path)

    train(setting, tmp_path, tell=meanwhile)
