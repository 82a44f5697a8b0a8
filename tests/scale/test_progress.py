"""A line now and then where standard error is no terminal, and nothing unless asked."""

from __future__ import annotations

import re

import pytest

import assay
from assay.methods import progress
from conftest import random_pairs, wrapped


@pytest.mark.parametrize("show", [True, False])
def test_progress_without_a_terminal(
    show: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE", 0.0)
    monkeypatch.setattr(progress, "LATER_LINES", 0.0)
    assay.activation_patching(wrapped("llama"), random_pairs(4), sites="heads", force=True, progress=show)
    lines = capsys.readouterr().err.splitlines()
    assert bool(lines) == show
    counts = [
        re.fullmatch(r"activation-patching: (\d+) of 48 \(component, prompt\) pairs, \d\d:\d\d left", line)
        for line in lines
    ]
    assert all(counts)
    assert [int(match[1]) for match in counts] == sorted({int(match[1]) for match in counts})
    if show:
        assert lines[-1] == "activation-patching: 48 of 48 (component, prompt) pairs, 00:00 left"


def test_what_is_left_is_told_by_the_rate_since_the_line_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    lines = progress._Lines("method", 1000, 100, "(component, prompt) pairs")
    for seconds, parts in ((10.0, 10), (20.0, 20), (39.0, -20), (40.0, 80)):
        now = seconds
        lines.advance(parts)
    counted = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    # 10 in 10 s at first, by one process; then 80 in 30 s by more of them, what a dead one lost taken off.
    pairs = "(component, prompt) pairs"
    assert counted == [f"110 of 1000 {pairs}, 14:50 left", f"190 of 1000 {pairs}, 05:03 left"]


def test_progress_of_several_sweeps_ends_at_its_total(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE", 0.0)
    monkeypatch.setattr(progress, "LATER_LINES", 0.0)
    for method in ("two-point", "ms-hvp", "integrated-gradients", "integrated-hessians"):
        assay.measure(method, wrapped("llama"), random_pairs(2), sites="heads", force=True, progress=True)
        *_, last = re.findall(r"(\d+) of (\d+) ", capsys.readouterr().err)
        assert last[0] == last[1], method
