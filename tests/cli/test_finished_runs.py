"""What is shown of runs, whoever made them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.cli import main
from assay.data.baseline import Baseline
from assay.report import write_page
from assay.report.words import caution
from conftest import random_pairs, wrapped

Show = Callable[..., str]
SORT = {"clean": "START 1 2 SEP", "corrupted": "START 4 3 SEP", "answer": " 1 2 END", "wrong_answer": " 3 4 END"}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Show:
    """What ``assay ...`` prints, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["assay", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    return call


def test_a_run_with_a_metric_of_ones_own_is_shown(command: Show) -> None:
    def first_logit(logits, targets):
        return logits[..., 0].sum(-1)

    metric = assay.Metric(
        "first-logit", "logits", "logit of the first token", "answer", "vocabulary", True, first_logit
    )
    scores = assay.activation_patching(wrapped("llama"), random_pairs(2), metric=metric, sites="mlps", force=True)
    scores.save("mine")
    assay.random_scores(wrapped("llama"), random_pairs(2), metric=metric, sites="mlps", force=True).save("random")
    for folder in ("mine", "random"):
        shown = command("show", folder)
        assert "Metric first-logit: logit of the first token (asked for)." in shown
        assert "first-logit (logits)" in shown
    assert json.loads(command("show", "mine", "--json"))["metric"] == "first-logit"


def test_prompts_from_a_file_are_named_by_it(command: Show, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text(json.dumps(SORT))
    shown = command("score", "sequence-sort", "--task", str(tmp_path / "pairs.jsonl"), "--out", "run")
    assert 'Which heads and MLPs of sequence-sort drive the behaviour in "pairs.jsonl"?' in shown
    assert "drive the behaviour in &#34;pairs.jsonl&#34;?" in (tmp_path / "run/report.html").read_text("utf-8")
    assert 'drive the behaviour in "pairs.jsonl"?' in command("show", "run")
    assert "of sequence-sort drive sort?" in command("demo")
    assay.activation_patching(assay.load("sequence-sort"), [SORT], sites="mlps").save("list")
    assert "drive the behaviour in these prompts?" in command("show", "list")


def test_pairs_of_unequal_length_are_counted_on_screen(command: Show, tmp_path: Path) -> None:
    longer = SORT | {"clean": "START 1 2 3 SEP"}
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, [longer, SORT, SORT, longer, longer, SORT])))
    score = ("score", "sequence-sort", "--task", "pairs.jsonl", "--align", "skip", "--force")
    assert "Left out: 3 of 6 rows of pairs.jsonl: clean and corrupted differ" in command(*score, "--out", "all")
    assert "Left out: 1 of 2 rows of pairs.jsonl: clean" in command(*score, "--n", "1", "--out", "one")
    assert "Left out: 1 of 3 rows of pairs.jsonl: clean" in command(*score, "--n", "2", "--out", "two")
    assert [len(assay.Scores.load(folder).pairs) for folder in ("all", "one", "two")] == [3, 1, 2]
    assert "finished already" in command(*score, "--n", "2", "--out", "two")
    run = json.loads((tmp_path / "two/run.json").read_text())
    assert (run["request"]["align"], run["request"]["task"]["n"]) == ("skip", 2)


def test_answers_of_unequal_length_get_a_caution(command: Show, tmp_path: Path) -> None:
    for name, other in (("equal", " 3 4 END"), ("unequal", " 3 4 5 END")):
        pair = SORT | {"wrong_answer": other}
        scores = assay.activation_patching(assay.load("sequence-sort"), [pair], sites="mlps", force=True)
        scores.save(name, finish=lambda scratch, scores=scores: write_page(scores, scratch / "report.html"))
    caution = (
        "Caution: answers have 3 to 4 tokens, and log-prob-diff adds up over tokens. Longer answers have lower sums"
    )
    assert caution in command("show", "unequal")
    assert caution in (tmp_path / "unequal/report.html").read_text("utf-8")
    assert "lower sums" not in command("show", "equal")
    read = assay.activation_patching(
        assay.load("sequence-sort"), [pair], metric="exact-match", sites="mlps", force=True
    )
    read.save("match")
    assert "lower sums" not in command("show", "match")


def test_no_right_answers_are_explained_where_answers_are_sets() -> None:
    wrong = np.zeros(4)
    baseline = Baseline(clean=np.full(4, 0.5), corrupted=np.full(4, -0.5), clean_right=wrong, corrupted_right=wrong)
    assert "first year's own tens digit" in (caution(baseline, "prob-diff") or "")
    assert "tens digit" not in (caution(baseline, "logit-diff") or "")
    right = replace(baseline, clean_right=np.ones(4))
    assert caution(right, "prob-diff") is None


def test_the_package_runs_as_a_module() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "assay", "show", "nowhere"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, "Error:" in ended.stderr) == (2, True)
