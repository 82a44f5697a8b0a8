"""``assay screen`` and ``assay response``, from arguments to exit code."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pytest

import assay
from assay.report.response import verdict
from assay.report.screening import legend, screening_figures
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
    said = " ".join(ended.out.split())
    page = " ".join(Path("folder/report.html").read_text("utf-8").split())
    columns = ["importance", "interval", "R", "verdict", "other prompts (95 %)"]
    assert [column for column, _ in legend(scores)] == columns
    for _, _, figure in screening_figures(scores):
        for trace in figure.data:
            if trace.type in ("bar", "scatter") and trace.error_x.array is not None:
                assert isinstance(trace.error_x.color, str), "plotly draws no error bars of several colours"
    for column, text in legend(scores):
        assert f"{column}: {text}" in said
        assert f"<b>{column}</b></dt><dd>{text}." in page
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
    assert "interval:" not in ended.out
    assert "R:" not in ended.out
    assert "n/a" not in ended.out
    assert "3 prompts are few, and with few it covers less than 95 %" in " ".join(ended.out.split())
    ended = run(*NEURONS, "--budget", "22")
    assert "Stopped by the budget of 22 forward-equivalents" in ended.out
    assert "Open: L" in ended.out
    assert "of a budget of 22" in ended.out
    said = " ".join(ended.out.split())
    assert "no intervals" in said
    assert "the others' intervals" not in said
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


RESPONSE = ("response", "sequence-sort", "--task", "sort", "--n", "2", "--points", "5")


def test_a_response_is_printed_drawn_kept_and_shown(run: Run, tmp_path: Path) -> None:
    command = (*RESPONSE, "--component", "L0 MLP")
    ended = run(*command)
    assert ended.code == 0, ended.err
    said = " ".join(ended.out.split())
    curve = assay.response_curve(model := assay.load("sequence-sort"), assay.tasks.sort(model, n=2), "L0 MLP", points=5)
    assert "Metric log-prob-diff" in said
    assert "log-prob-diff (nats)" in said
    assert f"{curve.baseline.difference:+.4g}" in said
    assert "greedy answer right" in said
    assert f"exact {curve.effect:+.4g}" in said
    assert f"Cost: {curve.cost['forward_equivalents']:.1f} forward-equivalents" in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("response-sort-")
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "run.json"]
    page = (folder / "report.html").read_text("utf-8")
    assert "L0 MLP of sequence-sort on sort" in page
    assert f"{curve.effect:+.4g}" in page
    assert escape(verdict(curve)) in page
    assert verdict(curve) in said
    assert "assay response sequence-sort --task sort --component" in page
    assert 'src="http' not in page
    again, shown = run(*command), str(folder.relative_to(tmp_path))
    assert "finished already" in again.out
    where = ended.out.index("\nHow does log-prob-diff respond to L0 MLP")
    assert where < ended.out.index("The whole patch of L0 MLP") < ended.out.index("Metric log-prob-diff")
    assert ended.out[where:] == again.out[again.out.index("\nHow does") :] == run("show", shown).out
    kept = json.loads(run("show", shown, "--json").out)
    assert kept == json.loads(run(*command, "--json").out)
    assert kept["values"] == curve.values.tolist()
    assert kept["estimates"] == curve.estimates()
    assert kept["configuration"]["method"] == "response"
    other = run(*RESPONSE, "--component", "L1 MLP", "--out", str(folder))
    assert (other.code, "component: L0 MLP there, L1 MLP now" in other.err) == (2, True)


def test_what_a_response_costs_is_what_was_run() -> None:
    model = assay.load("sequence-sort")
    pairs = assay.tasks.sort(model, n=2)
    exact = assay.activation_patching(model, pairs, sites="mlps[0]")
    few, many = (assay.response_curve(model, pairs, "L0 MLP", points=points, segments=1) for points in (2, 22))
    each = (many.cost["forward_equivalents"] - few.cost["forward_equivalents"]) / 20
    assert 0 < each <= exact.cost["forward_equivalents"]
    assert many.cost["interventions"] - few.cost["interventions"] == 20 * 2 * 2, (
        "an answer and a wrong one for each pair"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--component", "L9 MLP"), "no component 'L9 MLP'"),
        (("--component", "L0 MLP", "--points", "1"), "2 points"),
        (("--component", "L0 MLP", "--metric", "magic"), "magic"),
        (("--component", "L0 MLP", "--direction", "up"), "no direction"),
        (("--component", "L0 MLP", "--dtype", "float12"), "no dtype"),
    ],
)
def test_a_response_that_cannot_be_drawn_leaves_nothing(
    arguments: tuple[str, ...], complaint: str, run: Run, tmp_path: Path
) -> None:
    ended = run(*RESPONSE, *arguments)
    assert ended.code == 2
    assert complaint in ended.err
    assert not list(tmp_path.iterdir())
