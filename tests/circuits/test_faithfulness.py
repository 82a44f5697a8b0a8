"""What CPR and CMD must be for circuits whose faithfulness is known."""

from __future__ import annotations

import numpy as np
import pytest

from assay.circuits.faithfulness import SIZES, CircuitValues, Curve
from assay.errors import DataError


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


def test_sizes_ascend() -> None:
    circuits = curve([1.0] * 10).circuits
    for sizes in (SIZES[:3], SIZES[::-1], (1.0,) * 10):
        with pytest.raises(DataError, match="ascending"):
            Curve(sizes, circuits)
