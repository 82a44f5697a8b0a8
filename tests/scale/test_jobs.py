"""Runs in worker processes give the same bytes as in one, and leave nobody behind."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import assay
from assay.cli import main
from assay.data.metrics import METRICS
from assay.errors import ModelError, OptionError, WorkerError
from assay.methods import sharded
from assay.methods.method import Setting
from assay.methods.workbench import Order
from assay.scale import LocalProcesses
from assay.sites import heads
from conftest import random_pairs, tiny_model, tiny_tokenizer, wrapped
from scale.interrupted import bytes_of, in_small_shards


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on the disk, which other processes can load."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama", torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def kill_workers(how_many: int, when: Callable[[], object] = lambda: True) -> list[int]:
    """Kill workers, the oldest first, from another thread; their process numbers, as they die."""
    killed: list[int] = []

    def watch() -> None:
        end = time.monotonic() + 120
        while len(killed) < how_many and time.monotonic() < end:
            for process in sorted(multiprocessing.active_children(), key=lambda process: process.pid or 0):
                if when() and process.pid and process.pid not in killed and len(killed) < how_many:
                    killed.append(process.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()
    return killed


def test_two_processes_one_of_them_killed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_shards(monkeypatch)
    model, pairs = assay.load(folder), random_pairs(6)
    options = {"sites": heads(model), "metric": "kl", "force": True}
    assay.activation_patching(model, pairs, jobs=1, run_folder=tmp_path / "one", **options)
    killed = kill_workers(1, when=lambda: len(list(tmp_path.glob("two/shards/*.safetensors"))) > 1)
    assay.activation_patching(model, pairs, jobs=2, run_folder=tmp_path / "two", **options)
    assert killed
    assert bytes_of(tmp_path / "two") == bytes_of(tmp_path / "one")
    assert not multiprocessing.active_children()


def test_a_shard_that_kills_its_workers_is_named(folder: Path, tmp_path: Path) -> None:
    killed = kill_workers(2)
    with pytest.raises(WorkerError, match=r"killed by SIGKILL while it computed shard 0 \(prompt block 0, L0H0 to"):
        assay.activation_patching(
            assay.load(folder), random_pairs(1), jobs=2, run_folder=tmp_path / "run", sites="heads", force=True
        )
    assert len(killed) == 2
    assert not multiprocessing.active_children()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_workers_and_frees_the_folder(folder: Path, tmp_path: Path) -> None:
    def interrupt() -> None:
        while not multiprocessing.active_children():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    model, pairs = assay.load(folder), random_pairs(3)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        assay.activation_patching(model, pairs, jobs=2, run_folder=tmp_path / "run", force=True)
    assert not multiprocessing.active_children()
    assert list(tmp_path.iterdir()) == []


def fail_on(advance: Callable[[int], object]) -> Callable[[int], int]:
    def work(task: int) -> int:
        advance(1)
        if task == 2:
            raise ModelError("no more")
        return task

    return work


def test_what_a_worker_raises_is_raised_here() -> None:
    done, parts = [], []
    results = LocalProcesses(1).run(fail_on, [0, 1, 2, 3], parts.append)
    with pytest.raises(ModelError, match="no more") as caught:
        done.extend(iter(lambda: next(results), None))
    assert done == [(0, 0), (1, 1)]
    assert sum(parts) == 3
    assert "In a worker process" in caught.value.__notes__[0]
    assert not multiprocessing.active_children()


def test_what_other_processes_cannot_have_is_refused(folder: Path) -> None:
    pairs, model = random_pairs(2), assay.load(folder)
    with pytest.raises(OptionError, match="handed over in memory"):
        assay.activation_patching(wrapped("llama"), pairs, jobs=2, force=True)
    mine = replace(METRICS["log-prob"], name="mine", row_values=lambda logits, targets: logits.mean((1, 2)))
    with pytest.raises(OptionError, match="cannot be sent to other processes"):
        assay.activation_patching(model, pairs, metric=mine, jobs=2, force=True)
    with pytest.raises(OptionError, match="at least 1"):
        assay.activation_patching(model, pairs, jobs=0)
    hook = model.layers[0].mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(OptionError, match="Hooks"):
        assay.activation_patching(model, pairs, jobs=2, force=True)
    hook.remove()


def test_workers_refuse_a_model_that_was_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = assay.load(folder)
    orders: list[Order] = []

    class Here:
        def __init__(self, _: int) -> None: ...

        def run(self, order: Order, tasks, advance):
            orders.append(order)
            yield from LocalProcesses.run(self, order, [], advance)

        processes = 0

    monkeypatch.setattr(sharded, "LocalProcesses", Here)
    with torch.no_grad():
        model.hf.lm_head.weight[0, 0] += 1
    with pytest.raises(KeyError):  # nothing was computed
        assay.activation_patching(model, random_pairs(2), jobs=2, force=True)
    assert isinstance(orders[0].setting, Setting)
    with pytest.raises(ModelError, match="not the model of this process"):
        orders[0](lambda _: None)


def prompts(path: Path) -> Path:
    """Sorting tasks of many lengths, each a block of its own."""
    lines = []
    for length in range(2, 10):
        numbers = list(range(1, length + 1))
        first, second = (" ".join(map(str, order)) for order in (numbers[::-1], [n + 1 for n in numbers[::-1]]))
        answers = (" ".join(map(str, order)) for order in (numbers, [n + 1 for n in numbers]))
        clean, corrupted = f"START {first} SEP", f"START {second} SEP"
        right, wrong = (f" {answer} END" for answer in answers)
        lines.append({"clean": clean, "corrupted": corrupted, "answer": right, "wrong_answer": wrong})
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_command_killed_with_its_workers_and_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", "from assay.cli import main; main()", "score", "sequence-sort", "--task"]
    command += [str(prompts(tmp_path / "prompts.jsonl")), "--sites", "heads,mlps,q,k,v", "--jobs"]
    first = subprocess.Popen([*command, "2", "--out", str(tmp_path / "run")], start_new_session=True)
    while not list(tmp_path.glob("run/shards/*.safetensors")):
        assert first.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)
    first.kill()
    first.wait()
    end = time.monotonic() + 20
    while alive := subprocess.run(["pgrep", "-s", str(first.pid)], capture_output=True, text=True).stdout:
        assert time.monotonic() < end, f"left behind: {alive}"
        time.sleep(0.05)
    kept = len(list(tmp_path.glob("run/shards/*.safetensors")))
    assert not (tmp_path / "run" / "run.json").exists()
    monkeypatch.setenv("COLUMNS", "200")
    for out in ("run", "whole"):
        monkeypatch.setattr(sys, "argv", ["assay", *command[3:], "1", "--out", str(tmp_path / out)])
        with pytest.raises(SystemExit, match="0"):
            main()
        assert (f"{kept} of 8 shards are there" in capsys.readouterr().out) == (out == "run")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")
    assert (tmp_path / "run" / "report.html").exists()
