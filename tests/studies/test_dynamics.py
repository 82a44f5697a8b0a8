"""A measurement along a training: every checkpoint once, kept, and refused where it does not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import assay
from assay.errors import OptionError, StoreError
from assay.studies.dynamics import dynamics
from assay.training import Checkpoint, read_checkpoints, train, training_setting


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    setting = training_setting("sort", layers=1, heads=2, width=16, batch=8, held_out=20, evaluate_every=10, steps=20)
    train(setting, folder, seeds=2)
    return folder


class Norm:
    """A number that the oracle can tell from the weights; dies when asked to."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.calls: list[tuple[int, int]] = []
        self.dies_at = dies_at

    def __call__(self, model: assay.Model, checkpoint: Checkpoint) -> dict[str, float | None]:
        if len(self.calls) == self.dies_at:
            raise KeyboardInterrupt
        self.calls.append((checkpoint.seed, checkpoint.step))
        norm = math.fsum(float(weight.detach().double().square().sum()) for weight in model.hf.parameters())
        return {"norm": norm, "undefined": math.nan if checkpoint.step == 0 else 1.0, "never": None}


def test_every_checkpoint_is_measured_once_and_kept(training: Path, tmp_path: Path) -> None:
    first, second, third = Norm(dies_at=3), Norm(), Norm()
    with pytest.raises(KeyboardInterrupt):
        dynamics(training, tmp_path / "out", first, {"what": "norm"})
    table = dynamics(training, tmp_path / "out", second, {"what": "norm"})
    again = dynamics(training, tmp_path / "out", third, {"what": "norm"})
    steps = [(seed, step) for seed in (0, 1) for step in (0, 10, 13, 18, 20)]
    assert first.calls + second.calls == steps
    assert third.calls == []
    pd.testing.assert_frame_equal(table, again)
    pd.testing.assert_frame_equal(table, dynamics(training, tmp_path / "whole", Norm(), {"what": "norm"}))
    assert list(zip(table["seed"], table["step"], strict=True)) == steps
    for row, checkpoint in zip(table.itertuples(), read_checkpoints(training), strict=True):
        weights = assay.load(checkpoint.folder).hf.parameters()
        assert row.norm == pytest.approx(sum(float(weight.detach().double().square().sum()) for weight in weights))
        assert (row.accuracy, row.final) == (checkpoint.accuracy, checkpoint.step == 20)
        assert math.isnan(row.undefined) is (checkpoint.step == 0)
    written = pd.read_csv(tmp_path / "out/dynamics.csv")
    assert written["norm"].tolist() == pytest.approx(table["norm"].tolist())
    names = ("loss", "trained", "accuracy", "norm", "undefined", "never")
    assert {path.stem for path in (tmp_path / "out").glob("*.svg")} == set(names)
    figure = (tmp_path / "out/norm.svg").read_text()
    assert figure.count("<circle") == 8
    assert "seed 1" in figure


def test_seeds_can_be_chosen(training: Path, tmp_path: Path) -> None:
    table = dynamics(training, tmp_path / "out", Norm(), {}, seeds=[1])
    assert set(table["seed"]) == {1}
    with pytest.raises(OptionError, match="no seed 7, only 0, 1"):
        dynamics(training, tmp_path / "other", Norm(), {}, seeds=[7])
    assert not (tmp_path / "other").exists()


def test_what_does_not_fit_is_refused(training: Path, tmp_path: Path) -> None:
    dynamics(training, tmp_path / "out", Norm(), {"what": "norm"}, seeds=[0])
    with pytest.raises(StoreError, match="measured what: norm there, size now"):
        dynamics(training, tmp_path / "out", Norm(), {"what": "size"})
    point = tmp_path / "out/points/seed-0-step-000000.json"
    kept: dict[str, Any] = json.loads(point.read_text())
    point.write_text(json.dumps({**kept, "weights_sha256": "0"}))
    with pytest.raises(StoreError, match="other weights"):
        dynamics(training, tmp_path / "out", Norm(), {"what": "norm"})
    with pytest.raises(StoreError, match="holds no training"):
        dynamics(tmp_path, tmp_path / "new", Norm(), {})
    with pytest.raises(StoreError, match="holds no dynamics"):
        dynamics(training, training, Norm(), {})
    with pytest.raises(OptionError, match="another name"):
        dynamics(training, tmp_path / "new", lambda model, checkpoint: {"loss": 1.0}, {})
    with pytest.raises(OptionError, match="infinite"):
        dynamics(training, tmp_path / "new", lambda model, checkpoint: {"size": math.inf}, {})
