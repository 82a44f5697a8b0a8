"""Reliability, flags, bounds and the bootstrap, against definitions and functions whose derivatives are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from assay.errors import DataError, OptionError
from assay.reliability import (
    bootstrap_mean,
    bound_estimate,
    flagged,
    floor_of,
    mean_reliability,
    reliability,
    sign_flip_interval,
    violation_rate,
)
from assay.report.screening import COVERAGE


def test_reliability_of_a_parabola_is_the_ratio_of_its_terms() -> None:
    first, quadratic = np.array([[2.0, -4.0], [1.0, 1.0]]), np.array([[1.0, 1.0], [0.0, -3.0]])
    np.testing.assert_allclose(reliability(first, quadratic, 0.1), [[0.5, 0.25], [0, 3]])
    np.testing.assert_allclose(mean_reliability(first, quadratic, 0.1), [2 / 6, 3 / 2])


def test_below_the_floor_nothing_is_said() -> None:
    first, quadratic = np.array([[0.05, 1.0], [0.0, 0.0], [0.05, 0.02]]), np.ones((3, 2))
    found = reliability(first, quadratic, 0.1)
    assert np.isnan(found).tolist() == [[True, False], [True, True], [True, True]]
    assert np.isnan(mean_reliability(first, quadratic, 0.1)).tolist() == [False, True, True]
    assert np.isnan(mean_reliability(np.zeros((1, 2)), np.zeros((1, 2)), 0.0)).all()


def test_examples_of_opposite_sign_do_not_cancel() -> None:
    assert mean_reliability(np.array([[1.0, -1.0]]), np.array([[0.5, -0.5]]), 0.01) == [0.5]


def test_the_floor() -> None:
    first = np.array([[-1.0, 3.0], [2.0, -10.0]])
    assert floor_of(first) == pytest.approx(0.025)
    assert floor_of(first, noise=0.5) == pytest.approx(0.525)
    assert floor_of(np.array([0, 0, 0, 4.0])) == pytest.approx(0.04)
    assert floor_of(np.array([0, 0, 0, 4.0]), noise=0.5) == 0.5
    assert floor_of(np.zeros(3)) == 1


def test_flags_are_exact_without_noise() -> None:
    first, quadratic = np.array([[1.0, 1.0], [1.0, 1.0]]), np.array([[0.6, 0.5], [0.5, 0.5]])
    assert flagged(first, quadratic, np.zeros((2, 2))).tolist() == [True, False]
    assert flagged(first, quadratic, np.zeros((2, 2)), threshold=0.55).tolist() == [False, False]


def test_noise_alone_raises_no_flags_however_many_examples() -> None:
    chance = np.random.default_rng(0)
    noise = chance.standard_normal((1000, 64))
    first = np.full_like(noise, 0.01)
    assert not flagged(first, noise, np.ones_like(noise)).any()
    assert flagged(first, noise + 5, np.ones_like(noise)).all()


@pytest.mark.parametrize("threshold", [-1, float("nan")])
def test_flags_refuse_a_threshold_that_means_nothing(threshold: float) -> None:
    with pytest.raises(OptionError, match="threshold"):
        flagged(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), threshold)


def _grid(points: int) -> np.ndarray:
    return np.arange(points) / points


@pytest.mark.parametrize("points", [2, 5, 10])
def test_the_bound_holds_where_the_second_derivative_is_monotone(points: int) -> None:
    # g = a^p + 3a: the error of the first order is 1; g'' = p (p - 1) a^(p - 2) is largest where no grid point is.
    for power in (2, 2.5, 3):
        bound = bound_estimate(power * (power - 1) * _grid(points) ** (power - 2), smooth=True)
        assert bound >= 1
    assert bound_estimate(np.full(points, 2.0), smooth=True) == 1, "a parabola's error is its quadratic term"
    # For g'' = 6a: max over the grid 6 (K-1)/K, third derivative 6, so the bound is sup |g''| / 2 = 3, exactly.
    assert bound_estimate(6 * _grid(points), smooth=True) == pytest.approx(3)


def test_random_smooth_curves_violate_the_bound_rarely_and_steps_have_none() -> None:
    chance = np.random.default_rng(0)
    frequency, phase = chance.uniform(0, 6, 2000), chance.uniform(0, 6, 2000)
    at = _grid(5)[:, None]
    second = -(frequency**2) * np.sin(frequency * at + phase)
    error = np.sin(frequency + phase) - np.sin(phase) - frequency * np.cos(phase)
    assert violation_rate(bound_estimate(second, smooth=True), error) == 0
    half = bound_estimate(second, smooth=True) / 2
    assert violation_rate(half, error) == pytest.approx((np.abs(error) > half).mean())
    assert 0 < violation_rate(half, error) < 1
    none = bound_estimate(second, smooth=False)
    assert none.shape == error.shape
    assert np.isnan(none).all()
    assert np.isnan(violation_rate(none, error))


def test_an_undefined_bound_is_left_out_of_the_rate() -> None:
    assert violation_rate([1.0, np.nan, 1.0, 1.0], [2.0, 9.0, -1.0, -1.05], noise=0.1) == pytest.approx(1 / 3)


def test_a_bound_needs_two_points() -> None:
    with pytest.raises(DataError, match="two points"):
        bound_estimate(np.ones((1, 3)), smooth=True)


def test_bootstrap_has_the_spread_of_the_mean_and_is_seeded() -> None:
    values = np.random.default_rng(0).normal(2, 1, (5000, 16))
    found = bootstrap_mean(values, seed=1, draws=500)
    np.testing.assert_allclose(found.stderr, values.std(1) / 4, rtol=0.2)
    covered = ((found.lower <= 2) & (found.upper >= 2)).mean()
    assert 0.90 < covered < 0.95, "percentile intervals of 16 prompts are a little too narrow"
    again, other = bootstrap_mean(values, seed=1, draws=500), bootstrap_mean(values, seed=2, draws=500)
    assert (found.stderr == again.stderr).all()
    assert (found.lower == again.lower).all()
    assert (found.stderr != other.stderr).any()
    part = bootstrap_mean(values[:7], seed=1, draws=500)
    np.testing.assert_allclose(part.stderr, found.stderr[:7], rtol=1e-12)


def test_one_prompt_has_no_spread() -> None:
    assert np.isnan(bootstrap_mean(np.ones((3, 1)))).all()
    with pytest.raises(DataError, match="per component and example"):
        bootstrap_mean(np.ones(3))


@pytest.mark.parametrize(("n", "said"), COVERAGE.items())
def test_what_is_said_of_few_prompts_is_what_normal_values_give(n: int, said: float) -> None:
    found = bootstrap_mean(np.random.default_rng(0).normal(size=(10_000, n)))
    covered = ((found.lower <= 0) & (found.upper >= 0)).mean()
    assert covered == pytest.approx(said, abs=0.01)  # 10 000 draws: a standard error of .004


def exclude_zero(values: np.ndarray) -> float:
    lower, upper = sign_flip_interval(values)
    return float(((lower > 0) | (upper < 0)).mean())


@pytest.mark.parametrize("n", [6, 8, 16, 40])
def test_sign_flips_decide_between_equals_once_in_twenty_at_most(n: int) -> None:
    """The percentile bootstrap does so in 14 % of comparisons of 6 texts."""
    draw, size = np.random.default_rng(n), (6000, n)
    noise = 3 * (0.05 * 0.95 / 6000) ** 0.5
    for name, values in {
        "normal": draw.standard_normal(size),
        "heavy tails": draw.standard_t(3, size),
        "differences of skewed values": draw.lognormal(size=size) - draw.lognormal(size=size),
    }.items():
        assert 0.02 < exclude_zero(values) < 0.05 + noise, name
    assert exclude_zero(draw.gamma(4, size=size) - 4) < 0.06 + noise, "skewed by 1 about their own mean"
    assert exclude_zero(draw.standard_normal(size) + 3) > 0.99


@pytest.mark.parametrize("n", [6, 9, 13])
def test_an_interval_holds_what_a_sign_flip_test_does_not_reject(n: int) -> None:
    values = np.random.default_rng(n).gamma(2, size=n)
    lower, upper = (float(end[0]) for end in sign_flip_interval(values[None]))

    def p_value(centre: float) -> float:
        signs = np.array(list(product((-1, 1), repeat=n)))
        means = signs @ (values - centre) / n
        return float((np.abs(means) >= abs((values - centre).mean()) - 1e-12).mean())

    step = 1e-6
    assert lower < values.mean() < upper
    assert p_value(lower - step) <= 0.05 < p_value(lower + step)
    assert p_value(upper + step) <= 0.05 < p_value(upper - step)


def test_too_few_values_have_no_interval() -> None:
    for n in (1, 5):
        assert np.isnan(sign_flip_interval(np.ones((3, n)))).all()
    assert np.isfinite(sign_flip_interval(np.ones((3, 5)), level=0.9)).all()
    same = sign_flip_interval(np.full((1, 6), 2.0))
    assert (same.lower, same.upper) == (2, 2)
    again, other = (sign_flip_interval(np.random.default_rng(0).normal(size=(2, 30)), seed=seed) for seed in (0, 1))
    np.testing.assert_allclose(again.lower, other.lower, atol=0.05)
    assert (again.lower != other.lower).any()
    with pytest.raises(DataError, match="quantities by values"):
        sign_flip_interval(np.ones(3))
