"""What exact runs cost, kinds that are exhausted, and estimates that were corrected."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import DataError, OptionError
from assay.reliability import Estimates, screen
from reliability.populations import well_behaved
from reliability.test_screening import Runs


def test_costs_decide_what_a_budget_buys() -> None:
    estimates, exact = well_behaved(270, 0)
    costs = np.random.default_rng(0).uniform(0.5, 3, 270)
    runs = Runs(exact)
    full = screen(estimates, runs, costs=costs)
    whole = costs[full.verdict == "verified"].sum()
    again = screen(estimates, Runs(exact), costs=costs, budget=whole)
    assert (again.top == full.top).all()
    assert again.screened
    less = screen(estimates, Runs(exact), costs=costs, budget=whole - 0.1)
    assert costs[less.verdict == "verified"].sum() <= whole - 0.1
    assert not less.screened
    for wrong in (np.ones(3), np.zeros(270)):
        with pytest.raises(OptionError, match="positive cost"):
            screen(estimates, Runs(exact), costs=wrong)
    with pytest.raises(OptionError, match="--budget"):
        screen(estimates, Runs(exact), costs=costs, budget=costs.min() / 2)


def test_kinds_to_exhaust_are_exhausted() -> None:
    estimates, exact = well_behaved(270, 0)
    kinds = ["heads"] * 100 + ["neurons"] * 170
    estimates = Estimates(kinds, estimates.first_order, estimates.quadratic, estimates.quadratic_stderr)
    result = screen(estimates, Runs(exact), exhaust={"heads"})
    assert (result.verdict[:100] == "verified").all()
    assert [each.kind for each in result.calibrations] == ["neurons"]
    assert screen(estimates, Runs(exact), exhaust={"heads", "neurons"}).certified


def test_a_corrected_estimate_replaces_the_first_order_with_its_own_scale() -> None:
    estimates, exact = well_behaved(270, 0)
    corrected, refinement = np.full(270, np.nan), np.full(270, np.nan)
    corrected[7], refinement[7] = exact[7].mean(), 1e-3
    better = Estimates(
        estimates.kinds,
        estimates.first_order,
        estimates.quadratic,
        estimates.quadratic_stderr,
        corrected=corrected,
        refinement=refinement,
    )
    for uses_curvature in (False, True):
        values = better.values(uses_curvature)
        assert values[7] == corrected[7]
        others = np.arange(270) != 7
        np.testing.assert_array_equal(values[others], estimates.values(uses_curvature)[others])
    assert better.size[7] == abs(corrected[7])
    floor = 0.01 * np.median(np.abs(estimates.first))
    assert better.scale[7] == pytest.approx(1e-3 + 0.1 * abs(corrected[7]) + floor)
    assert (np.delete(better.scale, 7) == np.delete(estimates.scale, 7)).all()
    with pytest.raises(DataError, match="refinement"):
        Estimates(["heads"], np.ones((1, 2)), np.ones((1, 2)), np.ones((1, 2)), corrected=np.ones(1))
    with pytest.raises(DataError, match="corrected"):
        Estimates(["a"], np.ones((1, 2)), np.ones((1, 2)), np.ones((1, 2)), corrected=np.ones(2), refinement=np.ones(2))
