"""Running out of memory makes the portions smaller, and changes nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import assay
from assay.engine.memory import Portions, is_out_of_memory
from assay.errors import MemoryExhausted
from assay.methods import workbench
from assay.methods.registry import method_named
from conftest import random_pairs, wrapped


def test_portions_cover_everything_once_and_in_order() -> None:
    done: list[int] = []

    def job(part: slice) -> None:
        if part.stop - part.start > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        done.extend(range(part.start, part.stop))

    portions = Portions()
    portions.run(23, job, lambda _: 50)
    assert done == list(range(23))
    assert 1 <= 50 // portions.divisor <= 3, "later runs must not fail first"


def test_other_errors_pass_through() -> None:
    def job(_: slice) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        Portions().run(4, job)


@pytest.mark.parametrize("method", ["activation-patching", "two-point"])
def test_values_are_the_same_after_memory_ran_out(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.engine import replay

    model, pairs = wrapped("gemma2"), random_pairs()
    expected = assay.measure(method, model, pairs, force=True)
    failures = []
    normal = replay.Replay.run

    def scarce(self: replay.Replay, lanes: list[replay.Lane], strength: torch.Tensor) -> torch.Tensor:
        if len(lanes) > 5:
            failures.append(len(lanes))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return normal(self, lanes, strength)

    monkeypatch.setattr(replay.Replay, "run", scarce)
    found = assay.measure(method, model, pairs, force=True)
    assert failures
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=1e-11)
    assert found.cost["interventions"] == expected.cost["interventions"]


def test_too_little_memory_for_one_prompt_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.engine import replay

    def scarce(self: replay.Replay, lanes: list[replay.Lane], strength: torch.Tensor) -> torch.Tensor:
        if any(lane.component is not None for lane in lanes):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return normal(self, lanes, strength)

    normal = replay.Replay.run
    monkeypatch.setattr(replay.Replay, "run", scarce)
    with pytest.raises(MemoryExhausted, match="single patched prompt"):
        assay.activation_patching(wrapped("llama"), random_pairs(), force=True)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_a_failed_allocation_on_the_cpu_is_known_as_such() -> None:
    """Really run out of memory, in a process of its own."""
    script = textwrap.dedent("""
        import resource, sys, torch
        from assay.engine.memory import Portions
        taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + (7 << 27), -1))  # three and a half
        sizes = []
        def job(part):
            count = part.stop - part.start
            torch.ones(count << 26)  # 256 MB each
            sizes.append(count)
        Portions().run(16, job)
        print(sum(sizes), max(sizes))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    total, most = map(int, done.stdout.split())
    assert total == 16
    assert 1 <= most < 4


def test_only_failed_allocations_count() -> None:
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize(
    "method", ["activation-patching", "hvp", "attribution-patching", "zero-ablation", "path-patching"]
)
def test_recordings_that_do_not_fit_are_made_row_by_row(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decoder layer runs out of memory at more than three sequences."""
    model, pairs = wrapped("llama"), random_pairs(6, lengths=(6,))
    chosen = method_named(method, **({"receivers": "q[1],mlps[1]"} if method == "path-patching" else {}))
    expected = assay.measure(chosen, model, pairs, force=True)
    kind = type(model.layers[0].module)
    normal, failures = kind.forward, []

    def scarce(self: torch.nn.Module, hidden_states: torch.Tensor, *args: object, **kwargs: object) -> object:
        if len(hidden_states) > 3 and recording:
            failures.append(len(hidden_states))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return normal(self, hidden_states, *args, **kwargs)

    recording: list[bool] = []  # the baseline is not what is tried here
    compute = workbench.Workbench._compute

    def after_the_baseline(self: workbench.Workbench, *args: object) -> np.ndarray:
        recording.append(True)
        return compute(self, *args)

    monkeypatch.setattr(workbench.Workbench, "_compute", after_the_baseline)
    monkeypatch.setattr(kind, "forward", scarce)
    found = assay.measure(chosen, model, pairs, force=True)
    assert failures
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=1e-11)
