"""Groups that are computed in parts lose what they lose at once, whoever computes the parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import assay
from assay.interactions.group_parts import parts_of
from assay.interactions.joint_ablation import ablated_runs, group_ablation
from assay.interactions.pairs import measure_interactions
from assay.scale import LocalProcesses
from conftest import random_pairs, tiny_model, tiny_tokenizer, wrapped

GROUPS = [(0,), (1,), (0, 1), (5, 2), (2,), (5,), (0, 5, 7), (3, 1), (7,), (6, 7)]


def test_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.interactions import group_parts

    monkeypatch.setattr(group_parts, "LANES", 4)
    model, pairs = wrapped("llama"), random_pairs(5)
    method = group_ablation("zero")
    with ablated_runs(method, model, pairs, force=True) as runs:
        at_once, cost = runs.losses(GROUPS), runs.cost.interventions
    with ablated_runs(method, model, pairs, force=True, jobs=1) as runs:
        parts = parts_of(runs, GROUPS)
        assert len(parts) > 2 * len(runs.measured)
        for batch in range(len(runs.measured)):
            numbers = [number for part in parts if part.batch == batch for number in part.numbers]
            assert sorted(numbers) == list(range(len(GROUPS)))
        in_parts = runs.losses(GROUPS)
        assert runs.cost.interventions == cost
    np.testing.assert_allclose(in_parts, at_once, rtol=0, atol=1e-11)
    assert np.abs(at_once).min() > 1e-6


class Others(LocalProcesses):
    """This process leaves all to its workers."""

    computes_here = False

    def _workers_wanted(self) -> int:
        return self.processes


def test_by_others_as_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.interactions import group_parts

    monkeypatch.setattr(group_parts, "LANES", 4)
    tiny_model("llama", torch.float32).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model, pairs = assay.load(tmp_path), random_pairs(5)
    options = {"ablation": "zero", "sites": "heads", "exact": 20, "force": True}
    here = measure_interactions(model, pairs, jobs=1, **options)
    with Others(2) as others:
        there = measure_interactions(model, pairs, jobs=others, **options)
    for name in ("single", "joint", "couples", "second"):
        assert getattr(there, name).tobytes() == getattr(here, name).tobytes()
    assert there.cost["interventions"] == here.cost["interventions"]
