"""``--json`` of what scores: standard output is JSON alone, and the same as ``assay show --json`` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import assay
from cli.conftest import Run

TASK = ("sequence-sort", "--task", "sort", "--n", "2", "--length", "3", "--top", "3", "--out", "folder")
SCORE = ("score", *TASK, "--method", "attribution-patching")
SCREEN = ("screen", *TASK, "--sites", "neurons[1:2]", "--probes", "2")


@pytest.mark.parametrize("command", [SCORE, SCREEN], ids=["score", "screen"])
def test_json_of_a_new_run_of_a_finished_one_and_of_show_are_the_same(command: tuple[str, ...], run: Run) -> None:
    ended = run(*command, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert (found["schema_version"], found["kind"]) == (1, "screening" if command is SCREEN else "scores")
    assert run(*command, "--json").out == ended.out == run("show", "folder", "--top", "3", "--json").out
    kind = assay.ScreenedScores if command is SCREEN else assay.Scores
    scores = kind.load("folder")
    assert [row["component"] for row in found["top"]] == scores.top(3)["component"].tolist()
    assert [row["importance"] for row in found["top"]] == scores.top(3)["importance"].tolist()
    assert "--json" not in found["provenance"]["command"]
    assert "finished already" in run(*command).out


def test_json_of_rows_that_were_left_out_is_json_alone(run: Run) -> None:
    rows = [("START 5 1 SEP", "START 1 2 SEP"), ("START 5 1 SEP", "START 1 2 3 SEP")]
    lines = [
        json.dumps({"clean": clean, "corrupted": corrupted, "answer": " 1", "wrong_answer": " 5"})
        for clean, corrupted in rows
    ]
    Path("rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    command = ("score", "sequence-sort", "--task", "rows.jsonl", "--align", "skip", "--sites", "mlps", "--force")
    found = json.loads(run(*command, "--json").out)
    assert found["examples"] == 1
    assert sum(found["configuration"]["task"]["dropped"].values()) == 1


def test_an_error_leaves_standard_output_empty(run: Run) -> None:
    ended = run(*SCORE, "--sites", "haeds", "--json")
    assert (ended.code, ended.out) == (2, "")
    assert "Did you mean 'heads'" in ended.err
