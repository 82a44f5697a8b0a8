"""The study of token attributions end to end on small models: resumed after a kill, and a page from what is stored."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import assay
from assay.data.readers.yes_no import YesNoPrompt, YesNoPrompts
from assay.errors import DataError, StoreError
from assay.studies.gim_tokens import DEFAULT, FULL, Setting, carry_out, write_page
from assay.studies.gim_tokens.arrays import read_setting, read_sizes
from assay.studies.gim_tokens.choosing import _difference, choose
from assay.studies.gim_tokens.settings import METHODS
from assay.studies.gim_tokens.tables import claims, duels, values

SMALL = replace(DEFAULT, texts=3, long_texts=2, steps=3, draws=2, baseline="mean")
SETTINGS = [Setting("sequence-sort", "sort"), Setting("sequence-sort", "sort", contrast=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "run"
    carry_out(path, SMALL, SETTINGS, assay.load)
    return path


def no_model(name: str) -> assay.Model:
    raise AssertionError(f"{name} was loaded")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.task_name)
def test_values_of_the_study_are_those_of_explain(folder: Path, setting: Setting, sorter: assay.Model) -> None:
    found = read_setting(folder, setting)
    assert found is not None
    assert found.faithfulness is not None
    assert found.chosen.right == found.chosen.scanned == 6
    assert len(found.texts) == 3
    for number, question in enumerate(found.chosen.questions, 1):
        asked = question if setting.contrast else replace(question, against=None)
        again = assay.explain_all(
            sorter, [asked], METHODS, baseline="mean", steps=3, faithfulness=True, draws=2, seed=number
        )
        assert again.faithfulness is not None
        np.testing.assert_allclose(found.faithfulness.values[..., number - 1], again.faithfulness.values[..., 0])
    orders = found.faithfulness.values[-1, :, :]
    assert not np.allclose(orders[:, 0], orders[:, 1]), "texts of one length have random orders of their own"


def test_what_is_measured_is_not_measured_again(folder: Path) -> None:
    said: list[str] = []
    carry_out(folder, SMALL, SETTINGS, no_model, say=said.append)
    assert [line.endswith("measured already") for line in said] == [True, True]
    with pytest.raises(StoreError, match="steps: 3 there, 4 now"):
        carry_out(folder, replace(SMALL, steps=4), SETTINGS, no_model)


CHILD = """
import sys
from pathlib import Path
import assay
sys.path[:0] = sys.argv[2:]
from studies.test_gim_tokens import SETTINGS, SMALL, carry_out
carry_out(Path(sys.argv[1]), SMALL, SETTINGS, assay.load)
"""


def test_a_killed_study_goes_on_and_ends_with_the_same_values(folder: Path, tmp_path: Path) -> None:
    path, tests = tmp_path / "run", str(Path(__file__).parent.parent)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), tests],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 300
    while not list(path.glob("*/002/run.json")) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    finished = {p: p.stat().st_mtime_ns for p in path.glob("*/*/run.json")}
    assert 2 <= len(finished) < 6
    carry_out(path, SMALL, SETTINGS, assay.load)
    assert {p: p.stat().st_mtime_ns for p in finished} == finished
    for setting in SETTINGS:
        one, other = read_setting(path, setting), read_setting(folder, setting)
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one.faithfulness.values, other.faithfulness.values)


def test_the_page_is_made_from_the_folder_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    monkeypatch.setattr(assay, "load", no_model)
    unmeasured = Setting("gemma-3-270m", "facts")
    shutil.rmtree(moved / SETTINGS[1].folder / "003")
    written = write_page(moved, tmp_path / "results" / "page.md", [*SETTINGS, unmeasured])
    text = written[0].read_text("utf-8")
    assert "Not finished when this page was written:** sequence-sort sort, contrast; Gemma 3 facts." in text
    assert len(written) == 3
    for picture in written[1:]:
        assert f"({picture.relative_to(written[0].parent)})" in text
        assert picture.read_text("utf-8").startswith("<svg ")
        assert "nan" not in picture.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = [line.count("|") for line in rows]
    rules = [i for i, line in enumerate(rows) if line.startswith("|---")]
    assert len(rules) == 3 + 4
    assert all(widths[i] == widths[i - 1] == widths[i + 1] for i in rules)
    kept = pd.read_csv(written[0].parent / "gim-tokens" / "numbers.csv")
    assert set(kept["method"]) == {*METHODS, "random"}
    assert set(kept["task"]) == {"sort", "sort, contrast"}


def test_tables_say_what_the_arrays_say(folder: Path) -> None:
    measured = [read_setting(folder, setting) for setting in SETTINGS]
    found = measured[0].faithfulness
    table = values([each for each in measured if each is not None])
    for key, (measure, steps, unit) in enumerate(found.keys):
        unit = "logits" if unit == "metric" else unit
        rows = table.query("task == 'sort' and measure == @measure and steps == @steps and unit == @unit")
        rows = rows.set_index("method")
        sign = 1 if measure == "comprehensiveness" else -1
        mean = dict(zip(found.methods, found.values[:, key].mean(-1), strict=True))
        for method in METHODS:
            assert rows.loc[method, "mean"] == pytest.approx(mean[method])
            assert rows.loc[method, "over_random"] == pytest.approx(sign * (mean[method] - mean["random"]))
            if method != "gim":
                assert rows.loc[method, "gim_over"] == pytest.approx(sign * (mean["gim"] - mean[method]))
                ends = rows.loc[method, ["gim_over_lower", "gim_over", "gim_over_upper"]].tolist()
                assert ends == sorted(ends)
        assert rows["headline"].nunique() == 1
        assert rows["headline"].iloc[0] == (steps == {"comprehensiveness": "counts", "sufficiency": "shares"}[measure])


def test_verdicts_follow_from_the_table(folder: Path) -> None:
    measured = [read_setting(folder, setting) for setting in SETTINGS]
    table = values([each for each in measured if each is not None])
    for low, high, verdict in ((0.1, 0.2, "agrees"), (-0.2, -0.1, "does not agree"), (-0.1, 0.1, "does not agree")):
        table["gim_over_lower"], table["gim_over_upper"] = low, high
        assert {claim["verdict"] for claim in claims(table)} == {verdict}
    table.loc[table["task"] == "sort", ["gim_over_lower", "gim_over_upper"]] = 0.1, 0.2
    table.loc[table["measure"] == "sufficiency", ["gim_over_lower", "gim_over_upper"]] = -0.1, 0.1
    assert claims(table)[2]["verdict"] == "agrees in part"
    won = duels(table).set_index(["method", "measure", "unit"])
    assert won.loc[("attn-lrp", "comprehensiveness", "logits")].tolist() == [1, 0, 2]


def test_a_leaning_to_one_label_is_no_ability() -> None:
    targets = [" Yes"] * 30 + [" No"] * 10
    leaning = np.where(np.array(targets) == " Yes", 2.0, -2.0) + np.random.default_rng(0).normal(0, 0.1, 40)
    difference, stderr = _difference(leaning, targets)
    assert abs(difference) < 2 * stderr < 0.2
    able, stderr = _difference(leaning + 1, targets)
    assert able == pytest.approx(difference + 1)
    assert _difference(np.array([3.0]), [" a"]) == (0.0, 0.0)


def rows_of(texts: list[tuple[str, bool]], digest: str = "0" * 64) -> YesNoPrompts:
    prompts = tuple(YesNoPrompt(f"line {i}", text, is_yes) for i, (text, is_yes) in enumerate(texts, 1))
    return YesNoPrompts("movies", "films.jsonl", digest, prompts, {})


def test_data_sets_are_chosen_by_length_and_ability(tmp_path: Path) -> None:
    model = yes_no_model()
    long = "w3 " * 20
    data = rows_of([("w1 w2 w3 w4", True), (long, True), ("w2 w2 w3 w4", False), ("w5 w2 w1 w4", True)] * 3)
    sizes = replace(SMALL, longest=10)
    setting = Setting("tiny", "movies")
    chosen = choose(model, setting, sizes, data)
    assert (chosen.scanned, chosen.too_long) == (9, 3)
    assert not chosen.passes, "random weights know nothing of films"
    assert chosen.questions == ()
    carry_out(tmp_path / "run", sizes, [setting], lambda _: model, {"movies": data})
    found = read_setting(tmp_path / "run", setting)
    assert found is not None
    assert found.texts == ()
    carry_out(tmp_path / "run", sizes, [setting], no_model)  # the rows are not needed again
    with pytest.raises(StoreError, match=r"holds texts of films\.jsonl .* has other content"):
        carry_out(tmp_path / "run", sizes, [setting], no_model, {"movies": rows_of([("w1", True)], "1" * 64)})
    with pytest.raises(StoreError, match=r"No text in .* is explained"):
        write_page(tmp_path / "run", tmp_path / "page.md", [setting])
    with pytest.raises(DataError, match="--data movies=FILE"):
        carry_out(tmp_path / "other", sizes, [setting], lambda _: model)


def test_texts_of_data_sets_are_measured_over_shares(tmp_path: Path) -> None:
    model = yes_no_model()
    texts = [f"w{i} w2 w3 w{i + 1} w7" for i in range(1, 13)]
    looked = assay.explain_all(model, [assay.Question(t, " Yes", " No") for t in texts], "random", baseline="mean")
    data = rows_of([(text, item.value > 0) for text, item in zip(texts, looked, strict=True)])
    setting = Setting("tiny", "movies")
    carry_out(tmp_path / "run", SMALL, [setting], lambda _: model, {"movies": data})
    found = read_setting(tmp_path / "run", setting)
    assert found is not None
    assert (found.chosen.right, len(found.texts)) == (12, 2)
    assert {steps for _, steps, _ in found.faithfulness.keys} == {"shares"}
    written = write_page(tmp_path / "run", tmp_path / "page.md", [setting])
    assert "movies from films.jsonl (tiny: 0 longer ones left out)." in written[0].read_text("utf-8")


def yes_no_model() -> assay.Model:
    """Of random weights, for a tokenizer that knows the answers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from conftest import wrapped
    from families import VOCABULARY

    names = [f"w{i}" for i in range(VOCABULARY - 2)] + ["Yes", "No"]
    bare = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="w0"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return assay.load(wrapped("llama").hf, PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="w0"))


def test_damaged_folders_are_named(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    (moved / SETTINGS[0].folder / "texts.json").write_text(json.dumps({"questions": []}))
    with pytest.raises(StoreError, match=r"texts\.json is damaged"):
        write_page(moved, tmp_path / "page.md", SETTINGS)
    (moved / "study.json").write_text("{}")
    with pytest.raises(StoreError, match=r"study\.json is damaged"):
        read_sizes(moved)


def test_settings_are_those_of_the_issue() -> None:
    plain = [setting for setting in DEFAULT.settings() if not setting.contrast]
    assert {setting.task for setting in plain} == {"ioi", "facts", "agreement", "sentiment"}
    assert len(plain) == 8
    assert len(DEFAULT.settings(["boolq", "movies"])) == len(DEFAULT.settings()) + 4
    assert len({setting.folder for setting in FULL.settings(["twitter"])}) == len(FULL.settings(["twitter"])) == 18
