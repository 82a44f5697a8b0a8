"""``assay dynamics``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import assay
from assay.audit import audit_gradients
from assay.training import train, training_setting
from cli.conftest import Run

TINY = {"layers": 1, "heads": 2, "width": 16, "batch": 8, "held_out": 20, "evaluate_every": 10, "steps": 10}


@pytest.mark.parametrize(
    ("task", "within", "beyond"),
    [("sort", {"length": 3}, {"length": 8}), ("modular-addition", {"kind": "trained"}, {"kind": "held-out"})],
)
def test_the_audit_at_every_checkpoint(run: Run, tmp_path: Path, task: str, within: dict, beyond: dict) -> None:
    train(training_setting(task, **TINY), tmp_path / "made", seeds=2)
    options = ("--length", "3", "--ood-length", "8") if task == "sort" else ()
    command = ("dynamics", "made", "--seeds", "1", "--n", "32", *options)
    ended = run(*command)
    assert ended.code == 0, ended.err
    assert "2 of 2: seed 1, step 10" in ended.out
    table = pd.read_csv(tmp_path / "made-dynamics/dynamics.csv")
    assert list(zip(table["seed"], table["step"], strict=True)) == [(1, 0), (1, 10)]
    model = assay.load(tmp_path / "made/seed-1/final")
    make = assay.tasks.sort if task == "sort" else assay.tasks.modular_addition
    pairs, ood = make(model, n=32, **within), make(model, n=32, **beyond)
    found = audit_gradients(model, pairs, ood=ood, rivals=(), force=True)
    for place, of in zip(("in", "out"), found.sets, strict=True):
        row = table.iloc[-1]
        assert row[f"metric_{place}"] == of.baseline.clean.mean()
        assert row[f"rho_{place}_G"] == pytest.approx(of.audits["G"].rho, nan_ok=True)
        counts = {each: row[f"{each}_{place}"] for each in ("hero", "bloat", "aligned", "unsettled")}
        assert counts == {each: of.classes.count(each) for each in counts}
    if task == "sort":  # an untrained model gets nothing right, so nothing is lost and nothing has a class
        assert table.loc[0, "rho_in_G"] != table.loc[0, "rho_in_G"]
        assert table.loc[0, "unsettled_in"] == 3
        assert table.loc[0, ["hero_in", "bloat_in", "aligned_in"]].sum() == 0
    kept = (tmp_path / "made-dynamics/points/seed-1-step-000010.json").stat().st_mtime_ns
    assert run(*command).code == 0
    assert (tmp_path / "made-dynamics/points/seed-1-step-000010.json").stat().st_mtime_ns == kept
    other = run(*command, "--ablation", "zero")
    assert other.code == 2
    assert "ablation: mean there, zero now" in other.err


def test_bad_input_is_refused(run: Run, tmp_path: Path) -> None:
    train(training_setting("sort", **TINY), tmp_path / "made")
    for arguments, said in (
        (("nothing",), "holds no training"),
        (("made", "--n", "8"), "--n must be at least 32"),
        (("made", "--seeds", "0,x"), "--seeds is a list of numbers"),
        (("made", "--seeds", "3"), "no seed 3, only 0"),
        (("made", "--ablation", "noise"), "mean, zero, resample"),
    ):
        ended = run("dynamics", *arguments)
        assert ended.code == 2
        assert said in ended.err
    assert not (tmp_path / "made-dynamics").exists()
