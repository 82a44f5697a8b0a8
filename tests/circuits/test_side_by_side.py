"""Circuits whose pieces others compute are the same to the byte, and so is what they cost but for the seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import assay
from assay.circuits import ahead, edge_scores, find_circuit
from assay.circuits.first_order import eap
from assay.scale import LocalProcesses
from assay.store import RunFolder
from circuits.test_going_on import SETTINGS, bytes_of, of, prompts
from conftest import tiny_model, tiny_tokenizer


class Others(LocalProcesses):
    """This process leaves all to its workers."""

    computes_here = False

    def _workers_wanted(self) -> int:
        return self.processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama", torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def others() -> Iterator[LocalProcesses]:
    with Others(2) as others:
        yield others


@pytest.mark.parametrize("name", SETTINGS)
def test_found_by_others_as_here(name: str, folder: Path, others: LocalProcesses, tmp_path: Path) -> None:
    model, pairs = assay.load(folder), prompts().pairs
    found = {}
    for place, jobs in (("here", 1), ("there", others)):
        with RunFolder(tmp_path / place, {"asked": name}) as kept:
            found[place] = find_circuit(
                model, of(pairs[:3]), of(pairs[3:8]), run_folder=kept, memory="16M", jobs=jobs, **SETTINGS[name]
            )
            found[place].save(kept)
    assert bytes_of(tmp_path / "there") == bytes_of(tmp_path / "here")
    here, there = found["here"].costs, found["there"].costs
    assert here.keys() == there.keys()
    for stage in here:
        assert there[stage]["interventions"] == here[stage]["interventions"]


def test_nothing_is_computed_twice(folder: Path, others: LocalProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.engine.circuit_run import CircuitRunner
    from assay.engine.edge_patch import EdgePatch

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed here")

    model, pairs = assay.load(folder), prompts().pairs
    for engine, methods in ((EdgePatch, ("of_readers", "of_mlp", "of_logits")), (CircuitRunner, ("values",))):
        for method in methods:
            monkeypatch.setattr(engine, method, refuse)
    monkeypatch.setattr(CircuitRunner, "require_faithful", lambda *_: None)
    find_circuit(model, of(pairs[:3]), of(pairs[3:8]), "edge", "exact", memory="16M", jobs=others, size=0.1)


def test_a_method_of_ones_own_is_computed_here(
    folder: Path, others: LocalProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from assay.circuits.work import Work

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("sent elsewhere")

    monkeypatch.setattr(ahead, "Elsewhere", refuse)
    model = assay.load(folder)
    mine = replace(eap(), compute=lambda contrast: 2 * eap().compute(contrast))
    found = edge_scores(model, of(prompts().pairs[:3]), mine, work=Work(crew=others))
    alone = edge_scores(model, of(prompts().pairs[:3]), "eap")
    torch.testing.assert_close(torch.from_numpy(found.values), 2 * torch.from_numpy(alone.values))
