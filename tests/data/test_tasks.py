"""The tasks make what they say, for each model's own tokenizer."""

from __future__ import annotations

import pytest

import assay
from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.data.tasks import make_pairs
from assay.errors import DataError, OptionError


@pytest.mark.xdist_group("real models")
@pytest.mark.parametrize("corruption", ["abc", "swap", "random-token"])
def test_ioi_differs_in_one_token(corruption: str, smollm2: assay.Model) -> None:
    pairs = assay.tasks.ioi(smollm2, n=32, corruption=corruption)
    assert pairs.pairs == assay.tasks.ioi(smollm2, n=32, corruption=corruption).pairs
    assert pairs.pairs != assay.tasks.ioi(smollm2, n=32, seed=1, corruption=corruption).pairs
    assert [pair.group for pair in pairs[:4]] == ["ABBA", "BABA", "ABBA", "BABA"]
    for pair, row in zip(pairs, encode(smollm2, pairs, METRICS["logit-diff"]), strict=True):
        assert sum(a != b for a, b in zip(row.clean, row.corrupted, strict=True)) == 1
        io, subject = pair.answer, pair.wrong_answer
        assert pair.clean.count(io) == 1
        assert pair.clean.count(subject) == 2
        assert pair.corrupted.count(subject) == 1
        assert pair.corrupted.count(io) == (2 if corruption == "swap" else 1)
        assert (pair.clean.index(io) < pair.clean.index(subject)) == (pair.group == "ABBA")


def test_sequences_have_the_right_answers(sorter: assay.Model) -> None:
    for kind, transform in (("sort", sorted), ("reverse", lambda numbers: numbers[::-1])):
        for pair in make_pairs(sorter, kind, n=20, length=6):
            for prompt, answer in ((pair.clean, pair.answer), (pair.corrupted, pair.wrong_answer)):
                start, *numbers, sep = prompt.split()
                assert (start, sep, len(numbers)) == ("START", "SEP", 6)
                assert answer.split() == [*map(str, transform(list(map(int, numbers)))), "END"]


@pytest.mark.parametrize("kind", ["sort", "reverse"])
def test_bundled_models_can_do_their_tasks(kind: str) -> None:
    model = assay.load(f"sequence-{kind}")
    for length in range(3, 8):
        pairs = make_pairs(model, kind, n=200, seed=length, length=length)
        scores = assay.random_scores(model, pairs)
        assert scores.baseline.clean_right.mean() >= 0.95
        assert scores.baseline.corrupted_right.mean() < 0.05


def test_unsuitable_tasks_and_options_are_refused(sorter: assay.Model) -> None:
    with pytest.raises(DataError, match="knows 0 of"):
        assay.tasks.ioi(sorter)
    with pytest.raises(OptionError, match="no corruption 'abd'"):
        assay.tasks.ioi(sorter, corruption="abd")
    with pytest.raises(OptionError, match="length from 1 to 11"):
        assay.tasks.sort(sorter, length=12)
    with pytest.raises(OptionError, match="no option --corruption"):
        make_pairs(sorter, "sort", corruption="abc")
    with pytest.raises(OptionError, match="at least 1"):
        make_pairs(sorter, "sort", n=0)
    with pytest.raises(OptionError, match="There is no task 'sorty'"):
        make_pairs(sorter, "sorty")
