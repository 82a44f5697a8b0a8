"""Runs on a Ray cluster give the same bytes as here, whatever happens to its workers, and leave nobody behind."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import assay
from assay.cli import main
from assay.cli.with_ray import with_address
from assay.errors import ModelError, OptionError, StoreError, WorkerError
from assay.methods.workbench import Order
from assay.scale import RayCluster, crew
from assay.sites import heads
from assay.training import train, training_setting
from assay.training.training import Trainer
from conftest import random_pairs, tiny_model, tiny_tokenizer
from scale.interrupted import bytes_of, in_small_shards
from scale.test_jobs import fail_on, prompts, wait_until

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")

Advance = Callable[[int], object]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of four processors on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        context = ray.init(
            address="local",
            num_cpus=4,
            object_store_memory=80 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield context.address_info["gcs_address"]
        ray.shutdown()


@pytest.fixture(scope="module")
def cluster(address: str) -> Iterator[RayCluster]:
    """Two workers on it."""
    with RayCluster(workers=2) as cluster:
        yield cluster
    assert ray.is_initialized(), "it ended a cluster that it did not start"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on the disk, which other processes can load."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama", torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_same_bytes_here_in_two_processes_and_on_ray(
    cluster: RayCluster, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_shards(monkeypatch)
    model, pairs = assay.load(folder), random_pairs(6)
    options = {"sites": heads(model), "metric": "kl", "force": True}
    run, told, killed = RayCluster.run, [], []

    def shuffled(self, workshop, tasks, advance, here):
        return run(self, workshop, random.Random(0).sample(list(tasks), len(tasks)), advance, here)

    def with_a_death(self, workshop, tasks, advance, here):
        def tell(done: int) -> None:
            told.append(done)
            if len(told) == 3:
                killed.append(self._places[0].worker)
                ray.kill(killed[0]._actor)
            advance(done)

        yield from run(self, workshop, tasks, tell, here)
        assert self._places[0].worker is not killed[0]
        assert sum(told) == sum(task.size for task in tasks)

    def interrupted(self, workshop, tasks, advance, here):
        assert len(tasks) > 20
        for _, result in zip(range(7), run(self, workshop, tasks, advance, here), strict=False):
            yield result
        raise KeyboardInterrupt

    def the_rest(self, workshop, tasks, advance, here):
        kept = len(list((tmp_path / "interrupted" / "shards").iterdir()))
        assert kept == 7
        return run(self, workshop, tasks, advance, here)

    def measured(name: str, jobs: object, how: object = run) -> None:
        monkeypatch.setattr(RayCluster, "run", how)
        assay.activation_patching(model, pairs, jobs=jobs, run_folder=tmp_path / name, **options)

    measured("here", 1)
    measured("two processes", 2)
    measured("ray", cluster)
    measured("shuffled", cluster, shuffled)
    measured("death", cluster, with_a_death)
    with pytest.raises(KeyboardInterrupt):
        measured("interrupted", cluster, interrupted)
    measured("interrupted", cluster, the_rest)
    here = bytes_of(tmp_path / "here")
    for name in ("two processes", "ray", "shuffled", "death", "interrupted"):
        assert bytes_of(tmp_path / name) == here, name
    clock = json.loads((tmp_path / "ray" / "run.json").read_text())["cost"]["clock"]
    assert clock["processes"] == 2


def double(advance: Advance) -> Callable[[int], tuple[int, int]]:
    def work(number: int) -> tuple[int, int]:
        advance(1)
        time.sleep(0.05)
        return 2 * number, os.getpid()

    return work


def together(advance: Advance) -> Callable[[tuple[Path, int]], int]:
    """Waits for the other worker."""

    def work(task: tuple[Path, int]) -> int:
        (task[0] / str(os.getpid())).touch()
        wait_until(lambda: len(list(task[0].iterdir())) > 1)
        return os.getpid()

    return work


def test_workers_share_the_tasks_and_are_kept_for_the_next(cluster: RayCluster, tmp_path: Path) -> None:
    workers = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        tasks = [(tmp_path / name, number) for number in range(20)]
        found = dict(cluster.run(together, tasks, lambda _: None))
        assert found.keys() == set(tasks)
        workers.append(set(found.values()))
    assert workers[0] == workers[1]
    assert len(workers[0]) == 2
    assert os.getpid() not in workers[0]


def test_what_a_worker_raises_is_raised_here(cluster: RayCluster) -> None:
    with pytest.raises(ModelError, match="no more") as caught:
        list(cluster.run(fail_on, [9, 2, 1, 0], lambda _: None))
    assert "In a worker on " in caught.value.__notes__[0]
    assert "fail_on" in caught.value.__notes__[0] or "test_jobs" in caught.value.__notes__[0]


def die_of_two(advance: Advance) -> Callable[[int], int]:
    def work(task: int) -> int:
        advance(1)
        if task == 2:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    return work


def test_a_task_that_kills_its_workers_is_named(cluster: RayCluster) -> None:
    parts: list[int] = []
    with pytest.raises(WorkerError, match=r"ended .*while it computed 2, and so did the one before"):
        list(cluster.run(die_of_two, [0, 1, 2], parts.append))
    assert sum(parts) == 2
    assert dict(cluster.run(double, range(4), parts.append)).keys() == set(range(4))


def hang_once(advance: Advance) -> Callable[[tuple[Path, int]], int]:
    def work(task: tuple[Path, int]) -> int:
        folder, number = task
        advance(1)
        if number == 3:
            with (folder / "who").open("a") as file:
                file.write(f"{os.getpid()}\n")
            if len((folder / "who").read_text().splitlines()) == 1:
                advance(1)
                time.sleep(30)
                return -1
        advance(1)
        return number

    return work


def test_a_task_that_takes_far_too_long_is_given_to_another(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "AT_LEAST", 0.5)
    began, parts = time.monotonic(), []
    tasks = [(tmp_path, number) for number in range(8)]
    found = list(cluster.run(hang_once, tasks, parts.append))
    assert time.monotonic() - began < 20
    assert sorted(result for _, result in found) == list(range(8))
    assert len(set((tmp_path / "who").read_text().splitlines())) == 2
    assert sum(parts) == 16
    # The other one goes on with what comes next.
    for count in (3, 1):
        assert len(list(cluster.run(double, range(count), parts.append))) == count
    assert time.monotonic() - began < 25


def test_a_machine_that_is_lost() -> None:
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path]), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "scale.two_machines"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, cwd=tests)
    assert "found True 16" in done.stdout, done.stderr[-2000:]


def test_seeds_are_trained_as_they_are_here(cluster: RayCluster, tmp_path: Path) -> None:
    setting = training_setting(
        "reverse", layers=1, heads=2, width=16, batch=8, held_out=20, evaluate_every=10, steps=30
    )
    train(setting, tmp_path / "here", seeds=3)
    cluster.start()
    told: list[tuple[int, int]] = []
    with RayCluster(workers=2, slow=None) as trainers:
        train(setting, tmp_path / "ray", 3, trainers, lambda seed, line: told.append((seed, line["step"])))
    here, there = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "here", tmp_path / "ray")
    )
    assert there == here
    assert sorted(told) == [(seed, step) for seed in range(3) for step in (0, 10, 13, 18, 20, 24, 30)]
    with pytest.raises(StoreError, match=r"does not find .*at the same path"):
        Trainer(setting, tmp_path / "elsewhere")(lambda _: None)


def test_a_machine_without_the_model_is_told_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Order] = []

    def run(self, order: Order, tasks, advance, here):
        orders.append(order)
        yield from ()

    monkeypatch.setattr(RayCluster, "run", run)
    monkeypatch.setattr(RayCluster, "start", lambda self: None)
    model = assay.load(folder)
    with pytest.raises(KeyError):  # nothing was computed
        assay.activation_patching(model, random_pairs(2), jobs=RayCluster(), force=True)

    def lacking() -> None:
        raise ModelError("No such folder.")

    elsewhere = replace(orders[0].model, host="elsewhere")
    with pytest.raises(ModelError, match=r"No such folder. This was on .*: a model's files must lie at the same path"):
        replace(elsewhere, load=lacking)()
    with pytest.raises(ModelError, match=r"not the model of this process: .* This was on "):
        replace(elsewhere, identity=("another",))()
    with pytest.raises(WorkerError, match=r"would round numbers otherwise.*torch .*, not 1.0"):
        replace(elsewhere, environment={**elsewhere.environment, "torch": "1.0"})()


@pytest.mark.parametrize("address", ["127.0.0.1:{closed}", "127.0.0.1:{http}", "nobody.invalid:6379", "x:0", "x:99999"])
def test_an_address_without_a_cluster_is_refused_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    closed = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    closed.server_close()
    address = address.format(http=server.server_port, closed=closed.server_port)
    monkeypatch.setattr(sys, "argv", ["assay", "score", "sequence-sort", "--task", "sort", "--ray", address])
    began = time.monotonic()
    with pytest.raises(SystemExit, match="2"):
        main()
    assert time.monotonic() - began < 15
    said = capsys.readouterr().err
    assert address in said
    assert "Error:" in said
    server.shutdown()
    server.server_close()


def test_more_workers_than_the_cluster_can_have(address: str, cluster: RayCluster) -> None:
    with (
        RayCluster(workers=5) as too_many,
        pytest.raises(OptionError, match=r"has 4 processors and .*: 5 do not fit .*at most 4"),
    ):
        too_many.start()
    with RayCluster(gpus=1) as none, pytest.raises(OptionError, match=r"1 GPU: 1 do not fit .*at most 0"):
        none.start()


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'assay\[ray\]'"):
        RayCluster()


def test_the_address_may_be_left_out() -> None:
    words = "score --ray MODEL --task hf:x/y --ray".split()
    assert with_address(words) == "score --ray local MODEL --task hf:x/y --ray local".split()
    for given in (
        "",
        "--ray host:6379 MODEL",
        "--ray [::1]:6379",
        "--ray auto --jobs 2",
        "--ray=host:1",
        "--ray local",
    ):
        assert with_address(given.split()) == given.split()


COMMAND = [sys.executable, "-c", "from assay.cli import main; main()"]


def run_here(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["assay", *arguments])
    with pytest.raises(SystemExit, match="0"):
        main()


def test_a_cluster_that_was_joined_goes_on(
    address: str, cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["score", "sequence-sort", "--task", str(prompts(tmp_path / "prompts.jsonl")), "--sites", "heads,mlps"]
    cluster.start()
    joined = [*COMMAND, *common, "--ray", address, "--jobs", "1", "--out", str(tmp_path / "joined")]
    done = subprocess.run(joined, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ray" not in done.stderr.lower()
    run_here([*common, "--jobs", "1", "--out", str(tmp_path / "here")], monkeypatch)
    assert bytes_of(tmp_path / "joined") == bytes_of(tmp_path / "here")
    assert len(list(cluster.run(double, range(3), lambda _: None))) == 3
    wait_until(lambda: ray.available_resources().get("CPU") == 2)


AGENTS = ("ray::DashboardA", "ray::RuntimeEnv")
"""Once the cluster is killed, they look for it for two minutes, and then end."""


def processes_of(session: int) -> dict[int, str]:
    found = subprocess.run(["pgrep", "-s", str(session), "-l"], capture_output=True, text=True).stdout
    return {int(line.split()[0]): line.split()[1] for line in found.splitlines()}


def figures(path: Path) -> object:
    """What does not depend on who computed it."""
    if path.name != "run.json":
        return path.read_bytes()
    costs = ("seconds", "forward_equivalents")
    methods = json.loads(path.read_text())["methods"]
    return [{name: value for name, value in method.items() if name not in costs} for method in methods]


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["compare", "sequence-sort", "--methods", "attribution-patching,hvp"], ["run.json"]),
        (["screen", "sequence-sort", "--sites", "heads,mlps"], ["scores.parquet"]),
        (["circuit", "sequence-sort", "--method", "exact"], ["scores.parquet", "tensors.safetensors"]),
        (["audit", "sequence-sort", "--n", "40", "--batches", "4", "--rivals", "grad.delta"], ["tensors.safetensors"]),
        (
            ["interactions", "sequence-sort", "--sites", "heads", "--n", "9", "--ablation", "zero"],
            ["tensors.safetensors"],
        ),
        (["train", "modular-addition", "--steps", "1", "--seeds", "2"], ["seed-1/final/model.safetensors"]),
    ],
    ids=lambda given: given[0],
)
def test_every_command_that_sweeps(
    arguments: list[str], files: list[str], cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here ``--ray`` is the cluster that this process is connected to."""
    in_small_shards(monkeypatch)
    cluster.start()
    ran: list[int] = []
    run = RayCluster.run

    def counted(self, workshop, tasks, advance, here=None):
        for result in run(self, workshop, tasks, advance, here):
            ran.append(1)
            yield result

    monkeypatch.setattr(RayCluster, "run", counted)
    if arguments[0] != "train":
        arguments = [*arguments, "--task", "sort"]
    run_here([*arguments, "--ray", "--jobs", "2", "--out", str(tmp_path / "ray")], monkeypatch)
    assert ran
    run_here([*arguments, "--jobs", "1", "--out", str(tmp_path / "here")], monkeypatch)
    for name in files:
        there, here = (figures(tmp_path / place / name) for place in ("ray", "here"))
        assert there == here, name


