"""What the page about circuits says holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.circuits.registry import EDGE_METHODS

PAGE = (Path(__file__).parents[2] / "docs/circuits.md").read_text("utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
    assert "->" in capsys.readouterr().out


def test_the_table_has_every_method() -> None:
    assert set(
        re.findall(r"^\| `([\w-]+)` \|", PAGE.split("## Edge scores")[1].split("\n## ")[0], re.MULTILINE)
    ) == set(EDGE_METHODS)
