"""The workflow on real models: what it says was patched was, and equals the truth; the rest has honest intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers

import assay
from assay.data import PromptPairs
from assay.data.metrics import METRICS
from assay.errors import OptionError
from assay.reliability import Estimates
from assay.reliability import screen as screen_arrays
from assay.screening.abilities import abilities
from assay.screening.result import SOURCES
from conftest import random_pairs, wrapped
from families import TINY, tiny_tokenizer

SAME = {"rtol": 1e-9, "atol": 1e-11}


def of_one_length(n: int = 4) -> PromptPairs:
    return random_pairs(n, lengths=(9,))


@pytest.fixture(scope="module")
def model() -> assay.Model:
    return wrapped("llama")


@pytest.fixture(scope="module")
def truth(model: assay.Model) -> assay.Scores:
    return assay.activation_patching(model, of_one_length(), sites="neurons", force=True)


@pytest.fixture(scope="module")
def found(model: assay.Model) -> assay.ScreenedScores:
    return assay.screen(model, of_one_length(), sites="neurons", top=5, force=True)


def test_what_was_patched_is_exact_and_the_rest_is_estimated(
    model: assay.Model, truth: assay.Scores, found: assay.ScreenedScores
) -> None:
    assert not found.certified
    assert found.screened
    exact = found.source == SOURCES.index("exact")
    assert exact.sum() == found.runs
    assert 24 <= found.runs < 100, "pilot and calibration at least, not everything"
    np.testing.assert_allclose(found.values[exact], truth.values[exact], **SAME)
    np.testing.assert_array_equal(found.lower[exact], found.values[exact].mean(1))
    assert [found.verdicts[i] for i in np.flatnonzero(exact)] == ["verified"] * found.runs
    assert all(exact[found.leaders])
    first = assay.attribution_patching(model, of_one_length(), sites="neurons", force=True).values
    second = assay.hvp_sampled(model, of_one_length(), sites="neurons", force=True).values
    np.testing.assert_allclose(found.first_order, first, **SAME)
    np.testing.assert_allclose(found.first_order + found.quadratic, second, **SAME)
    straight = found.source == SOURCES.index("first order")
    np.testing.assert_allclose(found.values[straight], first[straight], **SAME)
    bent = found.source == SOURCES.index("first order + curvature")
    np.testing.assert_allclose(found.values[bent], second[bent], **SAME)
    assert exact.sum() + straight.sum() + bent.sum() == len(found.components)


def test_sample_and_cost_are_kept(found: assay.ScreenedScores) -> None:
    (calibration,) = found.calibrations
    assert (calibration.kind, calibration.level) == ("neurons", 0.95)
    assert len(found.pilot) == 5
    assert not set(found.pilot) & set(calibration.members)
    assert set(calibration.sample) <= set(calibration.members)
    assert (found.source[calibration.sample] == SOURCES.index("exact")).all()
    assert [stage.runs for stage in found.stages[2:]] == [5, 19, *[found.runs - 24] * (found.runs > 24)]
    spent = sum(stage.forward_equivalents for stage in found.stages)
    assert spent == pytest.approx(found.cost["forward_equivalents"])
    inside = (found.values.mean(1) >= found.lower) & (found.values.mean(1) <= found.upper)
    assert inside.all()


def test_first_order_is_known_at_both_ends(model: assay.Model, found: assay.ScreenedScores) -> None:
    there = assay.attribution_patching(model, of_one_length(), sites="neurons", direction="noise", force=True)
    np.testing.assert_allclose(found.far_end, -there.values, **SAME)


def test_a_metric_that_is_flat_at_the_clean_run_has_one_end(model: assay.Model) -> None:
    found = assay.screen(model, of_one_length(), sites="neurons", metric="kl", top=3, force=True)
    known = ~np.isnan(found.first_order)
    assert known.any()
    np.testing.assert_array_equal(found.far_end[known], found.first_order[known])


def test_the_same_seed_gives_the_same_and_another_another_sample(
    model: assay.Model, found: assay.ScreenedScores
) -> None:
    again = assay.screen(model, of_one_length(), sites="neurons", top=5, force=True)
    for name in ("values", "lower", "upper", "leaders", "source"):
        assert (getattr(again, name) == getattr(found, name)).all(), name
    other = assay.screen(model, of_one_length(), sites="neurons", top=5, force=True, seed=1)
    assert (other.calibrations[0].sample != found.calibrations[0].sample).any()


def test_a_patch_that_changes_nothing_is_known_without_a_run(model: assay.Model) -> None:
    pairs, sites = of_one_length(), "heads@each"
    truth = assay.activation_patching(model, pairs, sites=sites, force=True)
    found = assay.screen(model, pairs, sites=sites, probes=0, top=3, force=True)
    idle = found.source == SOURCES.index("no change")
    assert idle.any()
    assert (truth.values[idle] == 0).all()
    assert (truth.values[~idle] != 0).any(1).all()
    assert {found.verdicts[i] for i in np.flatnonzero(idle)} == {"verified"}
    assert (found.lower[idle] == 0).all()
    assert not any(idle[calibration.members].any() for calibration in found.calibrations)
    assert found.runs <= (~idle).sum()


def test_where_no_patch_changes_anything_nothing_is_run(model: assay.Model) -> None:
    pairs = PromptPairs(random_pairs(4).pairs[1:], metric="logit-diff")  # they differ from the second token on
    found = assay.screen(model, pairs, sites="neurons@0", probes=2, force=True)
    assert (found.values == 0).all()
    assert found.certified
    assert (found.runs, len(found.leaders), found.source.tolist()) == (0, 0, [SOURCES.index("no change")] * 144)
    assert found.top(3)["importance"].tolist() == [0, 0, 0]


def test_exhaustion_where_it_is_cheaper(model: assay.Model) -> None:
    pairs = random_pairs()
    truth = assay.activation_patching(model, pairs, sites="heads,mlps", force=True)
    found = assay.screen(model, pairs, sites="heads,mlps", top=5, force=True)
    assert found.certified
    assert found.exact
    assert (found.runs, found.outside_bound, found.exhausted) == (15, 0, ("heads", "mlps"))
    np.testing.assert_allclose(found.values, truth.values, **SAME)
    assert np.argsort(-np.abs(truth.importance))[:5].tolist() == found.leaders.tolist()
    assert "every one is patched" in found.notes[0]
    assert not any("attribution" in stage.name for stage in found.stages)
    both = assay.screen(model, pairs, sites="heads,neurons", probes=2, top=5, force=True)
    assert both.exhausted == ("heads",)
    assert [calibration.kind for calibration in both.calibrations] == ["neurons"]
    heads = np.array([component.site == "heads" for component in both.components])
    assert (both.source[heads] == SOURCES.index("exact")).all()
    assert np.isnan(both.reliability[heads]).all()


def test_a_budget_is_kept_and_what_it_leaves_open_is_listed(model: assay.Model, truth: assay.Scores) -> None:
    pairs = of_one_length()
    full = assay.screen(model, pairs, sites="neurons", top=20, probes=2, force=True)
    assert not full.certified
    budget = full.cost["forward_equivalents"] - 1
    found = assay.screen(model, pairs, sites="neurons", top=20, probes=2, force=True, budget=budget)
    assert found.cost["forward_equivalents"] <= budget
    assert not found.screened
    assert len(found.unsettled)
    exact = found.source == SOURCES.index("exact")
    assert not exact[found.unsettled].any()
    np.testing.assert_allclose(found.values[exact], truth.values[exact], **SAME)
    last = np.abs(found.values[found.leaders[-1]].mean())
    reach = np.fmax(np.abs(found.lower), np.abs(found.upper))
    if len(found.leaders) == 20 and not np.isnan(reach).any():
        assert (reach[~exact & ~np.isin(np.arange(len(reach)), found.unsettled)] < last).all()
    with pytest.raises(OptionError, match=r"does not reach through the estimates: .* take up to \d") as refused:
        assay.screen(model, pairs, sites="neurons", top=20, probes=2, force=True, budget=3)
    # What the refusal asks for suffices; not for calibration, so there are estimates and no intervals.
    least = float(str(refused.value).split("take up to ")[1].split()[0]) + 0.1
    few = assay.screen(model, pairs, sites="neurons", top=20, probes=2, force=True, budget=least)
    assert 0 < few.runs < 20
    assert few.cost["forward_equivalents"] <= least
    assert few.expected_outside is None
    assert set(few.verdicts) == {"verified", "unresolved"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"top": 0}, "--top"),
        ({"level": 1.0}, "--level"),
        ({"probes": 1}, "probes"),
        ({"threshold": -1.0}, "--threshold"),
        ({"fix": "magic"}, "--fix"),
        ({"fix": "hvp", "probes": 0}, "--probes"),
        ({"budget": 0.0}, "--budget"),
        ({"budget": float("nan")}, "--budget"),
    ],
)
def test_options_out_of_range(model: assay.Model, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        assay.screen(model, of_one_length(), force=True, **options)


@pytest.mark.parametrize(("fix", "method"), [("hvp", assay.hvp), ("ms-hvp", assay.ms_hvp)])
def test_corrections_are_the_methods_own_and_remain_estimates(fix: str, method: Callable[..., assay.Scores]) -> None:
    model = assay.load("sequence-sort", dtype="float64")
    options = {"sites": "neurons", "top": 30, "threshold": 0.05}
    pairs = assay.tasks.sort(model, n=3)
    plain = assay.screen(model, pairs, **options)
    found = assay.screen(model, pairs, fix=fix, **options)
    assert (found.flagged == plain.flagged).all()
    corrected = found.source == SOURCES.index(fix)
    assert corrected.any()
    assert found.flagged[corrected].all()
    sites = assay.sites.Selection([found.components[i] for i in np.flatnonzero(corrected)])
    np.testing.assert_allclose(found.values[corrected], method(model, pairs, sites=sites).values, **SAME)
    assert "verified" not in {found.verdicts[i] for i in np.flatnonzero(corrected)}
    assert (found.lower < found.upper)[corrected].all()
    known = ~np.isnan(found.bound)
    assert known.any() == (fix == "ms-hvp")
    if known.any():
        assert known[corrected].all()
        exact = assay.activation_patching(model, pairs, sites=sites).values
        error = np.abs((exact - found.first_order[corrected]).mean(1))
        assert (error <= found.bound[corrected]).mean() >= 0.9
        assert (found.bound[corrected] < 20 * error.max()).all()
    with pytest.raises(OptionError, match="does not reach"):
        assay.screen(model, pairs, fix=fix, budget=20.0, **options)
    estimates = sum(stage.forward_equivalents for stage in found.stages[:2])
    tight = assay.screen(model, pairs, fix=fix, budget=estimates + 15, **options)
    assert tight.cost["forward_equivalents"] <= estimates + 15
    assert (tight.source == SOURCES.index(fix)).sum() < corrected.sum() + found.runs


@pytest.mark.parametrize("fix", ["hvp", "ms-hvp"])
def test_corrections_keep_the_budget_and_leave_room_for_intervals(fix: str) -> None:
    """All components in the last layer, of which an exact run takes one position and a correction all of them."""
    model = assay.load("sequence-sort", dtype="float64")
    options = {"sites": f"neurons[{model.n_layers - 1}]", "top": 10, "threshold": 0.0, "probes": 2, "fix": fix}
    pairs = assay.tasks.sort(model, n=3)
    whole = assay.screen(model, pairs, **options)
    assert any(stage.name.startswith("fix") for stage in whole.stages)
    estimated = sum(stage.forward_equivalents for stage in whole.stages[:2])
    had, corrected = [], []
    for budget in np.linspace(estimated + 6, whole.cost["forward_equivalents"] + 8, 10):
        found = assay.screen(model, pairs, budget=float(budget), **options)
        assert found.cost["forward_equivalents"] <= budget
        had.append(bool(found.calibrations))
        corrected.append(any(stage.name.startswith("fix") for stage in found.stages))
    assert had == sorted(had), "a larger budget gives no fewer intervals"
    assert not had[0]
    assert corrected[-1]
    assert all(calibrated for calibrated, fixed in zip(had, corrected, strict=True) if fixed)


def saturated() -> assay.Model:
    """Attention that is one-hot nearly everywhere: flat, then a jump."""
    model = wrapped("llama")
    with torch.no_grad():
        for layer in model.hf.model.layers:
            layer.self_attn.q_proj.weight.mul_(40)
    return assay.load(model.hf, model.tokenizer)


PLANTED: dict[str, Callable[[], assay.Model]] = {
    "experts": lambda: wrapped("mixtral"),
    "saturated": saturated,
    "kinks": lambda: wrapped("nemotron"),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_intervals_hold_as_often_as_they_say_where_derivatives_mislead(name: str, level: float) -> None:
    model, pairs, sites = PLANTED[name](), of_one_length(3), "heads@each,q@each"
    truth = assay.activation_patching(model, pairs, sites=sites, force=True).values
    found = assay.screen(
        model, pairs, sites=sites, top=5, level=level, force=True, probes=0 if name == "experts" else 8
    )
    kinds = [component.site for component in found.components]
    first = assay.attribution_patching(model, pairs, sites=sites, force=True).values
    stderr = np.nan_to_num(found.quadratic_stderr)
    estimates = Estimates(kinds, first, np.nan_to_num(found.quadratic), stderr)
    live = np.flatnonzero((truth != 0).any(1))
    assert len(live) > 120
    part = Estimates([kinds[i] for i in live], *(table[live] for table in (first, estimates.quadratic, stderr)))
    wrong, total, broken, mean = 0, 0, 0, truth[live].mean(1)
    assert np.abs(mean - first[live].mean(1)).max() > 0.1 * np.abs(mean).max(), "derivatives do mislead here"
    for seed in range(300):
        result = screen_arrays(part, lambda members: truth[live[members]], top=5, level=level, seed=seed)
        for each in result.calibrations:
            others = np.setdiff1d(each.members, each.sample)
            estimate = part.values(each.uses_curvature)[others]
            wrong += (np.abs(mean[others] - estimate) > each.quantile * part.scale[others]).sum()
            total += len(others)
        unverified = result.verdict != "verified"
        outside = ((mean < result.lower) | (mean > result.upper))[unverified].sum()
        broken += outside > result.outside_bound
    assert total
    assert broken <= 0.08 * 300
    assert wrong / total <= 1 - level + 0.01
    assert found.smooth == (name == "saturated")


def test_routing_to_experts_is_said_and_has_no_reliability_score() -> None:
    found = assay.screen(wrapped("mixtral"), of_one_length(), sites="q@each,heads@each", top=3, force=True)
    assert found.probes == 0
    assert "routes tokens to experts" in found.notes[0]
    assert np.isnan(found.reliability).all()
    assert not found.flagged.any()


def test_what_has_no_gradient_is_exhausted_and_has_no_budget(model: assay.Model) -> None:
    pairs = of_one_length()
    truth = assay.activation_patching(model, pairs, sites="neurons[1]", metric="exact-match", force=True)
    found = assay.screen(model, pairs, sites="neurons[1]", metric="exact-match", force=True)
    assert found.certified
    assert (found.values == truth.values).all()
    assert "exact-match has no gradient" in found.notes[0]
    with pytest.raises(OptionError, match="--budget needs estimates"):
        assay.screen(model, pairs, sites="neurons", metric="exact-match", force=True, budget=100.0)
    flat = assay.screen(model, pairs, sites="neurons[1]", metric="kl", direction="noise", force=True)
    assert flat.certified
    assert "flat at the clean run" in flat.notes[0]


def test_half_precision_has_first_order_only() -> None:
    model = assay.load("sequence-sort", dtype="bfloat16")
    found = assay.screen(model, assay.tasks.sort(model, n=2), sites="neurons", top=3)
    assert found.probes == 0
    assert "bfloat16" in found.notes[0]
    assert np.isnan(found.reliability).all()


def test_noise_turns_importance_and_interval(model: assay.Model) -> None:
    found = assay.screen(model, of_one_length(), sites="neurons", top=5, direction="noise", force=True)
    top = found.top(len(found.components))
    assert (found.importance == -found.values.mean(1)).all()
    has = ~np.isnan(top["low"])
    assert (top["low"] <= top["importance"])[has].all()
    assert (top["importance"] <= top["high"])[has].all()
    assert top["component"].tolist()[:5] == [found.components[i].name for i in found.leaders]


@pytest.mark.parametrize(
    ("entries", "smooth"),
    [
        ({"hidden_act": "silu"}, True),
        ({"hidden_act": "gelu_new"}, True),
        ({"hidden_act": "gelu_10"}, False),
        ({"hidden_act": "hardswish"}, False),
        ({"hidden_act": "relu2"}, False),
        ({"hidden_act": "silu", "clip_qkv": 2.0}, False),
        ({"hidden_act": "silu", "clip_qkv": None}, True),
    ],
)
def test_kinks_are_known(entries: dict[str, object], smooth: bool) -> None:
    tiny = TINY["olmo"]
    config = tiny.config()
    config.update({"clip_qkv": None, **entries})
    model = assay.load(getattr(transformers, tiny.model)(config).eval(), tiny_tokenizer())
    assert abilities(model, METRICS["logit-diff"], "denoise", 2).smooth == smooth
