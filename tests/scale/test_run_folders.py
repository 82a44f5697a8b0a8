"""A run that is stopped anywhere goes on, and ends with the same bytes; or it is refused, with the reason."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import assay
from assay.errors import ModelError, StoreError
from assay.methods import sharded
from assay.scale import InProcess
from assay.store import RunFolder
from conftest import random_pairs, wrapped
from scale.interrupted import Shuffled, bytes_of, ended, fork, in_small_shards, kill_after, run_into, what_it_said


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_shards(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """What the run gives when nothing stops it."""
    with pytest.MonkeyPatch.context() as patch:
        in_small_shards(patch)
        folder = tmp_path_factory.mktemp("whole") / "run"
        run_into(folder)
        yield bytes_of(folder)


def leave_unfinished(folder: Path, **options: object) -> list[Path]:
    """All shards of a run whose process ended before they were put together."""
    with RunFolder(folder) as held:
        run_into(held, **options)
    return sorted((folder / "shards").iterdir())


def test_killed_at_random_points(whole: dict[str, bytes], tmp_path: Path) -> None:
    began = time.monotonic()
    run_into(tmp_path / "timed")
    usual = time.monotonic() - began
    uninterrupted = assay.Scores.load(tmp_path / "timed")
    draw = random.Random(1)
    kills, seen = 0, set()
    for attempt in range(20):  # a run may end before it is killed, so that it takes several to be killed often enough
        folder = tmp_path / f"run-{attempt}"
        while not (folder / "run.json").exists():
            if kill_after(draw.uniform(0.1, 0.5) * usual, partial(run_into, folder)) == -signal.SIGKILL:
                kills += 1
                seen.add(len(list(folder.glob("shards/*.safetensors"))))
            assert kills < 200
        scores = run_into(folder)
        assert bytes_of(folder) == whole
        assert sorted(path.name for path in folder.iterdir()) == sorted([*whole, "run.json"])
        assert scores.cost["interventions"] == uninterrupted.cost["interventions"]
        if kills >= 3 and len(seen) >= 3:
            break
        usual *= 0.8
    assert kills >= 3
    assert len(seen) >= 3, f"always stopped at the same place: {seen}"


def test_killed_while_the_result_is_written(whole: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    leave_unfinished(folder)

    def stop_halfway() -> None:
        rename, count = Path.rename, iter(range(3))

        def rename_or_die(self: Path, target: Path) -> Path:
            if next(count, None) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, target)

        Path.rename = rename_or_die  # type: ignore[method-assign]
        run_into(folder)

    assert ended(fork(stop_halfway)) == -signal.SIGKILL
    assert not (folder / "run.json").exists()
    run_into(folder)
    assert bytes_of(folder) == whole
    assert not list(folder.glob(".assay-*"))


@pytest.mark.parametrize(
    ("name", "method", "options"),
    [
        ("gemma2", "activation-patching", {}),
        ("llama", "activation-patching", {"metric": "kl", "skip": False}),
        ("llama", "mean-ablation", {"mean": "all-positions"}),
        ("llama", "resample-ablation", {}),
        ("llama", "two-point", {}),
        ("llama", "attribution-patching", {}),
        ("llama", "random", {}),
    ],
)
def test_order_changes_no_bit_and_blocks_only_rounding(
    name: str, method: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pairs = wrapped(name), random_pairs(6, lengths=(6, 9, 6))
    in_order = assay.measure(method, model, pairs, force=True, **options)
    monkeypatch.setattr(sharded, "InProcess", Shuffled)
    shuffled = assay.measure(method, model, pairs, force=True, **options)
    assert (shuffled.values == in_order.values).all()
    monkeypatch.undo()
    whole = assay.measure(method, model, pairs, force=True, **options)
    assert abs(whole.values - in_order.values).max() <= 1e-11 * max(1, abs(whole.values).max())


def test_path_patching_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some blocks have no path to the receivers, which is no reason to refuse the others."""
    model, pairs = wrapped("llama"), random_pairs(6)
    blocks = assay.path_patching(model, pairs, "q[1],mlps[1]", force=True)
    monkeypatch.undo()
    whole = assay.path_patching(model, pairs, "q[1],mlps[1]", force=True)
    assert abs(whole.values - blocks.values).max() <= 1e-11


