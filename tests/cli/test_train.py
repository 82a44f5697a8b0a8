"""``assay train``."""

from __future__ import annotations

from cli.conftest import Run


def test_train_tells_and_goes_on(run: Run) -> None:
    first = run("train", "modular-addition", "--steps", "1", "--out", "made")
    assert first.code == 0, first.err
    assert "seed 0  step 0 of at most 1  held out 0.0" in first.out
    assert "seed 0  step 1 of at most 1  loss 4." in first.out
    assert "0 of 1 seeds answer 90% of 1000 held-out examples" in first.out
    again = run("train", "modular-addition", "--steps", "1", "--seeds", "2", "--out", "made")
    assert again.code == 0, again.err
    assert "seed 0  step" not in again.out
    assert "seed 1  step 1" in again.out
    scored = run("score", "made/seed-1/final", "--task", "modular-addition", "--n", "4", "--force")
    assert scored.code == 0, scored.err


def test_bad_input_is_refused(run: Run) -> None:
    for arguments, said in (
        (("addition",), "does not know the task 'addition'"),
        (("sort", "--seeds", "0"), "--seeds must be at least 1"),
        (("sort", "--jobs", "0"), "--jobs must be at least 1"),
        (("sort", "--positions", "all"), "no positions 'all'"),
        (("reverse", "--share", "0.5"), "--share belongs to modular-addition"),
    ):
        ended = run("train", *arguments)
        assert ended.code == 2
        assert said in ended.err
    ended = run("score", "sequence-sort", "--task", "modular-addition")
    assert ended.code == 2
    assert "models of assay train modular-addition" in ended.err
