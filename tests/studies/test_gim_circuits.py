"""The study of circuits end to end on small models: gone on with where it stopped, and a page from what is stored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import assay
from assay.circuits import circuit_curve, edge_scores, ensemble
from assay.circuits.registry import edge_method
from assay.data.readers import PromptSource, open_prompts
from assay.errors import DataError, StoreError
from assay.studies.gim_circuits import DEFAULT, FULL, Setting, carry_out, measuring, settings, write_page
from assay.studies.gim_circuits.choosing import Chosen, choose
from assay.studies.gim_circuits.settings import ENSEMBLES, GIM, METHODS, PARTS
from assay.studies.gim_circuits.tables import claims, duels, read_setting, read_sizes, values

SMALL = replace(DEFAULT, scored=3, evaluated=6, steps=2, mask_steps=2, shares=(0.1, 0.5, 1.0))
SETTINGS = [Setting("sequence-sort", "sort"), Setting("sequence-sort", "facts")]
"""The second goes by the name of a task of one step."""


@pytest.fixture(scope="module", autouse=True)
def tasks() -> None:
    settings.TASKS |= {"sort": ("sort", {"length": 4}), "facts": ("sort", {"length": 3})}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tasks: None) -> Path:
    path = tmp_path_factory.mktemp("study") / "run"
    carry_out(path, SMALL, SETTINGS, assay.load)
    return path


def no_model(name: str) -> assay.Model:
    raise AssertionError(f"{name} was loaded")


def test_values_of_the_study_are_those_of_the_library(folder: Path, sorter: assay.Model) -> None:
    found = read_setting(folder, SETTINGS[0])
    assert found is not None
    assert not found.missing
    scored, evaluated = found.chosen.scored, found.chosen.evaluated
    assert (len(scored), len(evaluated)) == (3, 6)
    assert {p.clean for p in scored}.isdisjoint({p.clean for p in evaluated})
    again = {
        "eap": edge_scores(sorter, scored, "eap"),
        "eap-ig-inputs": edge_scores(sorter, scored, edge_method("eap-ig-inputs", steps=2)),
        GIM: edge_scores(sorter, scored, edge_method("eap", rules="gim")),
        PARTS[1]: edge_scores(sorter, scored, edge_method("eap", rules=PARTS[1])),
        "edge-masks": edge_scores(sorter, scored, edge_method("edge-masks", steps=2)),
    }
    again["hybrid"] = ensemble([again[name] for name in ENSEMBLES["hybrid"]])
    for name, scores in again.items():
        np.testing.assert_allclose(found.found[name].scores, scores.mean, rtol=1e-6, atol=1e-9)
    table = values([found], SMALL)
    for measure, absolute in (("CPR", False), ("CMD", True)):
        curve = circuit_curve(sorter, evaluated, again[GIM], sizes=SMALL.shares, absolute=absolute).curve
        expected = curve.cpr if measure == "CPR" else curve.cmd
        (row,) = table.query("method == @GIM and measure == @measure").to_dict("records")
        assert (row["value"], row["lower"], row["upper"]) == pytest.approx(tuple(expected))


def test_the_paired_difference_is_of_the_same_prompts(folder: Path) -> None:
    found = read_setting(folder, SETTINGS[0])
    assert found is not None
    table = values([found], SMALL)
    for measure, sign in (("CPR", 1), ("CMD", -1)):
        of_gim = float(table.query("method == @GIM and measure == @measure")["value"].iloc[0])
        rows = table[(table["measure"] == measure) & (table["method"] != GIM)]
        np.testing.assert_allclose(rows["gim_over"], sign * (of_gim - rows["value"]), atol=1e-12)
        assert (rows["gim_over_lower"] <= rows["gim_over"] + 1e-9).all()
        assert (rows["gim_over_upper"] >= rows["gim_over"] - 1e-9).all()
    for measure, best in (("CPR", "max"), ("CMD", "min")):
        part = table[table["measure"] == measure]
        assert (part[part["rank"] == 1]["value"] == getattr(part["value"], best)()).all()


def test_what_is_measured_is_not_measured_again(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    carry_out(folder, SMALL, SETTINGS, no_model, say=said.append)
    assert [line.endswith("measured already") for line in said] == [True, True]
    with pytest.raises(StoreError, match="steps: 2 there, 3 now"):
        carry_out(folder, replace(SMALL, steps=3), SETTINGS, no_model)
    partly = Path(shutil.copytree(folder, tmp_path / "partly"))
    kept = {path: path.stat().st_mtime_ns for path in partly.glob("*/eap.json")}
    gone = [partly / SETTINGS[0].folder / name for name in ("hybrid.json", "random.json")]
    for path in gone:
        path.unlink()
    carry_out(partly, SMALL, SETTINGS, assay.load)
    assert all(path.is_file() for path in gone)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    one, other = (read_setting(where, SETTINGS[0]) for where in (folder, partly))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.found["hybrid"].scores, other.found["hybrid"].scores)


def test_the_page_is_made_from_the_folder_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    monkeypatch.setattr(assay, "load", no_model)
    (moved / SETTINGS[1].folder / "hybrid.json").unlink()
    written = write_page(moved, tmp_path / "results/page.md", [*SETTINGS, Setting("gemma-3-270m", "ioi")])
    text = written[0].read_text("utf-8")
    assert "Not finished when this page was written:** sequence-sort facts; Gemma 3 ioi." in text
    assert len(written) == 3
    for picture in written[1:]:
        assert f"({picture.relative_to(written[0].parent)})" in text
        assert picture.read_text("utf-8").startswith("<svg ")
        assert "nan" not in picture.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = [line.count("|") for line in rows]
    rules = [i for i, line in enumerate(rows) if line.startswith("|---")]
    assert len(rules) == 8
    assert all(widths[i] == widths[i - 1] == widths[i + 1] for i in rules)
    assert "nan" not in text.lower().replace("finance", "")
    kept = pd.read_csv(written[0].parent / "gim-circuits/numbers.csv")
    assert set(kept["method"]) == set(METHODS)
    with pytest.raises(StoreError, match="no study of circuits"):
        write_page(tmp_path / "nothing", tmp_path / "page.md")


def test_a_task_that_cannot_be_done_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*arguments: object) -> Chosen:
        found = choose(*arguments)  # type: ignore[arg-type]
        return replace(found, clean=found.clean_stderr)

    monkeypatch.setattr(measuring, "choose", cannot)
    carry_out(tmp_path / "run", SMALL, SETTINGS[:1], assay.load)
    found = read_setting(tmp_path / "run", SETTINGS[0])
    assert found is not None
    assert not found.found
    assert not found.missing
    with pytest.raises(StoreError, match="No circuit"):
        write_page(tmp_path / "run", tmp_path / "page.md", SETTINGS[:1])


def test_guessing_among_choices_does_not_pass(folder: Path) -> None:
    found = read_setting(folder, SETTINGS[0])
    assert found is not None
    assert found.chosen.passes
    assert not replace(found.chosen, right=0.3).passes
    assert replace(found.chosen, right=0.9).passes


def test_verdicts_follow_their_rule() -> None:
    def row(method: str, multi: bool, low: float, high: float) -> dict:
        return {"method": method, "measure": "CPR", "multi_step": multi, "gim_over": (low + high) / 2,
                "gim_over_lower": low, "gim_over_upper": high}  # fmt: skip

    table = pd.DataFrame(
        [row("eap", True, 0.1, 0.2), row("eap-ig-inputs", True, -0.1, 0.2), row("eap", False, -0.2, -0.1),
         row("random", True, 0.1, 0.2), row(PARTS[0], False, 0.1, 0.2), row(PARTS[0], True, 0.1, 0.3),
         row(PARTS[0], True, -0.3, -0.1)]
    )  # fmt: skip
    assert duels(table).query("method == 'eap'")["better"].tolist() == [1, 0]
    assert [claim["verdict"] for claim in claims(table)] == ["holds", "does not hold", "holds in part", "holds"]


def test_a_setting_without_gim_decides_nothing(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    (moved / SETTINGS[0].folder / f"{GIM}.json").unlink()
    (one, both) = ([read_setting(moved, setting) for setting in part] for part in (SETTINGS[:1], SETTINGS))
    assert all(both)
    assert values([each for each in one if each], SMALL)["gim_over"].isna().all()
    table = values([each for each in both if each], SMALL)
    assert set(duels(table)["settings"]) == {1}
    write_page(moved, tmp_path / "page.md", SETTINGS[:1])


def test_damage_and_other_data_are_refused(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    (moved / SETTINGS[0].folder / "eap.safetensors").write_bytes(b"")
    with pytest.raises(StoreError, match="is damaged"):
        read_setting(moved, SETTINGS[0])
    prompts = moved / SETTINGS[1].folder / "prompts.json"
    content = json.loads(prompts.read_text())
    prompts.write_text(json.dumps({**content, "weights": "other"}))
    (moved / SETTINGS[1].folder / "eap.json").unlink()
    with pytest.raises(StoreError, match="other weights"):
        carry_out(moved, SMALL, SETTINGS[1:], assay.load)
    prompts.write_text("{}")
    with pytest.raises(StoreError, match="is damaged"):
        read_setting(moved, SETTINGS[1])
    with pytest.raises(DataError, match="The data set arc is not there"):
        carry_out(tmp_path / "new", SMALL, [Setting("sequence-sort", "arc")], assay.load)


def test_sizes_come_back(folder: Path) -> None:
    assert read_sizes(folder) == SMALL
    assert {setting.task for setting in FULL.settings(["arc"])} >= {"arc", "ioi, swap", "greater-than"}
    assert Setting("m", "arc").is_data_set
    assert Setting("m", "arc").multi_step


@pytest.mark.xdist_group("real models")
def test_questions_are_chosen_and_counted(smollm2: assay.Model, tmp_path: Path) -> None:
    options = "A. ice\nB. fire\nC. snow\nD. milk"
    rows = [{"question": f"Read this.\nWhich is {word}?", "options": options, "answer": "B. fire"}
            for word in ("hot", "red", "warm", "burning", "bright")]  # fmt: skip
    path = tmp_path / "arc.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    source: PromptSource = open_prompts(path)
    found = choose(smollm2, Setting("smollm2-135m", "arc"), replace(SMALL, scored=2, evaluated=3), source)
    assert found.sha256 == source.sha256
    assert found.right is not None
    assert 0 <= found.right <= 1
    assert (len(found.scored), len(found.evaluated)) == (2, 3)
