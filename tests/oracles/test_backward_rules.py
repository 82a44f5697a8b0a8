"""Backward passes written out by hand, in float64, against autograd under each rule."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import assay
from assay import RuleSet
from assay.model.attention import AttentionRules, attend
from assay.model.backward.parts import find_parts
from conftest import wrapped
from families import TINY

EXACT = {"rtol": 0, "atol": 1e-12}
BATCH, HEADS, KV_HEADS, POSITIONS, WIDTH = 2, 4, 2, 5, 3
SCALING, SOFTCAP = 0.7, 1.5
RULES = [
    AttentionRules(temperature, query_key, pattern_value, constant)
    for temperature, query_key, pattern_value, constant in itertools.product(
        (1.0, 2.0, 0.5), (1.0, 2.0), (1.0, 2.0), (False, True)
    )
]


def attention_by_hand(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, softcap: float | None, back: Tensor, rules: AttentionRules
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, one query at a time; ``back`` is the gradient (B, T, H, D) at the head outputs."""
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for b, h, t in itertools.product(range(BATCH), range(HEADS), range(POSITIONS)):
        kv = h // (HEADS // KV_HEADS)
        keys = k[b, kv, : t + 1]
        raw = keys @ q[b, h, t] * SCALING
        capped = raw if softcap is None else softcap * torch.tanh(raw / softcap)

        def softmax(temperature: float, scores: Tensor = capped, head: int = h) -> Tensor:
            every = scores if sinks is None else torch.cat([scores, sinks[head : head + 1]])
            return torch.softmax(every / temperature, 0)

        dz = back[b, t, h] / rules.pattern_value_divisor
        dv[b, kv, : t + 1] += softmax(1)[: t + 1, None] * dz
        if rules.constant_pattern:
            continue
        dp = v[b, kv, : t + 1] @ dz
        if sinks is not None:
            dp = torch.cat([dp, torch.zeros(1, dtype=dp.dtype)])
        p = softmax(rules.temperature)
        ds = (p * (dp - (dp * p).sum()))[: t + 1]
        if softcap is not None:
            ds = ds * (1 - torch.tanh(raw / softcap) ** 2)
        ds = ds * SCALING / rules.query_key_divisor
        dq[b, h, t] += ds @ keys
        dk[b, kv, : t + 1] += ds[:, None] * q[b, h, t]
    return dq, dk, dv


