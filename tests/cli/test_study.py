"""``assay study``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from assay.studies.folder import write_json
from assay.studies.patching_errors import DEFAULT
from assay.studies.patching_errors.measuring import STUDY
from cli.conftest import Run


def test_a_folder_without_a_study_is_refused(run: Run, tmp_path: Path) -> None:
    ended = run("study", "patching-errors", "--out", str(tmp_path / "none"), "--page-only")
    assert ended.code == 2
    assert "holds no study of patching errors" in ended.err
    assert not (tmp_path / "none").exists()


def test_a_study_of_which_nothing_is_finished_has_no_page(run: Run, tmp_path: Path) -> None:
    write_json(tmp_path / "begun" / STUDY, asdict(DEFAULT))
    ended = run("study", "patching-errors", "--out", str(tmp_path / "begun"), "--page-only")
    assert ended.code == 2
    assert "is measured to its end" in ended.err
    assert [path.name for path in (tmp_path / "begun").iterdir()] == [STUDY]


def test_a_study_of_other_sizes_is_refused_before_a_model_is_loaded(run: Run, tmp_path: Path) -> None:
    write_json(tmp_path / "begun" / STUDY, asdict(DEFAULT))
    ended = run("study", "patching-errors", "--full", "--out", str(tmp_path / "begun"))
    assert ended.code == 2
    assert "pairs: 4 there, 8 now" in ended.err


def test_a_folder_without_a_study_of_tokens_is_refused(run: Run, tmp_path: Path) -> None:
    ended = run("study", "gim-tokens", "--out", str(tmp_path / "none"), "--page-only")
    assert ended.code == 2
    assert "holds no study of token attributions" in ended.err
    assert not (tmp_path / "none").exists()


def test_data_sets_of_a_study_are_checked_before_a_model_is_loaded(run: Run, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    (tmp_path / "films.csv").write_text("text,label\nA joy,good\n")
    for given, message in (
        (["films"], "--data is like boolq=FILE"),
        (["movies=a.csv", "movies=b.csv"], "There is no file a.csv"),
        ([f"movies={tmp_path / 'films.csv'}"], "row 1: the label 'good' is not one of"),
        ([f"film={tmp_path / 'films.csv'}"], "no data set 'film'"),
    ):
        ended = run("study", "gim-tokens", "--out", out, *(part for each in given for part in ("--data", each)))
        assert ended.code == 2
        assert message in ended.err
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_study_of_heroes_is_refused(run: Run, tmp_path: Path) -> None:
    ended = run("study", "heroes", "--out", str(tmp_path / "none"), "--page-only")
    assert ended.code == 2
    assert "holds no study of heroes and bloats" in ended.err
    ended = run("study", "heroes", "--seeds", "0")
    assert ended.code == 2
    assert "--seeds must be at least 1" in ended.err
    assert not list(tmp_path.iterdir())
