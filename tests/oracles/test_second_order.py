"""The second-order methods and their rivals: on responses known in closed form, and against their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import assay
from assay.data import PromptPair, PromptPairs
from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.engine.batches import make_batches
from assay.engine.response import Response
from assay.errors import OptionError
from assay.methods import METHODS
from assay.methods.integrated_gradients import RULES, completeness_gap, integral, quadrature
from assay.methods.integrated_hessians import weights
from assay.methods.registry import method_named
from assay.sites import Component, select
from conftest import random_pairs, words, wrapped
from oracles.test_first_order import linear_model


class Curve:
    """A response that is a known function of a."""

    def __init__(self, g: Callable[[Tensor], Tensor], shape: tuple[int, int] = (3, 2)) -> None:
        torch.manual_seed(0)
        self.g = lambda a: g(a * torch.ones((), dtype=torch.float64)).expand(shape)
        self.base_values = self.value(0)

    def value(self, a: float) -> Tensor:
        return self.g(torch.tensor(a, dtype=torch.float64))

    def slope(self, a: float) -> Tensor:
        return self.slope_and_curvature(a)[0]

    def curvature(self, a: float) -> Tensor:
        return self.slope_and_curvature(a)[1]

    def slope_and_curvature(self, a: float) -> tuple[Tensor, Tensor]:
        at = torch.tensor(a, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(self.g(at)[0, 0], at, create_graph=True)
        (curvature,) = torch.autograd.grad(slope + 0 * at, at)
        return slope.detach().expand_as(self.base_values), curvature.expand_as(self.base_values)


def estimate(name: str, curve: Curve, **parameters: object) -> float:
    return method_named(name, **parameters).compute(curve, None).double()[0, 0].item()


QUADRATIC = Curve(lambda a: 2 * a - 3 * a**2 + 5)


def test_second_order_is_exact_on_a_quadratic() -> None:
    assert estimate("attribution-patching", QUADRATIC) == pytest.approx(2)
    for name, parameters in (
        ("hvp", {}),
        ("ms-hvp", {"segments": 1}),
        ("ms-hvp", {"segments": 7}),
        ("two-point", {}),
        ("integrated-gradients", {"rule": "midpoint", "steps": 1}),
        ("integrated-gradients", {"rule": "trapezoid", "steps": 2}),
        ("integrated-gradients", {"rule": "gauss-legendre", "steps": 1}),
    ):
        assert estimate(name, QUADRATIC, **parameters) == pytest.approx(-1, abs=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_integrated_hessians_count_a_quarter_of_constant_curvature(steps: int) -> None:
    assert estimate("integrated-hessians", QUADRATIC, steps=steps) == pytest.approx(2 - 6 / 4, abs=1e-12)


def test_integrated_hessians_equal_the_double_integral() -> None:
    """The formula of the docstring over a and b, by brute force, for a curvature that varies."""
    curve = Curve(lambda a: torch.sin(3 * a) + a**4)
    a, b = np.meshgrid((np.arange(400) + 0.5) / 400, (np.arange(400) + 0.5) / 400)
    expected = 3 + (a * b * (-9 * np.sin(3 * a * b) + 12 * (a * b) ** 2)).mean()
    assert estimate("integrated-hessians", curve, steps=200) == pytest.approx(expected, abs=1e-4)
    assert sum(weight for _, weight in weights(7)) == pytest.approx(0.25)


def test_errors_fall_with_the_order_of_each_rule() -> None:
    curve = Curve(lambda a: torch.exp(1.5 * a) * torch.cos(2 * a))
    truth = (curve.value(1) - curve.value(0))[0, 0].item()

    def order(name: str, key: str, few: int, many: int, **parameters: object) -> float:
        errors = [abs(estimate(name, curve, **{key: n}, **parameters) - truth) for n in (few, many)]
        return np.log(errors[0] / errors[1]) / np.log(many / few)

    assert order("ms-hvp", "segments", 10, 40) == pytest.approx(2, abs=0.2)
    for rule, expected in (("left", 1), ("right", 1), ("midpoint", 2), ("trapezoid", 2)):
        assert order("integrated-gradients", "steps", 41, 161, rule=rule) == pytest.approx(expected, abs=0.2)
    assert abs(estimate("integrated-gradients", curve, rule="gauss-legendre", steps=8) - truth) < 1e-9
    gap = completeness_gap(curve, integral(curve, "left", 4))
    expected = estimate("integrated-gradients", curve, rule="left", steps=4) - truth
    assert gap[0, 0].item() == pytest.approx(expected)


def test_quadrature_weights_sum_to_one() -> None:
    for rule in RULES:
        points = quadrature(rule, 6)
        assert len(points) == 6
        assert sum(weight for _, weight in points) == pytest.approx(1)
        assert all(0 <= a <= 1 for a, _ in points)


# On models


def response_of(model: assay.Model, pairs: PromptPairs, sites: str = "heads,mlps", source=None) -> Response:
    metric = METRICS["logit-diff"]
    (batch,) = make_batches(model, encode(model, pairs, metric), "denoise", 1 << 30)
    return Response(model, batch, metric, select(model, sites), source=source)


def scaled(model: assay.Model, pairs: PromptPairs, size: float, sites: str = "heads,mlps") -> Response:
    """The response with every delta made ``size`` times as long."""
    plain = response_of(model, pairs, sites)

    def source(_, base, site: str, layer: int) -> Tensor:
        here = base.site(site, layer)
        return here + size * (plain.source(site, layer) - here)

    return response_of(model, pairs, sites, source)


def slope_of_errors(sizes: np.ndarray, errors: np.ndarray) -> float:
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_error_of_hvp_falls_with_the_third_power_of_delta(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(1)
    sizes = np.geomspace(2e-3, 2e-2, 4)
    errors: dict[str, list[float]] = {"attribution-patching": [], "hvp": []}
    for size in sizes:
        response = scaled(model, pairs, float(size))
        exact = response.value(1) - response.base_values
        for name, found in errors.items():
            found.append((METHODS[name].compute(response, None) - exact).norm().item())
    assert slope_of_errors(sizes, np.array(errors["attribution-patching"])) == pytest.approx(2, abs=0.2)
    assert slope_of_errors(sizes, np.array(errors["hvp"])) == pytest.approx(3, abs=0.2)


def test_the_error_of_ms_hvp_falls_with_the_square_of_the_segments() -> None:
    response = scaled(wrapped("gpt2"), random_pairs(1), 0.3)
    exact = response.value(1) - response.base_values
    segments = np.array([8, 16, 32])
    errors = [(estimate_of(response, "ms-hvp", segments=int(k)) - exact).norm().item() for k in segments]
    assert slope_of_errors(segments, np.array(errors)) == pytest.approx(-2, abs=0.2)


def estimate_of(response: Response, name: str, **parameters: object) -> Tensor:
    return method_named(name, **parameters).compute(response, None)


def quadratic_model() -> assay.Model:
    """The linear model with MLPs that square: the response of anything in the last layer is a quadratic."""
    model = linear_model()
    for block in model.hf.transformer.h:
        block.mlp.act = Square().eval()
    return model


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


@pytest.mark.parametrize("sites", ["neurons-pre[2]", "residual-mid[2]", "neurons[1]", "heads[2]"])
def test_hvp_is_exact_where_the_response_is_a_quadratic(sites: str) -> None:
    model, pairs = quadratic_model(), random_pairs(3, lengths=(6,))
    exact = assay.activation_patching(model, pairs, sites=sites, force=True).values
    first = assay.attribution_patching(model, pairs, sites=sites, force=True).values
    tolerance = 1e-9 * np.abs(exact).max()
    assert np.abs(first - exact).max() > 1e-3 * np.abs(exact).max()
    for found in (
        assay.hvp(model, pairs, sites=sites, force=True),
        assay.ms_hvp(model, pairs, sites=sites, force=True, segments=3),
        assay.integrated_gradients(model, pairs, sites=sites, force=True, rule="midpoint", steps=1),
    ):
        np.testing.assert_allclose(found.values, exact, rtol=0, atol=tolerance)
    hessians = assay.integrated_hessians(model, pairs, sites=sites, force=True).values
    np.testing.assert_allclose(hessians - first, (exact - first) / 2, rtol=0, atol=tolerance)
    if sites == "neurons-pre[2]":
        # Behind the last activation everything is linear, so there the local curvature is all there is.
        local = assay.local_curvature(model, pairs, sites=sites, force=True)
        np.testing.assert_allclose(local.values, exact, rtol=0, atol=tolerance)


def test_where_the_response_bends_hard_one_step_overshoots_and_five_do_not() -> None:
    """A planted model: one neuron's activation is a steep tanh, patched across its whole bend.

    From -0.26, where the curvature of tanh(2.5 x) is largest, to 0.9, where it has turned round and died away.
    """
    model = linear_model()

    class Steep(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(2.5 * x)

    hf = model.hf
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        hf.transformer.wte.weight[1, 0], hf.transformer.wte.weight[2, 0] = 0.9, -0.26
        hf.lm_head.weight = nn.Parameter(torch.zeros_like(hf.lm_head.weight))
        hf.lm_head.weight[9, 1] = 1.0
        hf.transformer.h[1].mlp.c_fc.weight[0, 5] = 1.0
        hf.transformer.h[1].mlp.c_proj.weight[5, 1] = 1.0
        hf.transformer.h[1].mlp.act = Steep().eval()
    pairs = PromptPairs((PromptPair(words([1]), words([2]), " w9", " w8"),), metric="logit-diff")
    sites = assay.sites.neurons(model, before_activation=True).layers(1).units(5)
    found = {
        name: assay.measure(name, model, pairs, sites=sites).values.item()
        for name in ("activation-patching", "attribution-patching", "hvp", "ms-hvp")
    }
    exact = found.pop("activation-patching")
    assert exact == pytest.approx(np.tanh(2.5 * 0.9) + np.tanh(2.5 * 0.26))
    errors = {name: abs(value - exact) for name, value in found.items()}
    assert errors["hvp"] > 1.2 * errors["attribution-patching"], errors
    assert errors["ms-hvp"] < 0.5 * errors["attribution-patching"]


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3", "opt", "nemotron"])
def test_local_curvature_is_that_of_the_activation_function(family: str) -> None:
    """Its definition: the second derivative when everything behind the neuron is replaced by its tangent."""
    model, pairs = wrapped(family), random_pairs(1)
    sites = "neurons-pre[1]"
    found = assay.local_curvature(model, pairs, sites=sites, force=True).values[:, 0]
    response = response_of(model, pairs, sites + ",neurons[1]")
    half = len(response.components) // 2
    first = response.slope(0)[:half, 0]
    before = next(delta[0, :, :, 0] for site, _, delta, _ in response.deltas() if site == "neurons-pre")
    base = response.base.site("neurons-pre", 1)[0, :, :, 0]
    out = response.base.site("neurons", 1)[0, :, :, 0]
    act = {
        "llama": lambda x: nn.functional.silu(x),
        "phi3": lambda x: nn.functional.silu(x),
        "gpt2": lambda x: nn.functional.gelu(x, approximate="tanh"),
        "opt": lambda x: nn.functional.gelu(x),
        "nemotron": lambda x: nn.functional.relu(x).square(),
    }[family]
    other = out / act(base) if family in ("llama", "phi3") else torch.ones_like(out)
    step = 1e-4
    bend = (act(base + step) - 2 * act(base) + act(base - step)) / step**2 * other
    gradients = gradient_at_neurons(response)
    expected = first + (gradients * bend * before.square()).sum(0) / 2
    scale = np.abs(found).max()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6 * scale)
    assert np.abs(found - first.numpy()).max() > 1e-3 * scale


def gradient_at_neurons(response: Response) -> Tensor:
    """(T, F) by a plain hook and backward pass through the Hugging Face model."""
    model, kept = response.model, []

    def keep(_: nn.Module, args: tuple) -> tuple:
        value = args[0].detach().requires_grad_(True)
        kept.append(value)
        return (value,)

    handle = model.layers[1].neuron_output.register_forward_pre_hook(keep)
    try:
        logits = model.hf(input_ids=response.batch.base, use_cache=False).logits[0, -1]
    finally:
        handle.remove()
    answer, wrong = response.batch.targets.pair[0, 0]
    (gradient,) = torch.autograd.grad(logits[answer] - logits[wrong], kept)
    return gradient.reshape(-1, gradient.shape[-1])


@pytest.mark.parametrize("sites", ["neurons-pre", "neurons-pre@last"])
def test_local_curvature_runs_from_the_first_difference_on(sites: str) -> None:
    model, pairs = wrapped("llama"), random_pairs(3)
    found, whole = (assay.local_curvature(model, pairs, sites=sites, skip=skip, force=True) for skip in (True, False))
    np.testing.assert_allclose(found.values, whole.values, rtol=0, atol=1e-11)
    assert np.abs(whole.values).max() > 1e-3
    for passes in ("layer_tokens_forward", "layer_tokens_backward"):
        assert found.cost[passes] < whole.cost[passes]


def test_local_curvature_is_for_neurons_before_their_activation() -> None:
    with pytest.raises(OptionError, match="is defined for neurons-pre, not for heads"):
        assay.local_curvature(wrapped("llama"), random_pairs(1), sites="heads", force=True)


# Parameters


def test_parameters_are_checked_and_stored() -> None:
    model, pairs = wrapped("llama"), random_pairs(1)
    scores = assay.ms_hvp(model, pairs, segments=2, force=True)
    assert scores.configuration["segments"] == "2"
    for name, parameters, message in (
        ("ms-hvp", {"segments": 0}, "at least 1 segment"),
        ("hvp-sampled", {"probes": 1}, "must be 2 to"),
        ("hvp-sampled", {"precision": -1.0}, "relative error above 0"),
        ("integrated-gradients", {"rule": "simpson"}, "no rule"),
        ("integrated-gradients", {"rule": "trapezoid", "steps": 1}, "at least 2 steps"),
        ("integrated-hessians", {"steps": 0}, "at least 1 step"),
        ("hvp", {"steps": 3}, "--steps is only for --method integrated-gradients or integrated-hessians"),
        ("hvp", {"qk_fix": True}, "--qk-fix is only for --method atp-star"),
    ):
        with pytest.raises(OptionError, match=message):
            method_named(name, **parameters)


def test_second_order_in_half_precision_is_refused_by_name() -> None:
    model = wrapped("llama", torch.bfloat16)
    for name in ("hvp", "ms-hvp", "hvp-sampled", "integrated-hessians"):
        with pytest.raises(OptionError, match="float32"):
            assay.measure(name, model, random_pairs(1), force=True)


def test_the_papers_unit_of_cost() -> None:
    def passes(name: str, **parameters: object) -> int:
        components = [Component(layer, "heads", unit) for layer in range(10) for unit in range(10)]
        return method_named(name, **parameters).backward_passes(components, 12)

    assert passes("activation-patching") == 0
    assert passes("attribution-patching") == 1
    assert passes("hvp") == 200
    assert passes("ms-hvp", segments=5) == 1000
    assert passes("hvp-sampled", probes=8) == 9
    assert passes("integrated-gradients", steps=10) == 1000
    assert passes("integrated-gradients", rule="left", steps=10) == 901
    assert passes("atp-star") == 12
