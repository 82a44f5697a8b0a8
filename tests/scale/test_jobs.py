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


def wait_until(true: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_two_processes_one_of_them_killed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_shards(monkeypatch)
    model, pairs = assay.load(folder), random_pairs(6)
    options = {"sites": heads(model), "metric": "kl", "force": True}
    assay.activation_patching(model, pairs, jobs=1, run_folder=tmp_path / "one", **options)
    told: list[int] = []
    killed = kill_workers(1, when=lambda: len(told) > 3)
    run = LocalProcesses.run

    def while_it_works(self, workshop, tasks, advance, here):
        """Leaves all shards to the worker until it is killed."""

        def waiting(advance):
            work = here(advance)
            return lambda shard: wait_until(lambda: killed) or work(shard)

        return run(self, workshop, tasks, lambda done: (told.append(done), advance(done)), waiting)

    monkeypatch.setattr(LocalProcesses, "run", while_it_works)
    assay.activation_patching(model, pairs, jobs=2, run_folder=tmp_path / "two", **options)
    assert len(killed) == 1
    assert bytes_of(tmp_path / "two") == bytes_of(tmp_path / "one")
    assert not multiprocessing.active_children()


def die(advance: Callable[[int], object]) -> Callable[[Path], None]:
    def work(log: Path) -> None:
        advance(1)
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    return work


def test_a_task_that_kills_its_workers_is_named(tmp_path: Path) -> None:
    log, parts = tmp_path / "log", []

    def deaths() -> int:
        return len(log.read_text().splitlines()) if log.exists() else 0

    def here(advance: Callable[[int], object]) -> Callable[[Path], None]:
        return lambda task: wait_until(lambda: deaths() == 2)

    with LocalProcesses(2) as processes:
        results = processes.run(die, [tmp_path / "other", log], parts.append, here)
        with pytest.raises(WorkerError, match=f"killed by SIGKILL while it computed {log}, and so did the one before"):
            list(results)
    assert (deaths(), sum(parts)) == (2, 0)
    assert not (tmp_path / "other").exists()
    assert not multiprocessing.active_children()


def cannot(advance: Callable[[int], object]) -> Callable[[int], int]:
    os._exit(3)


def test_workers_that_die_before_their_first_task() -> None:
    def here(advance: Callable[[int], object]) -> Callable[[int], int]:
        return lambda task: time.sleep(0.01) or task

    with LocalProcesses(2) as processes, pytest.raises(WorkerError, match="ended with exit code 3 while it began"):
        list(processes.run(cannot, range(100_000), lambda _: None, here))
    assert not multiprocessing.active_children()


def double(advance: Callable[[int], object]) -> Callable[[tuple[Path, int]], tuple[int, int]]:
    def work(task: tuple[Path, int]) -> tuple[int, int]:
        folder, number = task
        (folder / str(os.getpid())).touch()
        time.sleep(0.002)
        return 2 * number, os.getpid()

    return work


def test_everybody_computes_and_workers_are_kept_for_the_next_tasks(tmp_path: Path) -> None:
    workers = []
    with LocalProcesses(3, warm_up=time.time) as processes:
        for name in ("first", "second"):
            folder = tmp_path / name
            folder.mkdir()

            def here(
                advance: Callable[[int], object], folder: Path = folder
            ) -> Callable[[tuple[Path, int]], tuple[int, int]]:
                work = double(advance)

                def wait_and_work(task: tuple[Path, int]) -> tuple[int, int]:
                    wait_until(lambda: len(list(folder.iterdir())) > 1)
                    return work(task)  # noqa: B023

                return wait_and_work

            tasks = [(folder, number) for number in range(2000)]
            found = dict(processes.run(double, tasks, lambda _: None, here))
            assert {task: doubled for task, (doubled, _) in found.items()} == {task: 2 * task[1] for task in tasks}
            numbers = {number for _, number in found.values()}
            assert os.getpid() in numbers
            workers.append(numbers - {os.getpid()})
    assert workers[0] == workers[1]
    assert len(workers[0]) == 2
    assert not multiprocessing.active_children()


def fail_on(advance: Callable[[int], object]) -> Callable[[int], int]:
    def work(task: int) -> int:
        advance(1)
        if task == 2:
            raise ModelError("no more")
        return task

    return work


def test_what_a_worker_raises_is_raised_here() -> None:
    done, parts = [], []

    def here(advance: Callable[[int], object]) -> Callable[[int], int]:
        return lambda task: wait_until(lambda: sum(parts) == 3)

    with LocalProcesses(2) as processes, pytest.raises(ModelError, match="no more") as caught:
        done.extend(processes.run(fail_on, [9, 2, 1, 0], parts.append, here))
    assert sorted(done) == [(0, 0), (1, 1), (9, None)]
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

    def run(self, order: Order, tasks, advance, here):
        orders.append(order)
        yield from ()

    monkeypatch.setattr(LocalProcesses, "run", run)
    with torch.no_grad():
        model.hf.lm_head.weight[0, 0] += 1
    with pytest.raises(KeyError):  # nothing was computed
        assay.activation_patching(model, random_pairs(2), jobs=2, force=True)
    assert isinstance(orders[0].setting, Setting)
    with pytest.raises(ModelError, match="not the model of this process"):
        orders[0](lambda _: None)


@pytest.mark.parametrize("what", ["scaling", "buffer", "class"])
def test_workers_refuse_a_model_whose_change_no_hash_sees(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    model = assay.load(folder)
    orders: list[Order] = []

    def run(self, order: Order, tasks, advance, here):
        orders.append(order)
        yield from ()

    monkeypatch.setattr(LocalProcesses, "run", run)
    layer = model.hf.model.layers[1]
    if what == "scaling":
        layer.self_attn.scaling *= 0.3
    elif what == "buffer":
        model.hf.model.rotary_emb.inv_freq.mul_(0.5)
    else:
        layer.mlp.__class__ = type("Doubled", (type(layer.mlp),), {"forward": doubled})
    with pytest.raises(KeyError):  # nothing was computed
        assay.activation_patching(model, random_pairs(2), jobs=2, force=True)
    with pytest.raises(ModelError, match="other logits than here"):
        orders[0](lambda _: None)


def doubled(mlp: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return 2 * type(mlp).__bases__[0].forward(mlp, x)


def test_workers_refuse_a_metric_that_reads_something_else_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Order] = []

    def run(self, order: Order, tasks, advance, here):
        orders.append(order)
        yield from ()

    monkeypatch.setattr(LocalProcesses, "run", run)
    mine = replace(METRICS["log-prob"], name="mine", row_values=scaled)
    with pytest.raises(KeyError):
        assay.activation_patching(assay.load(folder), random_pairs(2), metric=mine, jobs=2, force=True)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    with pytest.raises(ModelError, match="code of the metric"):
        orders[0](lambda _: None)


SCALE = 1.0


def scaled(logits: torch.Tensor, targets: object) -> torch.Tensor:
    return SCALE * logits.mean((1, 2))


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
