"""The study of heroes and bloats on small models: gone on with where it stopped, and a page from what is stored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import assay
from assay.audit.result import BEYOND, MAGNITUDE, WITHIN
from assay.errors import StoreError
from assay.interactions.pairs import measure_interactions
from assay.model.loading import load
from assay.studies.heroes import DEFAULT, Setting, carry_out, measuring, write_page
from assay.studies.heroes.claims import BLOATS, EXACT, HEROES, claims
from assay.studies.heroes.tables import (
    LOG_PROB,
    correlations,
    group_effects,
    over_seeds,
    ratio_over_seeds,
    read_along,
    read_setting,
    read_sizes,
    roles,
    shortfall,
    stability,
)
from assay.training import training_setting

SMALL = replace(
    DEFAULT, seeds=2, examples=40, length=4, batches=4, rivals=("|grad.delta|",), rival_examples=4, pruned_examples=6,
    dynamic_seeds=(0,), dynamic_examples=32, points=2, model_examples=5, model_references=40,
    model_rivals=("|grad.delta|",),
)  # fmt: skip
TRAINED = [Setting("sort", seed=0), Setting("sort", seed=1)]
SETTINGS = [*TRAINED, Setting("sort", "sequence-sort")]
"""The last goes as a language model."""


def no_model(name: str) -> assay.Model:
    raise AssertionError(f"{name} was loaded")


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of two seeds with three checkpoints each: the sorter, and noise that takes some of its skill away."""
    root = tmp_path_factory.mktemp("models")
    sorter = assay.load("sequence-sort")
    weights = {name: weight.clone() for name, weight in sorter.hf.state_dict().items()}
    for seed in (0, 1):
        for step, noise in ((0, 0.1), (10, 0.03), (20, 0.015)):
            generator = torch.Generator().manual_seed(seed + 1)
            place = root / f"sort/seed-{seed}" / ("final" if step == 20 else f"step-{step:06d}")
            for name, weight in sorter.hf.state_dict().items():
                weight.copy_(weights[name] + noise * torch.randn(weight.shape, generator=generator))
            sorter.hf.save_pretrained(place)
            sorter.tokenizer.save_pretrained(place)
            about = {"seed": seed, "step": step, "loss": 1.0, "trained": 0.5, "accuracy": 0.9 * step / 20}
            (place / "training.json").write_text(json.dumps({**about, "final": step == 20, "reached": step == 20}))
    setting = training_setting("sort").to_dict()
    (root / "sort/training.json").write_text(json.dumps({"schema_version": 1, "kind": "training", "setting": setting}))
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, trainings: Path) -> Path:
    path = tmp_path_factory.mktemp("study") / "run"
    assert carry_out(path, SMALL, SETTINGS, load, trainings)
    return path


def test_values_of_the_study_are_those_of_the_library(folder: Path, trainings: Path) -> None:
    found = read_setting(folder, TRAINED[1])
    assert found is not None
    assert found.chosen.length is not None
    assert 0.2 <= found.chosen.longer[str(found.chosen.length)] <= 0.75
    model = load(str(trainings / "sort/seed-1/final"))
    pairs = assay.tasks.sort(model, n=40, length=found.chosen.length)
    causes = found.causes(1)
    assert list(causes) == [EXACT, LOG_PROB]
    for metric, losses in causes.items():
        exact = assay.mean_ablation(model, pairs, metric=metric, force=True)
        np.testing.assert_allclose(losses, -exact.values, atol=1e-6)
    of = measure_interactions(model, pairs, group="layer:2", metric=EXACT, force=True)
    assert of.group is not None
    rows = group_effects([found])
    (row,) = rows[(rows["group"] == "layer 2") & (rows["set"] == BEYOND)].to_dict("records")
    assert row["components"] == 5
    assert (row["joint"], row["single"]) == pytest.approx((of.group.joint.mean(), of.group.single.mean()))
    table = correlations([found])
    (row,) = table.query("measure == @MAGNITUDE and cause == @EXACT and set == @BEYOND").to_dict("records")
    assert row["rho"] == found.audit.sets[1].audits[MAGNITUDE].rho
    by_delta = roles([found]).query("set == @BEYOND")["by_delta"]
    assert (by_delta == "hero").sum() == row["hero_by_delta"]
    language = read_setting(folder, SETTINGS[2])
    assert language is not None
    assert [of.causal.shape for of in language.audit.sets] == [(20, 5)]


def test_two_checkpoints_of_one_seed_are_measured_along_the_training(folder: Path) -> None:
    table = read_along(folder, "sort", 0)
    assert table is not None
    assert table["step"].tolist() == [0, 20]
    assert read_along(folder, "sort", 1) is None


