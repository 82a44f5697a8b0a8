"""`assay report`: pages made anew from run folders alone, and several runs side by side."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from typer.testing import CliRunner

import assay
from assay.cli.app import app
from assay.errors import OptionError, StoreError
from assay.report.side_by_side import rank_agreement, sides_of, tables

COMMANDS = {
    "score": ["score", "sequence-sort", "--task", "sort", "--n", "4"],
    "estimates": ["score", "sequence-sort", "--task", "sort", "--n", "4", "--method", "attribution-patching"],
    "screen": ["screen", "sequence-sort", "--task", "sort", "--n", "4", "--sites", "neurons[0]"],
    "compare": ["compare", "sequence-sort", "--task", "sort", "--n", "4", "--methods", "attribution-patching"],
    "response": ["response", "sequence-sort", "--task", "sort", "--n", "4", "--component", "L1H0"],
    "self-repair": ["self-repair", "sequence-sort", "--task", "sort", "--n", "4"],
    "audit": ["audit", "sequence-sort", "--task", "sort", "--n", "40"],
    "interactions": ["interactions", "sequence-sort", "--task", "sort", "--n", "40", "--group", "layer:1"],
    "circuit": ["circuit", "sequence-sort", "--task", "sort", "--n", "4"],
    "explain": ["explain", "sequence-sort", "START 7 3 SEP", "--baseline", "mean", "--methods", "leave-one-out"],
}


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, command in COMMANDS.items():
        invoke(*command, "--out", str(folder / name))
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_is_made_anew_to_the_byte(runs: Path, name: str, tmp_path: Path) -> None:
    invoke("report", str(runs / name), "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_bytes() == (runs / name / "report.html").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_page_in_the_folder_is_replaced(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "score", tmp_path / "run")
    (tmp_path / "run" / "report.html").write_text("spoiled")
    invoke("report", str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.html").read_bytes() == (runs / "score" / "report.html").read_bytes()


def test_two_methods_side_by_side(runs: Path, tmp_path: Path) -> None:
    said = invoke("report", str(runs / "score"), str(runs / "estimates"), "--out", str(tmp_path / "page.html"))
    one, other = (assay.Scores.load(runs / name) for name in ("score", "estimates"))
    rho = spearmanr(one.importance, other.importance).statistic
    assert f"{rho:.3g}" in said
    page = (tmp_path / "page.html").read_text("utf-8")
    largest = np.abs(one.importance - other.importance).argmax()
    change = page[page.index("What changed most") :]
    assert re.search(r'<td class="text">([^<]+)</td>', change)[1] == one.components[largest].name
    assert "attribution-patching" in page


def test_other_prompts_and_metrics_are_said(runs: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "other")
    invoke(*COMMANDS["score"][:-1], "5", "--metric", "prob-diff", "--seed", "1", "--out", folder)
    said = " ".join(invoke("report", str(runs / "score"), folder, "--out", str(tmp_path / "page.html")).split())
    assert "different metrics" in said
    assert "prompts are not the same" in said


def test_models_of_different_shape_are_compared_by_depth(runs: Path) -> None:
    one = assay.Scores.load(runs / "score")
    other = assay.Scores.load(runs / "estimates")
    other.provenance["model"]["layers"] = 8
    sides = sides_of([("a", one), ("b", other)])
    titles = [table.title for table in tables(sides) if table.lines]
    assert "What each says" in titles
    assert not any("changed most" in title for title in titles)


def test_the_interval_of_agreement_holds_rho(runs: Path) -> None:
    sides = sides_of([(name, assay.Scores.load(runs / name)) for name in ("score", "estimates")])
    joined = pd.DataFrame({name: side.frame().importance for name, side in zip("ab", sides, strict=True)})
    rho, low, high = rank_agreement(joined)
    assert low <= rho <= high <= 1
    rho, low, high = rank_agreement(joined.assign(b=-joined.a))
    assert rho == pytest.approx(-1)
    assert low == pytest.approx(-1)


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        (("score", "audit"), OptionError, "holds no scores"),
        (("score", "screen"), OptionError, "nothing to compare"),
        (("nothing",), StoreError, "nothing"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    runs: Path, names: tuple[str, ...], error: type[Exception], said: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(error, match=said):
        CliRunner().invoke(app, ["report", *(str(runs / n) for n in names), "--out", str(page)], catch_exceptions=False)
    assert not page.exists()


def test_a_page_that_is_lost_and_cannot_be_made_is_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "compare", tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    with pytest.raises(StoreError, match="Run the command again"):
        CliRunner().invoke(app, ["report", str(tmp_path / "run")], catch_exceptions=False)


def test_nothing_of_a_prompt_acts(tmp_path: Path) -> None:
    pairs = [{"clean": "START 1 2 SEP", "corrupted": "START 3 4 SEP", "answer": " 1", "wrong_answer": " 3"}]
    (tmp_path / "<img src=x onerror=alert(1)>.jsonl").write_text("\n".join(map(json.dumps, pairs * 3)))
    file = str(tmp_path / "<img src=x onerror=alert(1)>.jsonl")
    for number, method in enumerate(("activation-patching", "attribution-patching")):
        invoke(
            "score",
            "sequence-sort",
            "--task",
            file,
            "--method",
            method,
            "--force",
            "--out",
            str(tmp_path / f"<b>{number}"),
        )
    invoke("report", str(tmp_path / "<b>0"), str(tmp_path / "<b>1"), "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<img" not in page
    assert "<b>0" not in page.replace("plotly", "")[: page.index("<div")]
