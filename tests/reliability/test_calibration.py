"""The guarantees of calibrated intervals: counted over every sample where that is possible, else over many."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from assay.errors import OptionError
from assay.reliability.calibration import (
    Calibration,
    outside_bound,
    outside_distribution,
    rank,
    sample_size,
    smallest_sample,
)


def calibrated(scores: np.ndarray, sample: np.ndarray, level: float, kind: str = "heads") -> Calibration:
    return Calibration.of(kind, level, np.arange(len(scores)), sample, False, scores[sample])


def outside(scores: np.ndarray, calibration: Calibration) -> int:
    others = np.setdiff1d(calibration.members, calibration.sample)
    return int((scores[others] > calibration.quantile).sum())


def test_smallest_samples_and_ranks() -> None:
    assert [smallest_sample(level) for level in (0.5, 0.8, 0.9, 0.95, 0.99)] == [1, 4, 9, 19, 99]
    for level in (0.5, 0.8, 0.9, 0.95, 0.99, 0.7, 0.85):
        least = smallest_sample(level)
        assert rank(least, level) == least
        with pytest.raises(OptionError, match=f"need {least} calibration runs"):
            rank(least - 1, level)
    # In binary, 40 x 0.95, 20 x 0.9 and the like may come out above the whole number that they are.
    assert [rank(39, 0.95), rank(19, 0.9), rank(99, 0.93), rank(27, 0.95)] == [38, 18, 93, 27]


def test_default_samples() -> None:
    assert [sample_size(members, 0.95) for members in (72, 270, 1536, 46080)] == [19, 27, 60, 60]
    assert [sample_size(members, 0.99) for members in (270, 46080)] == [99, 99]


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, float("nan")])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(OptionError, match="--level"):
        smallest_sample(level)


@pytest.mark.parametrize(("members", "sample", "level"), [(11, 4, 0.8), (12, 5, 0.7), (9, 6, 0.5), (10, 9, 0.9)])
def test_every_possible_sample(members: int, sample: int, level: float) -> None:
    """Distribution of the number outside, coverage and bound, over all samples there are."""
    chance = np.random.default_rng(0)
    untied = chance.permutation(members).astype(float)
    tied = chance.integers(0, 3, members).astype(float)
    samples = [np.array(each) for each in combinations(range(members), sample)]
    for scores in (untied, tied, np.zeros(members)):
        found = [calibrated(scores, each, level) for each in samples]
        counts = np.array([outside(scores, each) for each in found])
        expected = outside_distribution(members, sample, level)
        shares = np.bincount(counts, minlength=len(expected)) / len(samples)
        if scores is untied:
            np.testing.assert_allclose(shares, expected, atol=1e-12)
        else:
            assert (np.cumsum(shares) >= np.cumsum(expected) - 1e-12).all(), "ties only lower the count"
        assert counts.mean() <= found[0].expected_outside + 1e-12
        bound = outside_bound(found[:1])
        assert (counts <= bound).mean() >= 0.95
        if scores is untied:
            assert bound == 0 or (counts <= bound - 1).mean() < 0.95, "the bound is no larger than it need be"


def test_the_distribution_adds_to_one_and_has_the_mean_that_ranks_give() -> None:
    for members, sample, level in [(270, 27, 0.95), (72, 19, 0.95), (1536, 60, 0.9), (46080, 60, 0.95), (19, 19, 0.95)]:
        chances = outside_distribution(members, sample, level)
        assert len(chances) == members - sample + 1
        assert chances.sum() == pytest.approx(1, abs=1e-8)
        mean = (members - sample) * (1 - rank(sample, level) / (sample + 1))
        assert chances @ np.arange(len(chances)) == pytest.approx(mean, rel=1e-6)


def test_kinds_that_are_drawn_apart_add_up() -> None:
    """Two kinds: the bound on the sum is exact for untied scores, and less than the sum of the bounds."""
    chance = np.random.default_rng(1)
    first, second = chance.permutation(60).astype(float), chance.permutation(100).astype(float)
    counts = []
    for _ in range(4000):
        pair = [
            calibrated(first, chance.choice(60, 19, replace=False), 0.9, "heads"),
            calibrated(second, chance.choice(100, 29, replace=False), 0.9, "mlps"),
        ]
        counts.append(outside(first, pair[0]) + outside(second, pair[1]))
    bound = outside_bound(pair)
    assert bound < outside_bound(pair[:1]) + outside_bound(pair[1:])
    assert (np.array(counts) <= bound).mean() == pytest.approx(0.955, abs=0.015)
    assert outside_bound([]) == 0


def test_widening_takes_in_all_but_a_share_and_never_narrows() -> None:
    calibration = calibrated(np.arange(40.0), np.arange(1, 40, 2), 0.9)
    assert calibration.quantile == 37
    assert calibration.widen(np.array([])) is calibration
    assert calibration.widen(np.r_[np.zeros(9), 50.0]) is calibration, "one of ten is what the level allows"
    wider = calibration.widen(np.r_[np.zeros(8), 50.0])
    assert (wider.quantile, wider.widened) == (37, 50)
    chance = np.random.default_rng(2)
    for _ in range(300):
        later = chance.exponential(30, chance.integers(1, 60))
        wider = calibration.widen(later)
        assert wider.widened >= calibration.widened
        assert (later > wider.widened).sum() <= 0.1 * len(later) + 1e-9
        assert wider.widen(later) is wider
