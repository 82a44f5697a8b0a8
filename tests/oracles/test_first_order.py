"""Attribution patching is the derivative of the exact response at 0; on a linear model it is the effect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import assay
from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.engine.batches import make_batches
from assay.engine.response import Response
from assay.sites import select
from conftest import random_pairs, wrapped
from families import TINY, VOCABULARY, tiny_tokenizer


def responses(model: assay.Model, direction: str = "denoise", metric: str = "log-prob-diff") -> list[Response]:
    pairs = random_pairs()
    chosen = METRICS[metric]
    batches = make_batches(model, encode(model, pairs, chosen), direction, 1 << 30)
    return [Response(model, batch, chosen, select(model, "heads,mlps")) for batch in batches]


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("family", TINY)
def test_slopes_equal_central_differences(family: str, direction: str) -> None:
    step = 1e-5
    for response in responses(wrapped(family), direction):
        for a in (0.0, 0.5, 1.0):
            expected = (response.value(a + step) - response.value(a - step)) / (2 * step)
            assert expected.abs().max() > 0.05, "the test would prove nothing"
            torch.testing.assert_close(response.slope(a), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", TINY)
def test_the_reversed_response_is_that_of_the_other_direction(family: str) -> None:
    """Its recordings are those of the first, yet it is what a response that records by itself is."""
    model = wrapped(family)
    for first, other in zip(responses(model), responses(model, "noise"), strict=True):
        turned = first.reversed()
        torch.testing.assert_close(turned.slope(0), other.slope(0), rtol=0, atol=1e-11)
        torch.testing.assert_close(turned.value(1), other.value(1), rtol=0, atol=1e-11)
        torch.testing.assert_close(turned.reversed().slope(0), first.slope(0), rtol=0, atol=1e-11)


@pytest.mark.parametrize("metric", ["logit-diff", "log-prob", "prob-diff"])
def test_slopes_of_every_metric(metric: str) -> None:
    step = 1e-5
    for response in responses(wrapped("gemma3"), metric=metric):
        expected = (response.value(step) - response.value(-step)) / (2 * step)
        torch.testing.assert_close(response.slope(0), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", TINY)
def test_attribution_patching_is_the_slope_at_the_base(family: str) -> None:
    """The public method, with examples put back in their order, against slopes taken one example at a time."""
    model, pairs = wrapped(family), random_pairs()
    scores = assay.attribution_patching(model, pairs, force=True)
    for example in range(len(pairs)):
        alone = assay.attribution_patching(model, pairs[example : example + 1], force=True)
        np.testing.assert_allclose(scores.values[:, example], alone.values[:, 0], rtol=0, atol=1e-11)
    step = 1e-5
    metric = METRICS["logit-diff"]
    for batch in make_batches(model, encode(model, pairs, metric), "denoise", 1 << 30):
        response = Response(model, batch, metric, select(model, "heads,mlps"))
        slope = (response.value(step) - response.value(-step)) / (2 * step)
        np.testing.assert_allclose(scores.values[:, batch.examples.tolist()], slope, rtol=1e-6, atol=1e-7)


def linear_model() -> assay.Model:
    """GPT-2 without norms and nonlinearity, attention pattern fixed (no queries): linear in every component."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=3, n_head=4, n_positions=16, activation_function="linear",
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    hf = GPT2LMHeadModel(config).eval().double()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.normal_(0, 0.3)
        for block in hf.transformer.h:
            block.attn.c_attn.weight[:, :32] = 0
            block.attn.c_attn.bias[:32] = 0
            block.ln_1 = block.ln_2 = nn.Identity()
        hf.transformer.ln_f = nn.Identity()
    return assay.load(hf.eval(), tiny_tokenizer())


def test_attribution_patching_is_exact_on_a_linear_model() -> None:
    model, pairs = linear_model(), random_pairs()
    exact = assay.activation_patching(model, pairs, force=True)
    estimate = assay.attribution_patching(model, pairs, force=True)
    assert np.abs(exact.values).max() > 0.1
    np.testing.assert_allclose(estimate.values, exact.values, rtol=0, atol=1e-11)
