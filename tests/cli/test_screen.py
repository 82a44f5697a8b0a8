"""``assay screen`` and ``assay response``, from arguments to exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import assay
from cli.conftest import Run

HEADS = ("screen", "sequence-sort", "--task", "sort", "--n", "3", "--length", "3")
NEURONS = (*HEADS, "--sites", "neurons[1:3]", "--probes", "2", "--top", "4")


def test_a_screening_is_printed_kept_and_shown(run: Run) -> None:
    ended = run(*NEURONS, "--out", "folder")
    assert ended.code == 0, ended.err
    scores = assay.ScreenedScores.load("folder")
    assert "Screened top 4 at level 95%" in ended.out
    assert f"{scores.runs} of 1024 components were patched exactly" in ended.out
    assert f"no more than {scores.outside_bound} of those not patched" in ended.out
    for stage in scores.stages:
        assert stage.name in ended.out
    for number in scores.leaders:
        assert scores.components[number].name in ended.out
    again = run(*NEURONS, "--out", "folder")
    assert (again.code, "finished already" in again.out) == (0, True)
    assert "Screened top 4" in run("show", "folder").out
    shown = json.loads(run("show", "folder", "--top", "3", "--json").out)
    assert shown["screened"] is True
    assert shown["runs"] == scores.runs
    assert [row["component"] for row in shown["top"]] == scores.top(3)["component"].tolist()
    refused = run(*NEURONS, "--level", "0.9", "--out", "folder")
    assert (refused.code, "level: 0.95 there, 0.9 now" in refused.err) == (2, True)


def test_exhaustion_and_budget_are_said(run: Run) -> None:
    ended = run(*HEADS, "--top", "3")
    assert "certified" in ended.out
    assert "every one is patched" in ended.out
    ended = run(*NEURONS, "--budget", "22")
    assert "Stopped by the budget of 22 forward-equivalents" in ended.out
    assert "Open: L" in ended.out
    assert "The same command with a larger --budget goes on from here" in ended.out
    (folder,) = Path("runs").glob("screen-sort-*/shards")
    assert "finished already" in run(*NEURONS, "--budget", "22").out
    refused = run(*NEURONS, "--budget", "21")
    assert (refused.code, "budget: 22.0 there, 21.0 now" in refused.err) == (2, True)
    ended = run(*NEURONS)
    assert "Going on in" in ended.out
    assert "Screened top 4" in ended.out
    assert not folder.exists()
    assert run(*NEURONS, "--budget", "22").code == 2
    ended = run(*NEURONS, "--budget", "2", "--out", "small")
    assert (ended.code, "does not reach" in ended.err) == (2, True)
    assert not Path("small").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--top", "0"), "--top must be at least 1"),
        (("--level", "2"), "--level must lie between"),
        (("--fix", "glue"), "--fix is one of exact, hvp, ms-hvp"),
        (("--probes", "1"), "number of probes"),
        (("--budget", "-1"), "--budget is a number"),
        (("--sites", "haeds"), "Did you mean 'heads'"),
        (("--direction", "up"), "no direction"),
        (("--metric", "magic"), "magic"),
        (("--jobs", "0"), "--jobs"),
    ],
)
def test_bad_options(arguments: tuple[str, ...], complaint: str, run: Run, tmp_path: Path) -> None:
    ended = run(*HEADS, *arguments)
    assert ended.code == 2
    assert complaint in ended.err
    assert not list(tmp_path.iterdir())


def test_a_response_is_drawn(run: Run, tmp_path: Path) -> None:
    task = ("response", "sequence-sort", "--task", "sort", "--n", "2", "--points", "5")
    ended = run(*task, "--component", "L0 MLP", "--out", "deep/page.html")
    assert ended.code == 0, ended.err
    assert "attribution patching" in ended.out
    page = (tmp_path / "deep/page.html").read_text("utf-8")
    assert "L0 MLP of sequence-sort on sort" in page
    assert 'src="http' not in page
    assert run(*task, "--component", "L0 MLP", "--out", "deep/page.html").code == 2
    ended = run(*task, "--component", "L9 MLP", "--out", "other.html")
    assert (ended.code, "no component 'L9 MLP'" in ended.err) == (2, True)
    assert not (tmp_path / "other.html").exists()
