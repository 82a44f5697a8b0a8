"""Scores keep every example, survive the disk to the last bit, and refuse to overwrite."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import assay
from assay import circuits, interactions, reliability
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
    with pytest.raises(StoreError, match="Cannot write"):
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


def test_a_finished_run_is_known_by_its_request(scores: assay.Scores, tmp_path: Path) -> None:
    folder = assay.Scores(**{**vars(scores), "request": {"n": 5}}).save(tmp_path / "run")
    assert not finished_run(tmp_path / "none", {"n": 5})
    assert finished_run(folder, {"n": 5})
    with pytest.raises(StoreError, match=r"n: 5 there, 6 now"):
        finished_run(folder, {"n": 6})


def test_the_configuration_tells_different_numbers_apart() -> None:
    model, pairs, reference = wrapped("llama"), random_pairs(), random_pairs(40, seed=3)
    runs = [
        assay.mean_ablation(model, pairs, mean="all-positions", force=True),
        assay.mean_ablation(model, pairs, mean="all-positions", reference=reference, force=True),
        assay.zero_ablation(model, pairs, force=True),
        assay.activation_patching(model, pairs, force=True),
        assay.activation_patching(model, pairs, direction="noise", force=True),
        assay.activation_patching(model, pairs, sites="heads", force=True),
        assay.activation_patching(model, pairs, metric="log-prob", force=True),
        assay.activation_patching(model, pairs[:4], force=True),
    ]
    texts = [json.dumps(scores.configuration, sort_keys=True) for scores in runs]
    assert len(set(texts)) == len(runs)
    again = assay.activation_patching(model, pairs, force=True)
    assert again.configuration == runs[3].configuration
    with torch.no_grad():
        model.unembedding.weight.mul_(2)
    changed = assay.activation_patching(model, pairs, force=True)
    assert changed.configuration["model"] != again.configuration["model"]


def test_files_that_do_not_fit_together_are_refused(scores: assay.Scores, tmp_path: Path) -> None:
    def values_in_another_order(folder: Path) -> None:
        frame = pd.read_parquet(folder / "scores.parquet")
        frame.sample(frac=1, random_state=0).to_parquet(folder / "scores.parquet", index=False)

    def components_turned(folder: Path) -> None:
        frame = pd.read_parquet(folder / "components.parquet")
        frame.iloc[::-1].to_parquet(folder / "components.parquet", index=False)

    def a_value_gone(folder: Path) -> None:
        frame = pd.read_parquet(folder / "scores.parquet")
        frame.loc[3, "value"] = float("nan")
        frame.to_parquet(folder / "scores.parquet", index=False)

    def a_value_changed(folder: Path) -> None:
        frame = pd.read_parquet(folder / "scores.parquet")
        frame.loc[3, "value"] += 1
        frame.to_parquet(folder / "scores.parquet", index=False)

    def without(name: str) -> Callable[[Path], None]:
        def remove(folder: Path) -> None:
            run = json.loads((folder / "run.json").read_text())
            del run[name]
            (folder / "run.json").write_text(json.dumps(run))

        return remove

    def prompts_short(folder: Path) -> None:
        lines = (folder / "prompts.jsonl").read_text().splitlines()
        (folder / "prompts.jsonl").write_text("\n".join(lines[:-1]))

    def version_true(folder: Path) -> None:
        run = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**run, "schema_version": True}))

    damages = [values_in_another_order, components_turned, a_value_gone, a_value_changed, prompts_short, version_true]
    for number, damage in enumerate([*damages, without("task"), without("method"), without("provenance")]):
        folder = scores.save(tmp_path / str(number))
        damage(folder)
        with pytest.raises(StoreError):
            assay.Scores.load(folder)


def test_overwriting_must_be_asked_for(scores: assay.Scores, tmp_path: Path) -> None:
    scores.save(tmp_path / "run")
    scores.save(tmp_path / "run", overwrite=True)
    assert (assay.Scores.load(tmp_path / "run").values == scores.values).all()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(StoreError, match="exists already"):
        scores.save(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_an_empty_folder_is_filled_and_links_are_followed(
    scores: assay.Scores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    before = (tmp_path / "empty").stat().st_ino
    scores.save(tmp_path / "empty")
    assert (tmp_path / "empty").stat().st_ino == before, "a mount point cannot be replaced"
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    scores.save(tmp_path / "link")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    scores.save(".")
    for name in ("empty", "target", "here"):
        assert (assay.Scores.load(tmp_path / name).values == scores.values).all()
        assert len(list((tmp_path / name).iterdir())) == 5


def test_what_a_killed_process_left_is_removed(scores: assay.Scores, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    abandoned = tmp_path / f".assay-{socket.gethostname()}-{gone.pid}-abcd"
    abandoned.mkdir()
    living = tmp_path / f".assay-{socket.gethostname()}-{os.getpid()}-abcd"
    living.mkdir()
    scores.save(tmp_path / "run")
    assert not abandoned.exists()
    assert living.exists()


def test_html_is_escaped(scores: assay.Scores) -> None:
    scores.provenance["model"]["name"] = "<script>"
    assert "<script>" not in scores._repr_html_()
    scores.provenance["model"]["name"] = "llama"


def test_results_that_hold_arrays_compare_and_hash_as_objects(scores: assay.Scores) -> None:
    """Field by field, == would ask an array for its truth."""
    same = assay.activation_patching(wrapped("llama"), random_pairs(), force=True)
    assert scores == scores
    assert scores != same
    assert len({scores, same}) == 2
    found = assay.explain(wrapped("llama"), "w1 w2 w3", method="random", baseline="mean")
    assert found == found
    assert found in [found]
    for package in (assay, assay.tokens, circuits, reliability, interactions):
        for name in package.__all__:
            kind = getattr(package, name)
            types = [str(field.type) for field in getattr(kind, "__dataclass_fields__", {}).values()]
            arrays = re.compile("ndarray|NDArray|Numbers|DataFrame|Scores|Tensor")
            if any(arrays.search(each) and "Callable" not in each for each in types):
                assert not kind.__dataclass_params__.eq, kind