def test_damaged_shards_are_done_again(whole: dict[str, bytes], tmp_path: Path) -> None:
    shards = leave_unfinished(tmp_path / "run")
    assert len(shards) > 20
    draw = random.Random(0)
    good = {path: path.read_bytes() for path in shards}
    for path in shards[:15]:
        data = bytearray(good[path])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
    for path in shards[15:18]:
        path.write_bytes(good[path][: draw.randrange(len(good[path]))])
    shards[18].write_bytes(good[shards[19]])  # whole, but of another block
    shards[19].unlink()
    done = []
    run_into(tmp_path / "run", on_baseline=lambda *_: done.extend(p for p in shards if p.exists()))
    assert len(done) == len(shards) - 1
    assert bytes_of(tmp_path / "run") == whole


def test_every_flipped_bit_of_a_shard_is_seen_or_changes_nothing(tmp_path: Path) -> None:
    shard = leave_unfinished(tmp_path / "run")[0]
    with RunFolder(tmp_path / "run") as held:
        assert held.plan is not None
        held.begin(held.plan)
        values, cost = np.random.default_rng(0).normal(size=(20, 3)), {"seconds": {"replay": 0.5}}
        held.write_shard(0, "some components", values, cost)
        good = shard.read_bytes()
        assert held.read_shard(0, "some components") is not None
        assert held.read_shard(0, "other components") is None
        for place in range(len(good)):
            data = bytearray(good)
            data[place] ^= 1 << place % 8
            shard.write_bytes(data)
            found = held.read_shard(0, "some components")
            assert found is None or ((found[0] == values).all() and found[1] == cost)


def test_a_second_process_is_refused_until_the_first_is_gone(whole: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    leave_unfinished(folder)

    def hold() -> None:
        with RunFolder(folder):
            (tmp_path / "held").touch()
            time.sleep(60)

    child = fork(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(StoreError, match=f"process {child} on .* is computing this run"):
        run_into(folder)
    os.kill(child, signal.SIGKILL)
    ended(child)
    run_into(folder)
    assert bytes_of(folder) == whole


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"memory": "64M"}, "memory: 2G there, 0.0625G now"),
        ({"sites": "heads"}, "sites: heads,mlps,q,residual-post there, heads now"),
        ({"direction": "noise"}, "direction: denoise there, noise now"),
        ({"metric": "log-prob"}, "metric: logit-diff there, log-prob now"),
        ({"skip": False}, "skip: true there, false now"),
        (
            {"method": "zero-ablation"},
            "direction: denoise there, ablation now\n  method: activation-patching there, .*",
        ),
    ],
)
def test_changed_options_are_refused_with_the_difference(
    options: dict[str, object], difference: str, tmp_path: Path
) -> None:
    leave_unfinished(tmp_path / "run")
    with pytest.raises(StoreError, match=f"unfinished run of another configuration:\n  {difference}\nGo on"):
        run_into(tmp_path / "run", **options)


def test_a_finished_run_is_read_and_another_refused(tmp_path: Path) -> None:
    scores = run_into(tmp_path / "run", sites="mlps")
    ran = []
    again = run_into(tmp_path / "run", sites="mlps", memory="64M", on_baseline=lambda *_: ran.append(1))
    assert (again.values == scores.values).all()
    assert not ran
    with pytest.raises(StoreError, match="finished run of another configuration:\n  sites: "):
        run_into(tmp_path / "run", sites="heads")


