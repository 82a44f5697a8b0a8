"""The command line, called as a user would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from assay.cli import main


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run ``assay ...`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("ASSAY_TRACEBACK", raising=False)

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["assay", *arguments])
        try:
            main()
            code = 0
        except SystemExit as ending:
            code = int(ending.code or 0)
        return Ended(code, *capsys.readouterr())

    return call