def test_interrupted_killed_and_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ["score", "sequence-sort", "--task", str(prompts(tmp_path / "prompts.jsonl")), "--sites"]
    common += ["heads,neurons[0]"]
    before = set(Path("/tmp").glob("assay-*"))

    def stopped(how: signal.Signals) -> tuple[int, str]:
        """In a group of its own, as a shell has it, and all of the group are told."""
        command = [*COMMAND, *common, "--ray", "--jobs", "1", "--out", str(tmp_path / "run")]
        there = len(list(tmp_path.glob("run/shards/*.safetensors")))
        child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
        while len(list(tmp_path.glob("run/shards/*.safetensors"))) == there:
            assert child.poll() is None, f"it ended before it could be stopped: {child.communicate()[1]}"
            time.sleep(0.002)
        if how is signal.SIGINT:
            os.killpg(child.pid, how)
        else:
            child.send_signal(how)
        _, said = child.communicate(timeout=60)
        end = time.monotonic() + 60
        while left := processes_of(child.pid):
            if how is signal.SIGKILL and all(name in AGENTS for name in left.values()):
                break
            assert time.monotonic() < end, f"left behind: {left}"
            time.sleep(0.1)
        for process in left:
            os.kill(process, signal.SIGKILL)
        return child.returncode, said

    code, said = stopped(signal.SIGINT)
    assert code == 130
    assert "finished and kept" in said
    assert set(Path("/tmp").glob("assay-*")) == before
    assert stopped(signal.SIGKILL)[0] == -signal.SIGKILL
    for scratch in set(Path("/tmp").glob("assay-*")) - before:
        shutil.rmtree(scratch)
    kept = len(list(tmp_path.glob("run/shards/*.safetensors")))
    assert 0 < kept < 8
    for out in ("run", "whole"):
        run_here([*common, "--jobs", "1", "--out", str(tmp_path / out)], monkeypatch)
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")
