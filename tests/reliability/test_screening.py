"""Screening against exhaustive truth, over populations that are hard in different ways."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from assay.errors import DataError, InterventionError, OptionError
from assay.reliability import Estimates, Screening, exhaustion_is_cheaper, screen
from assay.reliability.estimates import STANDARD_ERRORS
from reliability.populations import EXAMPLES, POPULATIONS, Population, well_behaved

DRAWS = 500


class Runs:
    """The truth, and who asked for it."""

    def __init__(self, exact: np.ndarray) -> None:
        self.exact = exact
        self.asked: list[int] = []

    def __call__(self, members: np.ndarray) -> np.ndarray:
        self.asked += members.tolist()
        return self.exact[members]


def outside(result: Screening, exact: np.ndarray) -> np.ndarray:
    """(C,) whether the exact mean effect lies outside the interval."""
    mean = exact.mean(1)
    return (mean < result.lower) | (mean > result.upper)


def largest(exact: np.ndarray, count: int) -> set[int]:
    return set(np.argsort(-np.abs(exact.mean(1)), kind="stable")[:count].tolist())


def missed(result: Screening, estimates: Estimates, exact: np.ndarray) -> np.ndarray:
    """(N - m,) whether members outside the sample lie outside their interval as calibrated."""
    (calibration,) = result.calibrations
    others = np.setdiff1d(calibration.members, calibration.sample)
    estimate = estimates.first + calibration.uses_curvature * estimates.second
    margin = calibration.quantile * estimates.scale[others]
    return np.abs(exact.mean(1) - estimate)[others] > margin + 1e-12 * np.abs(estimate[others])


@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize(("count", "level"), [(270, 0.95), (270, 0.9), (72, 0.95), (72, 0.9)])
def test_coverage_and_bound_hold_whatever_the_population(name: str, count: int, level: float) -> None:
    """After calibration: coverage at least nominal minus one point, at 95 % no more outside than the bound."""
    estimates, exact = POPULATIONS[name](count, 1)
    shares, held = [], []
    for seed in range(DRAWS):
        result = screen(
            estimates, lambda members: exact[members], level=level, seed=seed, budget=10 + max(19, count // 10)
        )
        out = missed(result, estimates, exact)
        shares.append(out.mean())
        assert outside(result, exact).sum() <= out.sum()
        held.append(out.sum() <= result.outside_bound)
    assert 1 - np.mean(shares) >= level - 0.01
    assert np.mean(held) >= 0.95 - 0.025  # 2.5 standard errors


@pytest.mark.parametrize("name", POPULATIONS)
def test_whenever_the_search_stops_the_bound_holds_if_it_held_at_the_start(name: str) -> None:
    estimates, exact = POPULATIONS[name](270, 1)
    for seed in range(10):
        for budget in (37, 45, 60, 150, None):
            result = screen(estimates, lambda members: exact[members], seed=seed, budget=budget)
            at_start = missed(result, estimates, exact).sum()
            assert outside(result, exact).sum() <= at_start - result.found_outside


@pytest.mark.parametrize("name", POPULATIONS)
def test_what_a_result_says_is_so(name: str) -> None:
    estimates, exact = POPULATIONS[name](270, 2)
    runs = Runs(exact)
    result = screen(estimates, runs, top=10, seed=3)
    assert len(set(runs.asked)) == len(runs.asked) == result.runs, "nothing is run twice"
    verified = result.verdict == "verified"
    assert sorted(runs.asked) == np.flatnonzero(verified).tolist()
    for array in (result.value, result.lower, result.upper):
        np.testing.assert_array_equal(array[verified], exact[verified].mean(1))
    np.testing.assert_array_equal(result.exact[verified], exact[verified])
    assert np.isnan(result.exact[~verified]).all()
    # The k-th value, and no unverified interval that reaches it.
    ordered = np.sort(np.abs(exact[verified].mean(1)))[::-1][:10]
    np.testing.assert_array_equal(np.abs(result.value[result.top]), ordered)
    assert verified[result.top].all()
    assert (np.maximum(np.abs(result.lower), np.abs(result.upper))[~verified] < ordered[-1]).all()
    # Intervals where the definition puts them.
    (calibration,) = result.calibrations
    others = np.flatnonzero(~verified)
    estimate = (estimates.first + calibration.uses_curvature * estimates.second)[others]
    margin = calibration.widened * estimates.scale[others]
    np.testing.assert_allclose(result.upper[others], estimate + margin)
    np.testing.assert_allclose(result.lower[others], estimate - margin)
    np.testing.assert_array_equal(result.verdict[others] == "unresolved", np.isnan(estimates.reliability[others]))
    # The sample is part of the result and was drawn outside the pilot.
    assert not set(calibration.sample) & set(result.pilot)
    assert sorted([*calibration.members, *result.pilot]) == list(range(270))
    scores = np.sort(np.abs(exact.mean(1) - estimates.first - calibration.uses_curvature * estimates.second)
                     [calibration.sample] / estimates.scale[calibration.sample])  # fmt: skip
    assert calibration.quantile == pytest.approx(scores[26], rel=1e-12)


def test_good_estimates_save_runs_and_find_the_top() -> None:
    found, runs = [], []
    for seed in range(40):
        estimates, exact = well_behaved(270, seed)
        result = screen(estimates, lambda members, exact=exact: exact[members], seed=seed)
        found.append(len(largest(exact, 10) & set(result.top.tolist())) / 10)
        runs.append(result.runs)
    assert np.mean(found) >= 0.99
    assert np.mean(runs) <= 54


@pytest.mark.parametrize("name", POPULATIONS)
def test_only_a_wrong_interval_can_hide_a_member_of_the_top(name: str) -> None:
    estimates, exact = POPULATIONS[name](270, 5)
    for seed in range(20):
        result = screen(estimates, lambda members: exact[members], seed=seed)
        hidden = [i for i in largest(exact, 10) - set(result.top.tolist()) if result.verdict[i] != "verified"]
        assert outside(result, exact)[hidden].all()


def test_useless_estimates_cost_runs() -> None:
    def runs(name: str) -> float:
        estimates, exact = POPULATIONS[name](270, 5)
        return float(np.mean([screen(estimates, lambda m: exact[m], seed=seed).runs for seed in range(20)]))

    assert runs("useless") > 2 * runs("well_behaved")


def test_curvature_is_used_where_it_helps_and_where_it_is_sure() -> None:
    def used(name: str) -> bool:
        estimates, exact = POPULATIONS[name](270, 1)
        (calibration,) = screen(estimates, lambda members: exact[members]).calibrations
        return calibration.uses_curvature

    assert used("well_behaved")
    assert not used("curvature_misleads")
    assert not used("errors_grow_with_effects")
    estimates, _ = POPULATIONS["curvature_is_noise"](270, 1)
    mean, error = estimates.quadratic.mean(1), np.sqrt((estimates.quadratic_stderr**2).sum(1)) / EXAMPLES
    np.testing.assert_array_equal(estimates.second, np.where(np.abs(mean) > STANDARD_ERRORS * error, mean, 0))


def test_choosing_the_estimate_by_the_sample_would_break_coverage() -> None:
    """Why there is a pilot. The shortcut takes whichever estimate has the smaller quantile in the sample."""
    estimates, exact = POPULATIONS["curvature_is_a_toss_up"](270, 1)
    errors = [
        np.abs(exact.mean(1) - estimate) / estimates.scale
        for estimate in (estimates.first, estimates.first + estimates.second)
    ]
    shortcut, ours = [], []
    for seed in range(DRAWS):
        sample = np.random.default_rng(seed).choice(270, 19, replace=False)
        others = np.setdiff1d(np.arange(270), sample)
        quantile, chosen = min((np.sort(scores[sample])[17], i) for i, scores in enumerate(errors))
        shortcut.append((errors[chosen][others] <= quantile).mean())
        result = screen(estimates, lambda m: exact[m], level=0.9, seed=seed, sample=19, budget=29)
        ours.append(1 - missed(result, estimates, exact).mean())
    assert np.mean(shortcut) < 0.88
    assert np.mean(ours) >= 0.89


def test_choosing_the_estimate_does_not_look_at_the_sample() -> None:
    """The choice must not change with the draw: that is what keeps the quantile honest."""
    estimates, exact = POPULATIONS["curvature_is_a_toss_up"](270, 1)
    choices = {screen(estimates, lambda m: exact[m], seed=seed).calibrations[0].uses_curvature for seed in range(50)}
    assert len(choices) == 1


def test_the_same_seed_gives_the_same_result_and_another_a_different_sample() -> None:
    estimates, exact = well_behaved(270, 0)
    first, again, other = (screen(estimates, lambda m: exact[m], seed=seed) for seed in (0, 0, 1))
    for field in dataclasses.fields(Screening):
        if field.name != "calibrations":
            np.testing.assert_array_equal(getattr(first, field.name), getattr(again, field.name))
    (one,), (same,), (another,) = first.calibrations, again.calibrations, other.calibrations
    assert (one.sample == same.sample).all()
    assert one.widened == same.widened
    assert set(one.sample) != set(another.sample)


def together(*parts: tuple[str, Population]) -> Population:
    names = [name for name, (estimates, _) in parts for _ in range(len(estimates))]
    stacked = [
        np.concatenate([getattr(estimates, field) for _, (estimates, _) in parts])
        for field in ("first_order", "quadratic", "quadratic_stderr")
    ]
    return Estimates(names, *stacked), np.concatenate([exact for _, (_, exact) in parts])


def test_kinds_are_calibrated_apart_and_small_ones_exhausted() -> None:
    estimates, exact = together(
        ("heads", well_behaved(270, 0)), ("mlps", well_behaved(30, 1)), ("neurons", POPULATIONS["useless"](400, 2))
    )
    result = screen(estimates, lambda members: exact[members])
    assert [each.kind for each in result.calibrations] == ["heads", "neurons"]
    assert (result.verdict[270:300] == "verified").all()
    heads, neurons = result.calibrations
    assert heads.quantile < neurons.quantile
    assert set(heads.members) <= set(range(270))
    assert set(neurons.members) <= set(range(300, 700))
    assert result.expected_outside == pytest.approx(0.05 * (len(heads.members) - 27 + len(neurons.members) - 40))


@pytest.mark.parametrize("count", [1, 5, 59])
def test_few_members_are_all_run(count: int) -> None:
    estimates, exact = well_behaved(count, 0)
    result = screen(estimates, lambda members: exact[members])
    assert result.certified
    assert result.screened
    assert (result.runs, result.outside_bound, result.expected_outside) == (count, 0, 0)
    assert result.top.tolist() == np.argsort(-np.abs(exact.mean(1)), kind="stable")[:10].tolist()


def test_exhaustion_where_screening_costs_no_less() -> None:
    estimates, exact = well_behaved(80, 0)
    assert not screen(estimates, lambda members: exact[members]).certified
    assert screen(estimates, lambda members: exact[members], top=61).certified, "61 + 19 runs are 80"
    assert not screen(estimates, lambda members: exact[members], top=40).calibrations[0].members.size > 40
    assert exhaustion_is_cheaper(59, 0)
    assert exhaustion_is_cheaper(80, 80)
    assert not exhaustion_is_cheaper(80, 79)


def test_a_budget_is_kept_and_what_it_leaves_is_listed() -> None:
    estimates, exact = POPULATIONS["useless"](270, 0)
    runs = Runs(exact)
    result = screen(estimates, runs, budget=60)
    assert len(runs.asked) == result.runs == 60
    assert not result.screened
    reach = np.maximum(np.abs(result.lower), np.abs(result.upper))
    expected = (result.verdict != "verified") & (reach >= np.abs(result.value[result.top[-1]]))
    np.testing.assert_array_equal(result.unsettled, np.flatnonzero(expected))
    assert result.unsettled.size
    assert screen(estimates, Runs(exact), budget=270).screened
    # Pilot and calibration alone: intervals, no search.
    result = screen(estimates, Runs(exact), budget=37)
    assert result.runs == 37
    assert np.isfinite(result.lower).all()


def test_a_budget_too_small_to_calibrate_buys_the_largest_and_no_intervals() -> None:
    estimates, exact = well_behaved(270, 0)
    runs = Runs(exact)
    result = screen(estimates, runs, budget=20)
    assert runs.asked == np.argsort(-np.abs(estimates.first) - np.abs(estimates.second), kind="stable")[:20].tolist()
    rest = result.verdict != "verified"
    assert (result.verdict[rest] == "unresolved").all()
    assert np.isnan(result.lower[rest]).all()
    assert result.unsettled.tolist() == np.flatnonzero(rest).tolist()
    assert (result.calibrations, result.outside_bound) == ((), 250)
    assert np.isnan(result.expected_outside)


def test_a_first_order_term_of_nothing_is_unresolved_whatever_its_interval() -> None:
    estimates, exact = well_behaved(270, 0)
    first = estimates.first_order.copy()
    first[::9] = 0
    dead = dataclasses.replace(estimates, first_order=first)
    result = screen(dead, lambda members: exact[members])
    rest = result.verdict[::9] != "verified"
    assert rest.sum() > 20
    assert (result.verdict[::9][rest] == "unresolved").all()
    assert np.isfinite(result.upper).all()


def test_found_outside_widens_and_is_counted() -> None:
    """Estimates that are good in the bulk and too small where it matters."""
    estimates, exact = well_behaved(270, 0)
    order = np.argsort(-np.abs(estimates.first))
    exact = exact.copy()
    exact[order[5:40]] *= 2.5
    results = [screen(estimates, lambda members: exact[members], seed=seed) for seed in range(30)]
    assert np.mean([each.calibrations[0].widened > each.calibrations[0].quantile for each in results]) > 0.5
    assert np.mean([each.found_outside for each in results]) > 1
    for each in results:
        (calibration,) = each.calibrations
        assert outside(each, exact).sum() <= each.outside_bound
        beyond = np.setdiff1d(np.flatnonzero(each.verdict == "verified"), calibration.sample)
        estimate = estimates.first + calibration.uses_curvature * estimates.second
        scores = np.abs(exact.mean(1) - estimate)[beyond] / estimates.scale[beyond]
        assert (scores > calibration.widened).sum() <= 0.05 * len(beyond)


def test_more_found_outside_than_the_bound_allows_leaves_no_bound() -> None:
    estimates, exact = well_behaved(270, 0)
    result = screen(estimates, lambda members: exact[members])
    unlucky = dataclasses.replace(result, found_outside=250)
    assert unlucky.outside_bound == 270 - result.runs


def test_the_unit_of_the_metric_does_not_matter() -> None:
    estimates, exact = well_behaved(270, 0)
    scaled = Estimates(
        estimates.kinds, 1024 * estimates.first_order, 1024 * estimates.quadratic, 1024 * estimates.quadratic_stderr
    )
    plain, other = screen(estimates, lambda m: exact[m]), screen(scaled, lambda m: 1024 * exact[m])
    assert plain.top.tolist() == other.top.tolist()
    np.testing.assert_array_equal(1024 * plain.upper, other.upper)


def test_options_out_of_range() -> None:
    estimates, exact = well_behaved(270, 0)
    for options, named in (
        ({"top": 0}, "--top"),
        ({"level": 1.0}, "--level"),
        ({"sample": 18}, "calibration sample must be at least 19"),
        ({"budget": 0}, "--budget"),
    ):
        with pytest.raises(OptionError, match=named):
            screen(estimates, lambda members: exact[members], **options)


def test_exact_runs_that_are_no_numbers() -> None:
    estimates, exact = well_behaved(70, 0)
    broken = exact.copy()
    broken[:, 1] = np.nan
    with pytest.raises(InterventionError, match="is not finite"):
        screen(estimates, lambda members: broken[members])
    with pytest.raises(InterventionError, match="shape"):
        screen(estimates, lambda members: exact[members, 0])


def test_estimates_that_do_not_fit_together() -> None:
    one = np.ones((3, 2))
    with pytest.raises(DataError, match="site kinds"):
        Estimates(["heads"], one, one, one)
    with pytest.raises(DataError, match="quadratic has the shape"):
        Estimates(["heads"] * 3, one, one[:2], one)
    with pytest.raises(DataError, match="component 1 on example 0"):
        Estimates(["heads"] * 3, one, np.array([[1, 1], [np.inf, 1], [1, 1]]), one)
    with pytest.raises(DataError, match="not be negative"):
        Estimates(["heads"] * 3, one, one, -one)
    with pytest.raises(DataError, match="per component and example"):
        Estimates(["heads"] * 3, one[0], one, one)


def test_scale_and_reliability_are_what_the_definition_says() -> None:
    first = np.array([[1.0, 3.0], [-4.0, 0.0], [0.001, 0.001]])
    quadratic, stderr = np.array([[1.0, 2.0], [0.0, 0.2], [0.0, 0.0]]), np.array([[0.3, 0.4], [0, 0], [0, 0]])
    estimates = Estimates(["heads"] * 3, first, quadratic, stderr, noise=0.5)
    floor = 0.01 * 2 + 0.5
    np.testing.assert_allclose(estimates.scale, [np.hypot(1.5, 0.25) + 0.2 + floor, 0.1 + 0.2 + floor, 0.0001 + floor])
    np.testing.assert_allclose(estimates.second, [1.5, 0.1, 0])
    np.testing.assert_allclose(estimates.reliability, [3 / 4, 0.2 / 4, np.nan])


def test_a_component_that_only_the_far_end_sees_is_found() -> None:
    """Nothing at the base run tells it from the others; where the two ends differ, no estimate is to be trusted."""
    estimates, exact = well_behaved(300, 1)
    hidden = 7
    exact[hidden] = 2 * np.abs(exact.mean(1)).max()
    far = estimates.first_order.copy()
    far[hidden] = exact[hidden] * 1.2
    seeing = dataclasses.replace(estimates, far_end=far)
    for seed in range(20):
        without = screen(estimates, lambda members: exact[members], seed=seed)
        with_it = screen(seeing, lambda members: exact[members], seed=seed)
        assert hidden in with_it.top
        assert hidden not in without.top or hidden in without.calibrations[0].sample


def test_ends_that_differ_widen_the_interval() -> None:
    estimates, _ = well_behaved(100, 2)
    far = estimates.first_order + np.where(np.arange(100)[:, None] == 3, 5.0, 0.0)
    wider = dataclasses.replace(estimates, far_end=far).scale - estimates.scale
    np.testing.assert_allclose(wider, np.where(np.arange(100) == 3, 0.3 * 5.0, 0.0), atol=1e-12)
