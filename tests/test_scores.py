"""Scores keep every example, survive the disk to the last bit, and refuse to overwrite."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import assay
from assay.errors import OptionError, StoreError
from assay.store import finished_run
from conftest import random_pairs, wrapped


@pytest.fixture(scope="module")
def scores() -> assay.Scores:
    return assay.activation_patching(wrapped("llama"), random_pairs(), force=True)


def test_a_round_trip_loses_nothing(scores: assay.Scores, tmp_path: Path) -> None:
    scores.save(tmp_path / "run")
    again = assay.Scores.load(tmp_path / "run")
    assert (again.values == scores.values).all()
    assert again.components == scores.components
    assert again.pairs == scores.pairs
    for name in ("clean", "corrupted", "clean_right", "corrupted_right"):
        assert (getattr(again.baseline, name) == getattr(scores.baseline, name)).all()
    assert (again.provenance, again.cost, again.configuration) == (
        scores.provenance,
        scores.cost,
        scores.configuration,
    )
    pd.testing.assert_frame_equal(again.to_pandas(), scores.to_pandas())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "components.parquet", "prompts.jsonl", "run.json", "scores.parquet", "tensors.safetensors",
    ]  # fmt: skip


def test_the_files_say_what_the_design_says(scores: assay.Scores, tmp_path: Path) -> None:
    scores.save(tmp_path / "run")
    values = pd.read_parquet(tmp_path / "run" / "scores.parquet")
    assert list(values) == [
        "method", "site", "layer", "unit", "source", "destination", "position", "example", "value",
    ]  # fmt: skip
    assert len(values) == scores.values.size
    third = values[(values.site == "heads") & (values.layer == 1) & (values.unit == 2) & (values.example == 3)]
    assert third.value.item() == scores.values[6, 3]
    components = pd.read_parquet(tmp_path / "run" / "components.parquet")
    assert list(components)[7:] == [
        "mean", "importance", "stderr_prompts", "lower", "upper", "reliability", "verdict",
    ]  # fmt: skip
    assert components[components.site == "mlps"].unit.isna().all()
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["schema_version"] == 1
    assert {"weights_sha256", "tokenizer_sha256", "name"} <= set(run["provenance"]["model"])


def test_means_errors_and_importance(scores: assay.Scores) -> None:
    frame = scores.to_pandas()
    np.testing.assert_allclose(frame["mean"], scores.values.mean(1))
    np.testing.assert_allclose(frame["stderr_prompts"], scores.values.std(1, ddof=1) / np.sqrt(5))
    assert (frame["importance"] == frame["mean"]).all()
    noise = assay.activation_patching(wrapped("llama"), random_pairs(), direction="noise", force=True).to_pandas()
    assert (noise["importance"] == -noise["mean"]).all()
    top = scores.top(4)
    assert list(top["importance"].abs()) == sorted(scores.to_pandas()["importance"].abs(), reverse=True)[:4]
    with pytest.raises(OptionError, match="at least 1"):
        scores.top(0)


def test_one_prompt_has_no_standard_error(tmp_path: Path) -> None:
    scores = assay.attribution_patching(wrapped("llama"), random_pairs(1), force=True)
    assert scores.to_pandas()["stderr_prompts"].isna().all()
    scores.save(tmp_path / "run")
    assert (assay.Scores.load(tmp_path / "run").values == scores.values).all()
    assert "n/a" not in scores._repr_html_()


def test_verdicts_follow_the_method(scores: assay.Scores) -> None:
    assert set(scores.to_pandas()["verdict"]) == {"verified"}
    estimate = assay.attribution_patching(wrapped("llama"), random_pairs(), force=True).to_pandas()
    assert set(estimate["verdict"]) == {"unresolved"}
    assert estimate["lower"].isna().all()


def test_nothing_is_overwritten_or_half_written(scores: assay.Scores, tmp_path: Path) -> None:
    scores.save(tmp_path / "run")
    with pytest.raises(StoreError, match="exists already"):
        scores.save(tmp_path / "run")

    def fail(_: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scores.save(tmp_path / "other", finish=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="not a writable folder"):
        scores.save(tmp_path / "file" / "run")


def test_damaged_and_foreign_folders_are_refused(scores: assay.Scores, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no folder"):
        assay.Scores.load(tmp_path / "none")
    with pytest.raises(StoreError, match="not a run folder"):
        assay.Scores.load(tmp_path)
    for name in ("scores.parquet", "components.parquet", "tensors.safetensors", "run.json"):
        folder = scores.save(tmp_path / name)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(StoreError, match="damaged"):
            assay.Scores.load(folder)
    folder = scores.save(tmp_path / "old")
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "schema_version": 0}))
    with pytest.raises(StoreError, match="schema version 0"):
        assay.Scores.load(folder)


def test_a_finished_run_is_known_by_its_configuration(scores: assay.Scores, tmp_path: Path) -> None:
    folder = scores.save(tmp_path / "run")
    assert not finished_run(tmp_path / "none", scores.configuration)
    assert finished_run(folder, scores.configuration)
    with pytest.raises(StoreError, match=r"n: 5 there, 6 now"):
        finished_run(folder, {**scores.configuration, "n": 6})


def test_html_is_escaped(scores: assay.Scores) -> None:
    scores.provenance["model"]["name"] = "<script>"
    assert "<script>" not in scores._repr_html_()
    scores.provenance["model"]["name"] = "llama"