def attention_inputs() -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = (HEADS, KV_HEADS, KV_HEADS)
    qkv = [torch.randn(BATCH, heads, POSITIONS, WIDTH, dtype=torch.float64, requires_grad=True) for heads in shapes]
    mask = torch.full((POSITIONS, POSITIONS), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
    sinks = torch.randn(HEADS, dtype=torch.float64)
    return qkv, mask.expand(BATCH, 1, -1, -1), sinks, torch.randn(BATCH, POSITIONS, HEADS, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_attention(rules: AttentionRules, with_sinks: bool, softcap: float | None) -> None:
    """With grouped queries, softcap and sinks."""
    qkv, mask, sinks, back = attention_inputs()
    sinks_or_none = sinks if with_sinks else None
    plain = attend(*qkv, mask, SCALING, softcap, sinks_or_none)
    found = attend(*qkv, mask, SCALING, softcap, sinks_or_none, rules)
    assert torch.equal(plain, found)
    gradients = torch.autograd.grad(found, qkv, back, allow_unused=rules.constant_pattern)
    expected = attention_by_hand(*(x.detach() for x in qkv), sinks_or_none, softcap, back, rules)
    for gradient, by_hand in zip(gradients, expected, strict=True):
        torch.testing.assert_close(torch.zeros_like(by_hand) if gradient is None else gradient, by_hand, **EXACT)


def test_a_temperature_that_tends_to_one_gives_the_derivative() -> None:
    qkv, mask, sinks, back = attention_inputs()
    expected = torch.autograd.grad(attend(*qkv, mask, SCALING, SOFTCAP, sinks), qkv, back)
    almost_one = AttentionRules(temperature=math.nextafter(1, 2))
    found = torch.autograd.grad(attend(*qkv, mask, SCALING, SOFTCAP, sinks, almost_one), qkv, back)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


SHIFTED = ("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm", "NemotronLayerNorm1P")
"""Norms whose weights are kept less 1."""
WITH_QK_NORMS = {"qwen3", "qwen3-moe", "gemma3", "phi", "olmo2", "olmo3", "cohere", "stablelm", "llama4"}


@pytest.mark.parametrize("family", TINY)
def test_norms(family: str) -> None:
    """d -> w * d * s, less the mean of it for layer norms: every norm of every family, at every size of its input."""
    model = wrapped(family)
    parts = find_parts(model)
    assert len(parts.norms) > 3
    assert bool(parts.qk_norms) == (family in WITH_QK_NORMS)
    torch.manual_seed(0)
    with assay.backward_rules(model, RuleSet(freeze_norms=True, freeze_qk_norms=True)):
        for name, norm in parts.norms + parts.qk_norms:
            kind = type(norm).__name__
            weight = getattr(norm, "weight", None)
            w = torch.ones(model.d_model, dtype=torch.float64) if weight is None else weight.detach()
            w = w + 1 if kind in SHIFTED else w
            eps = next(getattr(norm, key) for key in ("eps", "variance_epsilon") if hasattr(norm, key)) if (
                kind != "OlmoLayerNorm"
            ) else 1e-5  # fmt: skip
            x = (torch.randn(3, 2, *w.shape, dtype=torch.float64) * 2 + 1).requires_grad_(True)
            back = torch.randn(3, 2, *w.shape, dtype=torch.float64)
            (found,) = torch.autograd.grad(norm(x), x, back)
            at = x.detach()
            if "LayerNorm" in kind:
                centred = at - at.mean(-1, keepdim=True)
                expected = back * w / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
                expected = expected - expected.mean(-1, keepdim=True)
            else:
                expected = back * w / torch.sqrt((at**2).mean(-1, keepdim=True) + eps)
            torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}", **EXACT)


MLP_RULES = [
    RuleSet(),
    RuleSet(divide=("gate-up",)),
    RuleSet(activation="identity"),
    RuleSet(divide=("gate-up",), activation="identity"),
]


def silu_and_slope(x: Tensor, rules: RuleSet) -> tuple[Tensor, Tensor]:
    sigmoid = 1 / (1 + torch.exp(-x))
    slope = sigmoid if rules.activation == "identity" else sigmoid * (1 + x * (1 - sigmoid))
    return x * sigmoid, slope


def gated_by_hand(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, back: Tensor, rules: RuleSet
) -> tuple[Tensor, Tensor]:
    """The value and x's gradient of down(silu(gate) * up)."""
    gate, up = x @ w_gate.T, x @ w_up.T
    activated, slope = silu_and_slope(gate, rules)
    dproduct = back @ w_down / (2 if "gate-up" in rules.divide else 1)
    dgate, dup = dproduct * up * slope, dproduct * activated
    return (activated * up) @ w_down.T, dgate @ w_gate + dup @ w_up


@pytest.mark.parametrize("rules", MLP_RULES, ids=lambda rules: str(rules))
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_gated_mlp(family: str, rules: RuleSet) -> None:
    """Apart and fused. The input has a zero in it, where f(x) / x is 0 / 0."""
    model = wrapped(family)
    mlp = model.layers[1].mlp
    torch.manual_seed(0)
    x = torch.randn(3, model.d_model, dtype=torch.float64)
    x[0] = 0
    x.requires_grad_(True)
    back = torch.randn(3, model.d_model, dtype=torch.float64)
    with assay.backward_rules(model, rules):
        value = mlp(x.unsqueeze(0))[0]
    (found,) = torch.autograd.grad(value, x, back)
    if family == "phi3":
        w_gate, w_up = mlp.gate_up_proj.weight.detach().chunk(2)
    else:
        w_gate, w_up = mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()
    expected_value, expected = gated_by_hand(x.detach(), w_gate, w_up, mlp.down_proj.weight.detach(), back, rules)
    torch.testing.assert_close(value.detach(), expected_value, **EXACT)
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("rules", MLP_RULES, ids=lambda rules: str(rules))
def test_experts(rules: RuleSet) -> None:
    """Gate and up of every expert are divided; the weights of routing multiply undivided."""
    model = wrapped("mixtral")
    mlp = model.layers[1].mlp
    torch.manual_seed(0)
    x = torch.randn(4, model.d_model, dtype=torch.float64, requires_grad=True)
    back = torch.randn(4, model.d_model, dtype=torch.float64)
    with assay.backward_rules(model, rules):
        value = mlp(x.unsqueeze(0))
    (found,) = torch.autograd.grad(value[0], x, back)
    router, gate_up, down = (
        weight.detach() for weight in (mlp.gate.weight, mlp.experts.gate_up_proj, mlp.experts.down_proj)
    )
    for token in range(4):
        at = x[token].detach()
        chosen = torch.softmax(router @ at, 0).topk(2).indices
        weights = torch.softmax((router @ at)[chosen], 0)  # of the chosen ones alone: the others' share cancels
        expected, dweights = torch.zeros_like(at), []
        for weight, expert in zip(weights, chosen, strict=True):
            w_gate, w_up = gate_up[expert].chunk(2)
            output, dx = gated_by_hand(at[None], w_gate, w_up, down[expert], weight * back[token][None], rules)
            expected += dx[0]
            dweights.append(output[0] @ back[token])
        dlogits = weights * (torch.stack(dweights) - (weights * torch.stack(dweights)).sum())
        torch.testing.assert_close(found[token], expected + dlogits @ router[chosen], **EXACT)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss", "gpt2", "olmo2"])
def test_all_rules_off_is_the_plain_gradient_of_the_model_itself(family: str) -> None:
    model = wrapped(family)
    ids = torch.tensor([[1, 5, 9, 2, 30, 7]])
    embeddings = model.hf.get_input_embeddings()(ids).detach().requires_grad_(True)

    def gradient() -> Tensor:
        logits = model.hf(inputs_embeds=embeddings, use_cache=False).logits
        return torch.autograd.grad(logits[0, -1, 3], embeddings)[0]

    expected = gradient()
    for rules in (RuleSet(), RuleSet(temperature=1, divide=()), "plain"):
        with assay.backward_rules(model, rules):
            found = gradient()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12 * expected.abs().max().item())
