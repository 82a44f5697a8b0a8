"""What CPR and CMD must be for circuits whose faithfulness is known."""

from __future__ import annotations

import numpy as np
import pytest

from assay.circuits.faithfulness import SIZES, CircuitValues, Curve, area
from assay.circuits.selection import number_of, numbers_of
from assay.errors import DataError, OptionError


def curve(faithfulness: list[float], n: int = 20, noise: float = 0.0) -> Curve:
    """Circuits of this mean faithfulness, on examples whose full and empty values differ."""
    draw = np.random.default_rng(0)
    empty, full = draw.normal(-1, 0.2, n), draw.normal(2, 0.2, n)
    values = empty[:, None] + np.array(faithfulness) * (full - empty)[:, None]
    return Curve(SIZES, CircuitValues(values + noise * draw.standard_normal(values.shape), full, empty))


def test_a_perfect_circuit_scores_999() -> None:
    perfect = curve([1.0] * 10)
    np.testing.assert_allclose(perfect.cpr, 0.999)
    np.testing.assert_allclose(perfect.cmd, 0, atol=1e-12)


def test_where_only_the_full_circuit_works_the_scores_are_those_of_random() -> None:
    nothing = curve([0.0] * 9 + [1.0])
    assert nothing.cpr.value == pytest.approx(0.25)
    assert nothing.cmd.value == pytest.approx(0.749)  # .75 less the .001 that the grid leaves out


def test_with_faithfulness_up_to_one_the_two_add_up() -> None:
    some = curve([*sorted(np.random.default_rng(1).random(9)), 1.0])
    assert some.cpr.value + some.cmd.value == pytest.approx(0.999)


def test_nothing_is_clipped() -> None:
    wild = curve([-1.0, 3.0] + [2.0] * 7 + [1.0])
    assert wild.circuits.faithfulness()[:3] == pytest.approx([-1, 3, 2])
    assert wild.cpr.value > 1
    assert wild.cpr.value + wild.cmd.value > 1


def test_means_come_before_the_ratio() -> None:
    values = CircuitValues(np.array([[1.0], [9.0]]), np.array([2.0, 10.0]), np.array([0.0, 7.9]))
    assert values.faithfulness()[0] == pytest.approx((5 - 3.95) / (6 - 3.95))


def test_intervals_cover_the_value_and_shrink_with_prompts() -> None:
    few, many = (curve([0.5] * 9 + [1.0], n, noise=0.3) for n in (10, 1000))
    for found in (few.cpr, many.cpr, few.cmd, many.cmd, *few.faithfulness):
        assert found.lower <= found.value <= found.upper
    assert few.cpr.upper - few.cpr.lower > 5 * (many.cpr.upper - many.cpr.lower) > 0
    assert np.isnan(curve([0.5] * 10, n=1).cpr.lower)


def test_full_and_empty_within_noise_are_refused() -> None:
    draw = np.random.default_rng(0)
    full, empty = draw.standard_normal(30), draw.standard_normal(30)
    values = CircuitValues(np.zeros((30, 10)), full, empty)
    with pytest.raises(DataError, match="within noise"):
        values.faithfulness()
    with pytest.raises(DataError, match="within noise"):
        Curve(SIZES, values)
    same = CircuitValues(np.zeros((1, 10)), np.ones(1), np.ones(1) + 1e-9)
    with pytest.raises(DataError, match="within noise"):
        same.faithfulness()


def test_what_is_not_finite_is_no_noise() -> None:
    values = CircuitValues(np.full((4, 1), np.nan), np.arange(4.0) + 9, np.arange(4.0))
    with pytest.raises(DataError, match="metric of the circuits is not finite"):
        values.faithfulness()
    values = CircuitValues(np.zeros((4, 1)), np.full(4, np.inf), np.arange(4.0))
    with pytest.raises(DataError, match="metric of the model is not finite"):
        values.require_difference()


def test_a_signed_ranking_needs_a_full_circuit_above_the_empty_one() -> None:
    falling = CircuitValues(np.ones((4, 1)), np.arange(4.0), np.arange(4.0) + 9)
    with pytest.raises(DataError, match="is below that of the empty circuit"):
        falling.require_rise()
    assert np.isfinite(falling.faithfulness()).all()


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize(
    "truth", [[1.0] * 10, [0.97, 0.98, 0.99] + [1.0] * 7, [0, 0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97, 1]]
)
def test_cmds_interval_covers_the_truth(truth: list[float], noise: float) -> None:
    """Percentiles alone never cover a CMD of 0: |1 - f| of a noisy f is above it in every resample."""
    draw, n, runs = np.random.default_rng(0), 30, 150
    expected = area(SIZES, np.abs(1 - np.array(truth))).item()
    covered = 0
    for _ in range(runs):
        rise = 3 + draw.standard_normal(n)
        own = noise * (draw.standard_normal((n, 1)) + draw.standard_normal((n, 10))) / 2
        own[:, -1] = 0
        cmd = Curve(SIZES, CircuitValues(rise[:, None] * truth + own, rise, np.zeros(n))).cmd
        assert cmd.lower <= cmd.value <= cmd.upper
        covered += cmd.lower <= expected <= cmd.upper
    assert covered >= 0.9 * runs


def test_few_prompts_have_a_caveat() -> None:
    assert curve([1.0] * 10, n=10).caveat is None
    assert "fewer than 10" in (curve([1.0] * 10, n=9).caveat or "")
    assert np.isnan(curve([0.5] * 10, n=1).cmd.lower)


def test_shares_are_counted_alike() -> None:
    assert number_of(0.29, 100) == 29  # in floats .29 x 100 is below 29
    assert [number_of(size, 32491) for size in SIZES] == [32, 64, 162, 324, 649, 1624, 3249, 6498, 16245, 32491]
    assert number_of(0.001, 5) == 1
    for sizes, message in (((0.5, 2), "not 2"), ((0, 1), "not 0"), ((1, 0.5), "ascend, not 1, 0.5"), ((), "none")):
        with pytest.raises(OptionError, match=message):
            numbers_of(sizes, 100)


def test_sizes_ascend() -> None:
    circuits = curve([1.0] * 10).circuits
    for sizes in (SIZES[:3], SIZES[::-1], (1.0,) * 10):
        with pytest.raises(DataError, match="ascending"):
            Curve(sizes, circuits)