def test_changed_weights_and_configuration_are_refused(tmp_path: Path) -> None:
    model = wrapped("llama")
    with RunFolder(tmp_path / "run") as held:
        assay.activation_patching(model, random_pairs(), force=True, run_folder=held)
    epsilon = model.config.rms_norm_eps
    model.config.rms_norm_eps = 1e-3
    with pytest.raises(StoreError, match=r"content of the model configuration: \w{8} there, \w{8} now\nGo on"):
        assay.activation_patching(model, random_pairs(), force=True, run_folder=tmp_path / "run")
    model.config.rms_norm_eps = epsilon
    with torch.no_grad():
        model.hf.lm_head.weight[0, 0] += 1e-6
    with pytest.raises(StoreError, match=r"content of the weights: \w{8} there, \w{8} now\nGo on"):
        assay.activation_patching(model, random_pairs(), force=True, run_folder=tmp_path / "run")


def test_a_changed_metric_of_ones_own_is_refused(tmp_path: Path) -> None:
    def own(row_values):
        row_values.__qualname__ = "same"
        return assay.Metric("mine", "x", "mine", "answer", "vocabulary", True, row_values)

    with RunFolder(tmp_path / "run") as held:
        run_into(held, metric=own(lambda logits, targets: logits.mean((1, 2))))
    with pytest.raises(StoreError, match="code of the metric and the method: "):
        run_into(tmp_path / "run", metric=own(lambda logits, targets: logits.amax((1, 2))))


def test_the_number_of_threads_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_unfinished(tmp_path / "run", jobs=1, sites="mlps")
    used = []
    torch.set_num_threads(2)
    try:
        leave_unfinished(tmp_path / "two", sites="mlps")
        run_into(tmp_path / "run", sites="mlps", on_baseline=lambda *_: used.append(torch.get_num_threads()))
        assert (used, torch.get_num_threads()) == ([1], 2)
        with pytest.raises(StoreError, match="threads of each process: 2 there, 1 now"):
            run_into(tmp_path / "two", sites="mlps", jobs=1)
    finally:
        torch.set_num_threads(1)


def test_hooks_cannot_be_told_apart_later(tmp_path: Path) -> None:
    model = wrapped("llama")
    model.layers[0].mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(ModelError, match="Hooks"):
        assay.activation_patching(model, random_pairs(), force=True, run_folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreError, match="holds no run"):
        run_into(tmp_path)
    with pytest.raises(StoreError, match="not a folder"):
        run_into(tmp_path / "thesis.tex")
    (tmp_path / "empty").mkdir()
    run_into(tmp_path / "empty")
    assert assay.Scores.load(tmp_path / "empty").values.shape == (30, 8)


class Smaller(InProcess):
    """Lets no file grow beyond a size once some shards are done: what writes more gets an error from the system."""

    after, size = 4, 40

    def run(self, workshop, tasks, advance):
        for number, found in enumerate(super().run(workshop, tasks, advance)):
            if number == self.after:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))
            yield found


@pytest.mark.parametrize(("after", "size", "said"), [(4, 40, "The 4 shards"), (20, 3000, "All shards are kept")])
def test_a_limit_on_files_is_said_and_the_run_goes_on(
    after: int,
    size: int,
    said: str,
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sharded, "InProcess", type("Limited", (Smaller,), {"after": after, "size": size}))
        code, error = what_it_said(lambda: run_into(tmp_path / "run"))
    assert code == 2
    assert "Cannot write" in error
    assert "File too large" in error
    assert said in error
    assert not (tmp_path / "run" / "lock").exists()
    run_into(tmp_path / "run")
    assert bytes_of(tmp_path / "run") == whole


def test_a_full_disk_is_said_and_the_run_goes_on(whole: dict[str, bytes], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "assay", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with pytest.raises(StoreError, match=r"No space left on device.*make room"):
            run_into(disk / "run")
        assert len(list((disk / "run" / "shards").iterdir())) > 3
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        run_into(disk / "run")
        assert bytes_of(disk / "run") == whole
    finally:
        subprocess.run(["umount", str(disk)], check=True)
