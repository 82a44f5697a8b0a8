"""Second derivatives of the response: exact against central differences, sampled against exact."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import assay
from assay.data import PromptPair, PromptPairs
from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.engine import curvature
from assay.engine.batches import make_batches
from assay.engine.curvature import SampledCurvature, sample_curvature
from assay.engine.graph import graph_bytes
from assay.engine.replay import Lane
from assay.engine.response import Response
from assay.engine.savings import NO_SAVING
from assay.errors import OptionError
from assay.sites import KINDS, Selection, components_of, select
from conftest import random_pairs, words, wrapped
from families import EXPERTS, TINY

# Gemma 2 has post-norms and a softcap, GPT-NeoX and Phi parallel blocks, gpt-oss sinks, Granite multipliers.
SOME = ["llama", "gemma2", "gpt-neox", "opt", "gpt-oss", "granite", "gpt2", "phi", "mixtral"]


def responses(
    model: assay.Model, sites: str | Selection = "heads,mlps", n: int = 3, metric: str = "logit-diff", **options: object
) -> list[Response]:
    chosen = METRICS[metric]
    batches = make_batches(model, encode(model, random_pairs(n), chosen), "denoise", 1 << 30)
    return [Response(model, batch, chosen, select(model, sites), **options) for batch in batches]


def sites_of(family: str) -> str:
    """Every kind there is, at most two layers of neurons."""
    kinds = []
    for kind in KINDS.values():
        if kind.of_mlp and TINY[family].neurons_before == EXPERTS["neurons_before"]:
            continue
        if kind.in_half_layer and TINY[family].parallel:
            continue
        kinds.append(f"{kind.name}[1]@last" if kind.of_mlp else kind.name)
    return ",".join(kinds)


def second_difference(response: Response, a: float, step: float = 5e-4) -> torch.Tensor:
    """Of the exact response, at five points: the error falls with the fourth power of the step."""
    values = [response.value(a + i * step) for i in (-2, -1, 0, 1, 2)]
    return sum(c * v for c, v in zip((-1, 16, -30, 16, -1), values, strict=True)) / (12 * step**2)


@pytest.mark.parametrize("family", TINY)
def test_curvature_of_heads_and_mlps_equals_second_differences(family: str) -> None:
    for response in responses(wrapped(family), metric="log-prob-diff"):
        if family == "nemotron":
            # The second derivative of a squared ReLU jumps; first differences of slopes take a step too small to meet
            # a jump.
            expected = (response.slope(1e-6) - response.slope(-1e-6)) / 2e-6
        else:
            expected = second_difference(response, 0.0)
        assert expected.abs().max() > 0.05, "the test would prove nothing"
        torch.testing.assert_close(response.curvature(0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("a", [0.0, 0.5])
@pytest.mark.parametrize("family", SOME)
def test_curvature_of_every_site_equals_second_differences(family: str, a: float) -> None:
    for response in responses(wrapped(family), sites_of(family), n=1):
        slopes, curvatures = response.slope_and_curvature(a)
        torch.testing.assert_close(slopes, response.slope(a), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(curvatures, second_difference(response, a), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", SOME)
def test_graph_memory_is_bounded(family: str) -> None:
    """What autograd really keeps of a lane and layer, counted, against what batch sizes are chosen by."""
    model = wrapped(family)
    (response,) = responses(model, "residual-pre[0]", n=1, savings=NO_SAVING)
    lanes = [Lane(0, response.components[0])] * 6
    recorded = {
        tensor.untyped_storage().data_ptr()
        for recording in (response.base,)
        for tensors in vars(recording).values()
        if isinstance(tensors, list)
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
    }
    recorded |= {parameter.untyped_storage().data_ptr() for parameter in model.hf.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in recorded:
            kept[storage.data_ptr()] = storage
        return tensor

    found = {}
    for count in (2, 6):
        kept.clear()
        strength = torch.zeros(count, dtype=torch.float64, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            total = response._run(lanes[:count], strength).sum()
            first = sum(storage.nbytes() for storage in kept.values())
            torch.autograd.grad(total, strength, create_graph=True)
        found[count] = first, sum(storage.nbytes() for storage in kept.values())
    length = response.batch.positions
    for order in (1, 2):
        each = (found[6][order - 1] - found[2][order - 1]) / 4 / model.n_layers
        # The second derivative's own gradients are not among what is kept.
        assert order * each <= graph_bytes(model, length, length, order) <= 4 * order * each


def test_batches_of_lanes_change_curvature_by_rounding_only() -> None:
    (whole,) = responses(wrapped("gemma2"), n=1)
    (small,) = responses(wrapped("gemma2"), n=1, memory=1)
    assert small.lanes_at_once(2) == 1
    for a in (0.0, 0.5):
        torch.testing.assert_close(small.curvature(a), whole.curvature(a), rtol=0, atol=1e-11)
    assert small.cost.interventions == whole.cost.interventions
    assert small.cost.layer_tokens_backward == whole.cost.layer_tokens_backward


def test_a_straight_line_has_no_curvature() -> None:
    from oracles.test_first_order import linear_model

    for response in responses(linear_model(), "heads,mlps,residual-post"):
        slopes, curvatures = response.slope_and_curvature(0)
        assert slopes.abs().max() > 0.1
        assert (curvatures == 0).all()
        sampled = sample_curvature(response, 2)
        assert (sampled.curvature == 0).all()
        torch.testing.assert_close(sampled.slope, slopes, rtol=0, atol=1e-11)


def test_half_precision_is_refused() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        (response,) = responses(wrapped("llama", dtype), n=1)
        for compute in (response.curvature, lambda _, response=response: sample_curvature(response)):
            with pytest.raises(OptionError, match="float32"):
                compute(0)


# Sampled


def sampled(response: Response, probes: int, seed: int = 0) -> SampledCurvature:
    return sample_curvature(response, probes, seed=seed)


def share_within_three_errors(responses: list[Response]) -> float:
    """Of components and rows, with 200 probes."""
    within = []
    for response in responses:
        exact, found = response.curvature(0).double(), sampled(response, 200)
        assert exact.abs().max() > 0.05
        assert (found.probes == 200).all()
        torch.testing.assert_close(found.slope, response.slope(0).double(), rtol=1e-9, atol=1e-9)
        # A component alone in its kind has no error but rounding.
        within.append((found.curvature - exact).abs() <= 3 * found.standard_error + 1e-8)
    return torch.cat([each.flatten() for each in within]).double().mean().item()


def test_sampled_curvature_is_unbiased() -> None:
    families = ["llama", "gemma2", "gpt-neox", "gpt-oss"][: None if "ASSAY_EVERY_COMBINATION" in os.environ else 2]
    tested = [each for family in families for each in responses(wrapped(family), sites_of(family), n=1)]
    assert sum(len(each.components) for each in tested) > 120
    assert share_within_three_errors(tested) >= 0.99


def test_standard_errors_are_the_spread_of_repeated_draws() -> None:
    """40 independent draws of 20 probes: the mean squared error reported is the variance seen, by chi-square."""
    draws, probes = 40, 20
    (response,) = responses(wrapped("llama"), "heads", n=1)
    found = [sampled(response, probes, seed) for seed in range(draws)]
    seen = torch.stack([each.curvature for each in found]).var(0, correction=1)
    reported = torch.stack([each.standard_error.square() for each in found]).mean(0)
    moving = seen > 1e-12
    ratio = (seen / reported)[moving]
    assert moving.sum() >= 10
    # Of one component draws - 1 degrees of freedom: the 0.1 % and 99.9 % points of chi-square over them.
    assert (ratio > 0.40).all()
    assert (ratio < 1.95).all()
    assert ratio.mean().item() == pytest.approx(1, abs=0.2)


def test_errors_of_a_sum_over_rows_add_in_quadrature() -> None:
    draws = 40
    model = wrapped("llama")
    metric = METRICS["logit-diff"]
    rows = encode(model, random_pairs(8, lengths=(7,)), metric)
    batches = make_batches(model, rows, "denoise", 1 << 30)
    batch = max(batches, key=lambda one: one.rows)
    assert batch.rows >= 2
    response = Response(model, batch, metric, select(model, "heads"))
    found = [sampled(response, 10, seed) for seed in range(draws)]
    seen = torch.stack([each.curvature.sum(1) for each in found]).var(0, correction=1)
    reported = torch.stack([each.standard_error.square().sum(1) for each in found]).mean(0)
    ratio = seen / reported
    assert (ratio > 0.40).all()
    assert (ratio < 1.95).all()


@pytest.mark.parametrize("sites", ["heads,mlps", "neurons", "heads@last"])
def test_how_rows_are_batched_changes_an_estimate_by_rounding_only(sites: str) -> None:
    model, metric = wrapped("gemma3"), METRICS["logit-diff"]
    rows = encode(model, random_pairs(6, lengths=(7,)), metric)
    found = {}
    for memory in (1 << 30, 1):
        values = torch.zeros(len(select(model, sites)), len(rows), dtype=torch.float64)
        for order in (rows, rows[::-1]):
            for batch in make_batches(model, order, "denoise", memory):
                response = Response(model, batch, metric, select(model, sites), memory=memory)
                values[:, batch.examples] = sampled(response, 3).curvature
            found[memory, order is rows] = values.clone()
    expected = found.pop((1 << 30, True))
    assert expected.abs().max() > 0.01
    for values in found.values():
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-11)


def test_one_kind_does_not_disturb_another() -> None:
    (both,) = responses(wrapped("gpt2"), "heads,mlps", n=1)
    (alone,) = responses(wrapped("gpt2"), "heads", n=1)
    heads = sampled(alone, 3).curvature
    torch.testing.assert_close(sampled(both, 3).curvature[: len(heads)], heads, rtol=0, atol=1e-12)


def test_overlapping_positions_are_estimated_without_bias() -> None:
    """A component at all positions, and the same at its last one: two components of one probe."""
    model = wrapped("llama")
    twice = components_of(model, "heads") + components_of(model, "heads").at("last")
    assert share_within_three_errors(responses(model, twice)) >= 0.98


def test_probes_until_a_wanted_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    (response,) = responses(wrapped("llama"), "heads", n=1)
    rough = sampled(response, 4)
    fine = sample_curvature(response, 4, precision=0.1)
    assert fine.probes.min() > 4
    error = fine.standard_error.square().sum(0).sqrt() / fine.curvature.square().sum(0).sqrt()
    assert (error <= 0.1).all()
    exact = response.curvature(0).double()
    assert (fine.curvature - exact).norm() < 0.5 * (rough.curvature - exact).norm()
    monkeypatch.setattr(curvature, "MOST_PROBES", 16)
    with pytest.raises(OptionError, match="16 probes"):
        sample_curvature(response, 4, precision=1e-6)
    for probes, precision in ((1, None), (17, None), (4, 0.0)):
        with pytest.raises(OptionError, match=r"must be|relative error"):
            sample_curvature(response, probes, precision=precision)


def test_a_probe_costs_a_forward_and_a_backward_pass() -> None:
    (response,) = responses(wrapped("llama"), "heads", n=1)
    response.base, response.source  # noqa: B018  # two passes of their own
    spent = np.array([response.cost.layer_tokens_forward, response.cost.layer_tokens_backward])
    sampled(response, 5)
    now = np.array([response.cost.layer_tokens_forward, response.cost.layer_tokens_backward])
    run = response.batch.positions - response.start
    assert ((now - spent) == 6 * run * response.model.n_layers).all()


def test_rows_of_one_example_have_probes_of_their_own() -> None:
    """Right and wrong answer may differ in their last token only; then both rows run the same tokens."""
    pairs = PromptPairs((PromptPair(words([1, 2]), words([3, 2]), " w5 w6", " w5 w7"),), metric="log-prob-diff")
    metric = METRICS["log-prob-diff"]
    model = wrapped("llama")
    (batch,) = make_batches(model, encode(model, pairs, metric), "denoise", 1 << 30)
    assert (batch.base[0] == batch.base[1]).all()
    response = Response(model, batch, metric, select(model, "heads"))
    kind = curvature._Kind(response, "heads", [each[1:] for each in response.deltas()])
    signs = torch.stack([kind._signs(number, 0) for number in range(50)])
    assert abs((signs[:, :, 0] * signs[:, :, 1]).mean()) < 0.2


def test_copies_of_a_pair_have_probes_of_their_own() -> None:
    """150 draws of the mean over 4 copies: its spread is what is stated, and half of it would be seen."""
    model, metric, draws = wrapped("llama"), METRICS["logit-diff"], 150
    pair = next(iter(random_pairs(1, lengths=(6,))))
    rows = encode(model, PromptPairs((pair,) * 4, metric="logit-diff"), metric)
    assert [row.copy for row in rows] == [0, 1, 2, 3]
    for memory in (1 << 30, 1):  # side by side, and each in a batch of its own
        batches = make_batches(model, rows, "denoise", memory)
        assert len(batches) == (1 if memory > 1 else 4)
        tested = [Response(model, batch, metric, select(model, "heads")) for batch in batches]
        found = [[sampled(response, 4, seed) for response in tested] for seed in range(draws)]
        means = torch.stack([torch.cat([each.curvature for each in of], 1).mean(1) for of in found])
        stated = torch.stack(
            [torch.cat([each.standard_error.square() for each in of], 1).sum(1) / 16 for of in found]
        ).mean(0)
        moving = stated > 1e-14
        assert moving.sum() >= 5
        ratio = (means.var(0, correction=1) / stated)[moving].sqrt()
        # Of one component 149 degrees of freedom: the spread is known to 6 %.
        assert ratio.mean().item() == pytest.approx(1, abs=0.1)
        assert (ratio > 0.75).all()
        assert (ratio < 1.3).all()