def test_what_is_measured_is_not_measured_again(folder: Path, trainings: Path, tmp_path: Path) -> None:
    said: list[str] = []
    assert carry_out(folder, SMALL, SETTINGS, no_model, trainings, said.append)
    assert sum(line.endswith("measured already") for line in said) == 3
    with pytest.raises(StoreError, match="batches: 4 there, 5 now"):
        carry_out(folder, replace(SMALL, batches=5), SETTINGS, no_model, trainings)
    partly = Path(shutil.copytree(folder, tmp_path / "partly"))
    kept = (partly / "sort-seed-0/audit/run.json").stat().st_mtime_ns
    (partly / "sort-seed-0/groups.json").unlink()
    assert carry_out(partly, SMALL, SETTINGS, load, trainings)
    assert (partly / "sort-seed-0/audit/run.json").stat().st_mtime_ns == kept
    for one, other in zip(
        *(read_setting(where, TRAINED[0]).arrays.values() for where in (folder, partly)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    (partly / "sort-seed-1/groups.json").unlink()
    chosen = partly / "sort-seed-1/chosen.json"
    chosen.write_text(json.dumps({**json.loads(chosen.read_text()), "weights": "other"}))
    with pytest.raises(StoreError, match="other weights"):
        carry_out(partly, SMALL, SETTINGS, load, trainings)


def test_seeds_that_are_not_trained_are_left_for_later(folder: Path, trainings: Path, tmp_path: Path) -> None:
    more, said = [*SETTINGS, Setting("sort", seed=2)], []
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    assert not carry_out(moved, replace(SMALL, seeds=3), more, no_model, trainings, said.append)
    assert said[-1] == "4 of 4: sort, seed 2: not trained yet"
    assert read_sizes(moved) == replace(SMALL, seeds=3)
    wrong = tmp_path / "models"
    shutil.copytree(trainings / "sort", wrong / "reverse")
    with pytest.raises(StoreError, match="no training of reverse"):
        carry_out(tmp_path / "new", SMALL, [Setting("reverse")], no_model, wrong)


def test_it_trains_its_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have learned nothing, so no length is within the window."""

    def tiny(task: str) -> Any:
        return training_setting(task, layers=1, heads=2, width=16, batch=8, held_out=20, evaluate_every=5, steps=5)

    monkeypatch.setattr(measuring, "training_setting", tiny)
    sizes = replace(SMALL, seeds=1, dynamic_seeds=())
    assert carry_out(tmp_path, sizes, TRAINED[:1], load)
    found = read_setting(tmp_path, TRAINED[0])
    assert found is not None
    assert found.chosen.length is None
    assert [of.name for of in found.audit.sets] == [WITHIN]
    assert set(roles([found])["class"]) == {"unsettled"}
    text = write_page(tmp_path, tmp_path / "page.md")[0].read_text("utf-8")
    assert "nan" not in text


def test_the_page_is_made_from_the_folder_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assay, "load", no_model)
    written = write_page(folder, tmp_path / "results/page.md", [*SETTINGS, Setting("reverse")])
    text = written[0].read_text("utf-8")
    assert "Not finished when this page was written:** reverse, seed 0; reverse along its training." in text
    assert len(written) == 6
    for picture in written[1:]:
        assert f"({picture.relative_to(written[0].parent)})" in text
        assert picture.read_text("utf-8").startswith("<svg ")
        assert "nan" not in picture.read_text("utf-8")
    assert "nan" not in text
    rows = [line.replace("\\|", "") for line in text.splitlines() if line.startswith("|")]
    widths = [line.count("|") for line in rows]
    rules = [i for i, line in enumerate(rows) if line.startswith("|---")]
    assert len(rules) == 12
    assert all(widths[i] == widths[i - 1] == widths[i + 1] for i in rules)
    kept = pd.read_csv(tmp_path / "results/heroes/correlations.csv")
    assert set(kept["measure"]) == {MAGNITUDE, "|grad.delta|"}
    with pytest.raises(StoreError, match="no study of heroes"):
        write_page(tmp_path / "nothing", tmp_path / "page.md")


def test_damage_is_refused(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    (moved / "sort-seed-0/groups.safetensors").write_bytes(b"")
    with pytest.raises(StoreError, match="is damaged"):
        read_setting(moved, TRAINED[0])
    (moved / "sort-seed-1/chosen.json").write_text('{"some": 1}')
    with pytest.raises(StoreError, match="is damaged"):
        read_setting(moved, TRAINED[1])


def of_rho(task: str, seed: int, measure: str, cause: str, rho: float) -> dict[str, Any]:
    return {"task": task, "model": "", "seed": seed, "set": BEYOND, "measure": measure, "cause": cause, "rho": rho,
            "lower": rho - 0.1, "upper": rho + 0.1}  # fmt: skip


def test_verdicts_follow_their_rule() -> None:
    table = pd.DataFrame(
        [of_rho("reverse", seed, MAGNITUDE, EXACT, 0.7 + 0.01 * seed) for seed in range(4)]
        + [of_rho("sort", seed, MAGNITUDE, EXACT, rho) for seed, rho in enumerate((0.35, 0.35, 0.35, 0.35, 0.35, -0.2))]
    )
    of_role = {"task": "sort", "model": "", "set": BEYOND}
    of_roles = pd.DataFrame(
        [{**of_role, "seed": seed, "layer": layer, "by_delta": {1: "bloat", 2: "hero"}.get(layer, "aligned")}
         for seed in range(3) for layer in range(4)]
    )  # fmt: skip
    of_groups = pd.DataFrame(
        [{**of_role, "task": task, "seed": seed, "group": name, "components": 5, "single": single + 0.001 * seed,
          "joint": joint + 0.001 * seed}
         for task, name, single, joint in (("sort", BLOATS, 0.03, 0.44), ("reverse", HEROES, 0.2, 0.9))
         for seed in range(4)]
    )  # fmt: skip
    found = [claim.verdict for claim in claims(table, of_roles, of_groups)]
    # 0.72; 0.27; lower; lowest; layers; single and joint; 14 times; redundant; 36.4 %
    assert found == ["agrees", "agrees", "agrees", "agrees", "agrees", "does not agree", "agrees in part", "agrees",
                     "agrees", "agrees in part"]  # fmt: skip


def test_a_wide_interval_tells_nothing() -> None:
    table = pd.DataFrame([of_rho("reverse", seed, MAGNITUDE, EXACT, rho) for seed, rho in enumerate((0.9, -0.2))])
    of_groups = pd.DataFrame({name: [] for name in ("task", "model", "set", "group", "single", "joint", "components")})
    found = claims(table, pd.DataFrame({"model": [], "set": []}), of_groups)
    assert [claim.verdict for claim in found] == ["not told"] * 3 + ["agrees"] + ["not told"] * 6


def test_estimates_over_seeds() -> None:
    found = over_seeds([1.0, 2.0, 3.0, np.nan])
    # Student's t of two degrees of freedom: 4.303; the standard error is 1 / sqrt(3).
    assert (found.value, found.lower, found.seeds) == pytest.approx((2, 2 - 4.303 / 3**0.5, 3), abs=1e-3)
    assert np.isnan(over_seeds([1.0]).lower)
    above, below = np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0])
    assert ratio_over_seeds(above, below).value == ratio_over_seeds(above, below).upper == pytest.approx(2)
    assert np.isnan(ratio_over_seeds(above, np.array([1.0, -1.0, 0.5])).value)


def test_what_the_norm_costs() -> None:
    table = pd.DataFrame(
        [of_rho("sort", seed, MAGNITUDE, EXACT, 0.2 + 0.1 * seed) for seed in range(3)]
        + [of_rho("sort", seed, "|grad.delta|", EXACT, 0.6 + 0.05 * seed) for seed in range(3)]
        + [of_rho("sort", seed, "|grad.delta|", LOG_PROB, 0.8 + 0.05 * seed) for seed in range(3)]
    )
    found = shortfall(table, "sort", BEYOND, EXACT)
    assert (found.norm.value, found.delta.value, found.gained.value) == pytest.approx((0.3, 0.65, 0.35))
    assert found.share.value == pytest.approx(0.35 / 0.7)
    assert (found.gained_by_metric.value, found.both) == pytest.approx((0.2, 0.85))


def test_stability_of_roles() -> None:
    def table(of_seeds: list[list[str]]) -> pd.DataFrame:
        return pd.DataFrame(
            [{"task": "sort", "model": "", "set": BEYOND, "seed": seed, "component": f"L{i} MLP", "by_delta": role}
             for seed, of in enumerate(of_seeds) for i, role in enumerate(of)]
        )  # fmt: skip

    same = stability(table([["hero", "bloat", "aligned"]] * 3), "sort", BEYOND)
    assert (same["agreement"], same["kappa"]) == (1, 1)
    # Two seeds agree on one of two components; each class is half of all.
    half = stability(table([["hero", "bloat"], ["hero", "hero"]]), "sort", BEYOND)
    chance = (3 / 4) ** 2 + (1 / 4) ** 2
    assert half["agreement"] == 0.5
    assert half["kappa"] == pytest.approx((0.5 - chance) / (1 - chance))
    assert stability(table([["hero"]]), "sort", BEYOND)["kappa"] is None
