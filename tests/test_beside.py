"""What some methods give beside each value: the noise of random probes, the completeness gap."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import assay
from assay.errors import StoreError
from assay.report import write_page
from conftest import random_pairs, wrapped


@pytest.fixture(scope="module")
def sampled() -> assay.Scores:
    return assay.hvp_sampled(wrapped("llama"), random_pairs(2, lengths=(7,)), sites="heads", probes=4, force=True)


def test_the_noise_of_probes_is_the_spread_over_seeds(sampled: assay.Scores) -> None:
    """Of values and of means: over 30 seeds, the variance seen is the mean squared error reported."""
    draws = [
        assay.hvp_sampled(
            wrapped("llama"), random_pairs(2, lengths=(7,)), sites="heads", probes=4, seed=seed, force=True
        )
        for seed in range(30)
    ]
    for seen, reported in (
        ([each.values for each in draws], [each.stderr_probes for each in draws]),
        ([each.values.mean(1) for each in draws], [each.to_pandas()["stderr_probes"] for each in draws]),
    ):
        variance, claimed = np.var(seen, axis=0, ddof=1), np.mean(np.square(reported), axis=0)
        moving = variance > 1e-14
        assert moving.sum() >= 5
        assert (variance / claimed)[moving].mean() == pytest.approx(1, abs=0.2)
    assert sampled.stderr_probes is not None
    assert sampled.stderr_probes.shape == sampled.values.shape


def test_more_probes_until_a_wanted_precision() -> None:
    model, pairs = wrapped("llama"), random_pairs(1)
    fine = assay.hvp_sampled(model, pairs, sites="heads", probes=4, precision=0.2, force=True)
    rough = assay.hvp_sampled(model, pairs, sites="heads", probes=4, force=True)
    first = assay.attribution_patching(model, pairs, sites="heads", force=True).values
    size = np.linalg.norm(2 * (fine.values - first), axis=0)
    assert (np.linalg.norm(2 * fine.stderr_probes, axis=0) <= 0.2 * size + 1e-12).all()
    assert fine.configuration["precision"] == "0.2"
    assert fine.cost["forward_equivalents"] > 2 * rough.cost["forward_equivalents"]


@pytest.mark.parametrize("steps", [1, 3])
def test_the_completeness_gap_is_the_error(steps: int) -> None:
    model, pairs = wrapped("gpt2"), random_pairs(3)
    exact = assay.activation_patching(model, pairs, force=True).values
    plain = assay.integrated_gradients(model, pairs, steps=steps, force=True)
    found = assay.integrated_gradients(model, pairs, steps=steps, gap=True, force=True)
    np.testing.assert_allclose(found.values, plain.values, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.gap, found.values - exact, rtol=0, atol=1e-11)
    np.testing.assert_allclose(found.to_pandas()["gap"], (found.values - exact).mean(1), rtol=0, atol=1e-11)
    assert plain.gap is None
    assert "gap" not in plain.to_pandas()
    assert found.cost["interventions"] == plain.cost["interventions"] * (steps + 1) / steps


def test_kept_in_the_run_folder(sampled: assay.Scores, tmp_path: Path) -> None:
    gap = assay.integrated_gradients(wrapped("llama"), random_pairs(3), steps=1, gap=True, force=True)
    for name, scores in (("stderr_probes", sampled), ("gap", gap)):
        scores.save(tmp_path / name)
        again = assay.Scores.load(tmp_path / name)
        assert (getattr(again, name) == getattr(scores, name)).all()
        table = pd.read_parquet(tmp_path / name / "components.parquet")
        np.testing.assert_array_equal(table[name], scores.to_pandas()[name])
        table.drop(columns=name).to_parquet(tmp_path / name / "components.parquet")
        with pytest.raises(StoreError, match="do not fit together"):
            assay.Scores.load(tmp_path / name)


def test_shown_on_the_page(sampled: assay.Scores, tmp_path: Path) -> None:
    write_page(sampled, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<th>± probes</th>" in page
    assert f"<td>{sampled.top(1)['stderr_probes'][0]:.2g}</td>" in page


def test_shown_in_terminal_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from assay.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["assay", *arguments])
        with pytest.raises(SystemExit, match="0"):
            main()
        return capsys.readouterr().out

    task = ("score", "sequence-sort", "--task", "sort", "--n", "3", "--sites", "heads", "--method")
    for name, column, options in (
        ("stderr_probes", "± probes", ("hvp-sampled", "--probes", "2", "--precision", "0.8")),
        ("gap", "gap", ("integrated-gradients", "--steps", "1", "--gap")),
    ):
        printed = run(*task, *options, "--out", name)
        stored = assay.Scores.load(name)
        largest = stored.top(1).iloc[0]
        assert f"{column} is the" in printed
        (row,) = [line for line in printed.splitlines() if line.split()[:1] == ["1"]]
        assert f"{largest[name]:{'+' if name == 'gap' else ''}.2g}" in row
        shown = json.loads(run("show", name, "--json"))
        assert (shown["schema_version"], shown["kind"]) == (1, "scores")
        assert shown["top"][0][name] == largest[name]
    assert stored.provenance["command"].endswith("--steps 1 --gap --out gap")
