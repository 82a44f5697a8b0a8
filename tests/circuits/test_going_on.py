"""A run that is killed goes on from what it had finished, and ends with the same bytes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import pytest

from assay.circuits import FoundCircuit, find_circuit
from assay.data import PromptPair, PromptPairs
from assay.errors import DataError, StoreError
from assay.store import RunFolder
from circuits.prompts import told_apart
from conftest import ids_of, wrapped
from oracles import naive
from oracles.test_exact_effects import logit_difference
from scale.interrupted import BYTES, ended, fork, kill_after

EVERY = (*BYTES, "evaluation.jsonl")
SETTINGS = {
    "exact": {"level": "edge", "method": "exact", "faithfulness": 0.5},
    "eap": {"level": "edge", "method": "eap", "ablation": "mean", "mean": "all-positions", "completeness": True},
    "node": {"level": "node", "method": "attribution-patching"},
    "neuron": {"level": "neuron", "method": "attribution-patching"},
}


@cache
def prompts() -> PromptPairs:
    """On which the model prefers the answer too, so that a mean takes it away."""
    model = wrapped("llama")
    return of(
        [
            pair
            for pair in told_apart(model, seed=0)
            if logit_difference(naive.logits_of(model.hf, ids_of(pair.clean)), pair) > 0.3
        ]
    )


def of(pairs: Sequence[PromptPair]) -> PromptPairs:
    return PromptPairs(tuple(pairs), metric="logit-diff")


def run_into(folder: Path, **options: object) -> None:
    model, pairs = wrapped("llama"), prompts().pairs
    seen, unseen = of(pairs[:3]), of(pairs[3:8])
    with RunFolder(folder, {"asked": str(options)}) as kept:
        find_circuit(model, seen, unseen, run_folder=kept, memory="16M", **options).save(kept)  # type: ignore[arg-type]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in EVERY}


@pytest.mark.parametrize("name", SETTINGS)
def test_killed_wherever_it_is(name: str, tmp_path: Path) -> None:
    options = SETTINGS[name]
    prompts()
    began = time.monotonic()
    run_into(tmp_path / "whole", **options)
    usual = time.monotonic() - began
    whole = bytes_of(tmp_path / "whole")
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == sorted([*whole, "run.json"])
    draw, kills, went_on = random.Random(1), 0, 0
    for attempt in range(10):
        folder = tmp_path / f"run-{attempt}"
        while not (folder / "run.json").exists():
            kept = len(list(folder.glob("shards/*")))
            went_on += kept > 0
            if kill_after(draw.uniform(0.2, 0.9) * usual, partial(run_into, folder, **options)) == -signal.SIGKILL:
                kills += 1
                assert (folder / "run.json").exists() or len(list(folder.glob("shards/*"))) >= kept
            assert kills < 100
        assert bytes_of(folder) == whole
        if kills >= 3 and went_on >= 2:
            break
        usual *= 0.9
    assert kills >= 3
    assert went_on >= 2


def test_what_is_kept_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.engine.circuit_run import CircuitRunner
    from assay.engine.edge_patch import EdgePatch

    folder = tmp_path / "run"
    options = SETTINGS["exact"]

    def stop(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def until_the_end() -> None:
        FoundCircuit.save = stop  # type: ignore[method-assign, assignment]
        run_into(folder, **options)

    assert ended(fork(until_the_end)) == -signal.SIGKILL

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    for of, names in ((EdgePatch, ("of_readers", "of_mlp", "of_logits")), (CircuitRunner, ("values",))):
        for name in names:
            monkeypatch.setattr(of, name, refuse)
    run_into(folder, **options)
    found = FoundCircuit.load(folder)
    assert found.costs["scores"]["interventions"] > 0
    assert found.costs["curves"]["interventions"] > 0


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert kill_at_the_curves(folder) == -signal.SIGKILL
    with pytest.raises(StoreError, match="another configuration"):
        run_into(folder, level="edge", method="eap-ig-inputs")
    run_into(folder, **SETTINGS["eap"])


def kill_at_the_curves(folder: Path) -> int:
    from assay.circuits import finding

    def work() -> None:
        finding._curves = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment, return-value]
        run_into(folder, **SETTINGS["eap"])

    return ended(fork(work))


def test_noise_is_refused_before_anything_is_scored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from assay.circuits import finding

    model = wrapped("llama")
    pairs = prompts()
    mixed = [
        pair if i % 2 else PromptPair(pair.corrupted, pair.clean, pair.answer, pair.wrong_answer)
        for i, pair in enumerate(pairs)
    ]
    monkeypatch.setattr(finding, "edge_scores", lambda *_, **__: pytest.fail("scored first"))
    with pytest.raises(DataError):
        find_circuit(model, pairs, of(mixed), method="eap", force=True)
