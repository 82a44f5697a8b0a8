"""``assay study``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from assay.studies.patching_errors import DEFAULT
from assay.studies.patching_errors.measuring import STUDY, write_json
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
