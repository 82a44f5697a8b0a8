"""What the documentation says holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.engine.paths import LOGITS, RECEIVERS
from assay.methods.registry import METHODS

ROOT = Path(__file__).parent.parent


def blocks(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text("utf-8"), re.DOTALL)


def test_the_metric_of_ones_own_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("docs/metrics.md")
    exec(block, {})
    assert "L0 MLP" in capsys.readouterr().out


def test_the_example_of_self_repair_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("docs/self-repair.md")
    exec(block, {})
    assert "[1" in capsys.readouterr().out


def test_the_example_of_gradient_against_cause_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("docs/gradient-against-cause.md")
    exec(block, {})
    assert "joint_over_sum_of_singles" in capsys.readouterr().out


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks("README.md") if "scores.save" in block]
    exec(block, {})
    assert (tmp_path / "runs/my-run/run.json").is_file()


def test_the_table_of_sites_is_that_of_the_methods() -> None:
    section = (ROOT / "docs/methods/index.md").read_text("utf-8").split("## What they take")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE))
    limited = {name: method for name, method in METHODS.items() if method.kinds or not method.at_positions}
    assert set(rows) == set(limited)
    for name, method in limited.items():
        kinds, positions = rows[name].split(" | ")
        senders, _, receivers = kinds.partition(";")
        assert set(re.findall("`([\\w-]+)`", senders)) == set(method.kinds)
        assert positions.startswith("yes") == method.at_positions
        if receivers:
            assert set(re.findall("`([\\w-]+)`", receivers)) == {*RECEIVERS, LOGITS}
