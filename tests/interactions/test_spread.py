"""Intervals over prompts against loops that lay out the drawn rows again."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from assay.interactions import spread


def drawn_rows(examples: np.ndarray, n: int) -> list[np.ndarray]:
    """Of each draw, the rows of its prompts, those drawn twice twice."""
    weights = np.random.default_rng(spread.SEED).multinomial(n, np.full(n, 1 / n), size=spread.DRAWS)
    return [
        np.concatenate([np.flatnonzero(examples == i) for i in np.repeat(np.arange(n), counts)]) for counts in weights
    ]


def test_intervals_equal_loops_over_draws() -> None:
    generator = np.random.default_rng(1)
    examples = np.sort(generator.integers(0, 9, 40))
    below = 1 + generator.random(40)
    above, tied = 0.4 * below + 0.3 * generator.standard_normal(40), np.round(below, 1)
    draws = drawn_rows(examples, 12)
    ratios = [above[rows].sum() / below[rows].sum() for rows in draws]
    ranks = [spearmanr(above[rows], tied[rows]).statistic for rows in draws]
    value, interval = spread.ratio(above, below, examples, 12)
    assert value == pytest.approx(above.sum() / below.sum())
    for found, values in ((interval, ratios), (spread.spearman_interval(above, tied, examples, 12), ranks)):
        assert found is not None
        np.testing.assert_allclose(found, np.quantile(values, [0.025, 0.975]), rtol=1e-12)
        assert found[0] < found[1]
    assert spread.spearman(above, tied) == pytest.approx(spearmanr(above, tied).statistic, abs=1e-12)


def test_rows_of_a_prompt_are_no_independent_draws() -> None:
    """The same rows, each ten times over in its prompt: as sure as before, not more."""
    generator = np.random.default_rng(2)
    below, examples = 1 + generator.random(8), np.arange(8)
    above = generator.random(8)
    _, once = spread.ratio(above, below, examples, 8)
    _, ten = spread.ratio(np.repeat(above, 10), np.repeat(below, 10), np.repeat(examples, 10), 8)
    np.testing.assert_allclose(once, ten, rtol=1e-12)


def test_the_interval_covers_as_often_as_it_says() -> None:
    """Prompts of unlike ratios, many rows each: about 95 of 100 intervals hold the truth, less what n = 30 takes."""
    generator, held = np.random.default_rng(3), 0
    examples = np.repeat(np.arange(30), 5)
    for _ in range(200):
        shares = 0.3 + 0.2 * generator.standard_normal(30)
        below = 1 + generator.random(150)
        _, (lower, upper) = spread.ratio(shares[examples] * below, below, examples, 30)
        held += lower <= 0.3 <= upper
    assert 0.88 <= held / 200 <= 0.98


def test_nothing_is_said_of_few_prompts_or_of_a_sum_that_cancels() -> None:
    ones, two = np.ones(20), np.repeat([0, 1], 10)
    assert spread.ratio(ones, 2 * ones, two, 40) == (0.5, None)
    assert spread.spearman_interval(np.arange(20.0), np.arange(20.0), two, 40) is None
    assert spread.spearman(np.arange(4.0), np.arange(4.0)) is None
    assert spread.spearman(np.arange(9.0), np.ones(9)) is None
    pair = np.arange(2)
    assert spread.ratio(np.ones(2), np.array([1.0, -0.95]), pair, 2) == (None, None)
    assert spread.ratio(np.ones(2), np.zeros(2), pair, 2) == (None, None)
    assert spread.ratio(np.ones(2), np.array([1.0, -0.5]), pair, 2) == (4.0, None)
    unsure = np.array([3.0, -2.0, 2.0, -2.0, 1.0, 0.5])  # the sum is more than a tenth, and may be of either sign
    assert spread.ratio(np.ones(6), unsure, np.zeros(6, int), 6) == (pytest.approx(2.4), None)
    assert spread.ratio(np.ones(6), unsure, np.arange(6), 6) == (None, None)


@pytest.mark.filterwarnings("error")
def test_draws_without_rows_say_nothing_and_do_not_complain() -> None:
    """Of 40 prompts 5 have rows, so some draws have none."""
    generator, examples = np.random.default_rng(4), np.arange(5)
    found = spread.spearman_interval(generator.random(5), generator.random(5), examples, 40)
    assert found is not None
    assert np.isfinite(found).all()
