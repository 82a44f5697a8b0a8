"""Integrals along a path against what they are known to be."""

from __future__ import annotations

import numpy as np
import pytest

from assay.tokens.path_integral import path_integral

Numbers = np.ndarray


class Path:
    """Two slopes whose sum is the derivative of the value, of smooth and of steep functions."""

    def __init__(self, steepness: float) -> None:
        self.steepness, self.asked = steepness, list[float]()

    def step(self, a: Numbers) -> Numbers:
        return 10 * np.tanh(self.steepness * (a - 0.3117))

    def __call__(self, strengths: Numbers) -> tuple[Numbers, Numbers]:
        self.asked += strengths.tolist()
        steep = self.steepness * (10 - self.step(strengths) ** 2 / 10)
        smooth = 3 * np.cos(3 * strengths)
        return self.step(strengths) + np.sin(3 * strengths), np.stack([steep, smooth], 1)

    @property
    def truth(self) -> Numbers:
        ends = self.step(np.array([0.0, 1.0]))
        return np.array([ends[1] - ends[0], np.sin(3.0)])


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 10, 13, 20, 51, 200])
def test_so_many_points_are_asked_each_once(steps: int) -> None:
    path = Path(5.0)
    path_integral(path, steps)
    assert steps - 3 <= len(path.asked) <= steps
    assert len(set(path.asked)) == len(path.asked)


def test_it_converges_where_the_path_is_smooth() -> None:
    path = Path(8.0)
    errors = [np.abs(path_integral(path, steps) - path.truth).max() for steps in (13, 50, 200)]
    assert errors[0] > 30 * errors[1] > 900 * errors[2]
    assert errors[2] < 1e-6


def test_a_steep_place_is_found() -> None:
    path = Path(2000.0)
    even = (np.arange(100) + 0.5) / 100
    assert np.abs(path(even)[1].mean(0) - path.truth)[0] > 5, "evenly spaced points miss it"
    np.testing.assert_allclose(path_integral(path, 100), path.truth, atol=0.01)


@pytest.mark.parametrize("where", [0.0, 0.3, 1.0])
def test_what_is_not_finite_ends_with_an_error(where: float) -> None:
    def broken(strengths: Numbers) -> tuple[Numbers, Numbers]:
        values, slopes = Path(5.0)(strengths)
        return np.where(strengths >= where, np.nan, values), slopes

    with pytest.raises(ValueError, match="not finite"):
        path_integral(broken, 50)


@pytest.mark.parametrize("steps", [1, 5, 9, 30])
def test_linear_slopes_are_integrated_exactly(steps: int) -> None:
    found = path_integral(lambda a: (a**2 + a, np.stack([2 * a, np.ones_like(a)], 1)), steps)
    np.testing.assert_allclose(found, [1, 1], rtol=0, atol=1e-14)
