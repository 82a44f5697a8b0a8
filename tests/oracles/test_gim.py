"""GIM and its relatives as methods: source - base times a gradient that was modified by other means; planted models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import assay
from assay import RuleSet
from assay.errors import OptionError
from assay.methods.hvp import METHOD as HVP
from assay.methods.method import under
from assay.methods.registry import METHODS, method_named
from assay.model.attention import AttentionRules, attend
from assay.model.backward import PRESETS
from conftest import ids_of, random_pairs, wrapped
from families import VOCABULARY, tiny_tokenizer
from oracles import naive


class Half(torch.autograd.Function):
    @staticmethod
    def forward(_, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_, gradient: Tensor) -> Tensor:
        return gradient / 2


class Tempered(torch.autograd.Function):
    """Softmax at temperature 1, and the gradient by the pattern at temperature 2."""

    @staticmethod
    def forward(ctx, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        return torch.softmax(scores, -1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        weights = torch.exp(ctx.saved_tensors[0] / 2)
        pattern = weights / weights.sum(-1, keepdim=True)
        return pattern * gradient - pattern * (pattern * gradient).sum(-1, keepdim=True)


def gim_llama(hf, ids: list[int], place: naive.Place) -> tuple[Tensor, Tensor]:
    """A Llama written out with GIM's gradients: last logits, and what stands at a head's or MLP's place."""
    inner, config = hf.model, hf.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    kept = []

    def keep(site: str, layer: int, unit: int | None, value: Tensor) -> Tensor:
        if (site, layer, unit) == place:
            kept.append(value)
        return value

    def norm(module: nn.Module, x: Tensor) -> Tensor:
        return module.weight * x * torch.rsqrt((x.detach() ** 2).mean(-1, keepdim=True) + module.variance_epsilon)

    x = inner.embed_tokens(torch.tensor(ids)).detach().requires_grad_(True)
    cos, sin = inner.rotary_emb(x[None], torch.arange(len(ids))[None])

    def rotate(y: Tensor) -> Tensor:
        first, second = y.chunk(2, -1)
        return y * cos[0] + torch.cat([-second, first], -1) * sin[0]

    for number, layer in enumerate(inner.layers):
        normed = norm(layer.input_layernorm, x)
        q, k, v = (
            projection(normed).view(len(ids), count, -1).transpose(0, 1)
            for projection, count in zip(
                (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                (heads, kv_heads, kv_heads), strict=True,
            )
        )  # fmt: skip
        q, k = rotate(q), rotate(k).repeat_interleave(heads // kv_heads, 0)
        scores = Half.apply(q @ k.transpose(1, 2)) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones(len(ids), len(ids)).triu(1).bool(), -1e30)
        z = Half.apply(Tempered.apply(scores) @ v.repeat_interleave(heads // kv_heads, 0))
        z = torch.stack([keep("heads", number, head, z[head]) for head in range(heads)])
        x = x + layer.self_attn.o_proj(z.transpose(0, 1).flatten(1))
        normed = norm(layer.post_attention_layernorm, x)
        gate, up = layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)
        x = x + keep("mlps", number, None, layer.mlp.down_proj(Half.apply(gate * torch.sigmoid(gate) * up)))
    return hf.lm_head(norm(inner.norm, x))[-1], kept[0]


def test_gim_is_the_difference_times_a_gradient_written_out() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    found = assay.gim(model, pairs, force=True)
    assert not found.estimates_effect
    for i, pair in enumerate(pairs):
        (answer,), (wrong,) = ids_of(pair.answer), ids_of(pair.wrong_answer)
        clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
        for place, value in zip(naive.places(model.hf), found.values[:, i], strict=True):
            logits, at = gim_llama(model.hf, corrupted, place)
            torch.testing.assert_close(logits, naive.logits_of(model.hf, corrupted)[-1], rtol=0, atol=1e-11)
            (gradient,) = torch.autograd.grad(logits[answer] - logits[wrong], at)
            there, here = (naive.activation(model.hf, "llama", ids, place) for ids in (clean, corrupted))
            expected = (gradient * (there - here).reshape(gradient.shape)).sum().item()
            assert value == pytest.approx(expected, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_gim_is_attribution_patching_under_its_rules(direction: str) -> None:
    model, pairs = wrapped("gemma2"), random_pairs()
    gim = assay.gim(model, pairs, direction=direction, force=True)
    same = assay.attribution_patching(model, pairs, rules="gim", direction=direction, force=True)
    np.testing.assert_array_equal(gim.values, same.values)
    plain = assay.attribution_patching(model, pairs, direction=direction, force=True)
    explicit = assay.attribution_patching(model, pairs, rules="plain", direction=direction, force=True)
    np.testing.assert_array_equal(plain.values, explicit.values)
    assert plain.configuration == explicit.configuration
    assert "rules" not in plain.configuration
    assert plain.estimates_effect
    assert np.abs(gim.values - plain.values).max() > 0.1
    assert gim.sign == plain.sign
    for scores in (gim, same):
        assert not scores.estimates_effect
        assert scores.configuration["rules"] == "gim"
        assert scores.configuration["backward_rules"]["temperature"] == 2


def test_every_first_order_method_takes_rules_and_they_matter() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    takers = ("attribution-patching", "integrated-gradients", "two-point", "atp-star")
    for name in takers:
        plain = assay.measure(name, model, pairs, force=True)
        ruled = assay.measure(method_named(name, rules="gim"), model, pairs, force=True)
        assert not ruled.estimates_effect
        assert np.abs(plain.values - ruled.values).max() > 0.1, name
        assert ruled.baseline.clean.tolist() == plain.baseline.clean.tolist()
    for name in set(METHODS) - set(takers):
        with pytest.raises(OptionError, match="--rules is only for --method"):
            method_named(name, rules="gim")


def test_methods_for_which_rules_mean_nothing_refuse_them() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    for name in ("hvp", "ms-hvp", "hvp-sampled", "integrated-hessians", "local-curvature"):
        with pytest.raises(OptionError, match=f"{name} takes second derivatives. Under backward rules"):
            assay.measure(under(METHODS[name], "gim"), model, pairs, sites="neurons-pre", force=True)
    for name in ("direct-effect", "zero-ablation", "activation-patching"):
        with pytest.raises(OptionError, match=f"{name} takes no gradients through the layers"):
            assay.measure(replace(METHODS[name], rules=PRESETS["gim"].rules), model, pairs, force=True)
    assert under(HVP, "plain") is HVP


# Planted models


def test_two_keys_that_hold_the_same() -> None:
    """Each makes up for the other, so a score's own gradient all but vanishes; removing both does away with the effect.

    Keys 0 and 1 have value 1 and most of the pattern, key 2 has value 1/2 and a twentieth, ten others have nothing.
    """
    pattern = torch.tensor([0.47, 0.47, 0.05] + [0.001] * 10, dtype=torch.float64)
    values = torch.tensor([1, 1, 0.5] + [0.0] * 10, dtype=torch.float64)

    def effect(*removed: int) -> float:
        left = pattern.clone()
        left[list(removed)] = 0
        return (pattern @ values - (left / left.sum()) @ values).item()

    def score_gradients(temperature: float) -> Tensor:
        q, mask = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, 13, dtype=torch.float64)
        k = pattern.log().view(1, 1, 13, 1).clone().requires_grad_(True)  # q is 1, so keys are their scores
        z = attend(q, k, values.view(1, 1, 13, 1), mask, 1.0, rules=AttentionRules(temperature))
        return torch.autograd.grad(z.sum(), k)[0].flatten()

    plain, tempered = score_gradients(1), score_gradients(2)
    assert plain[0].abs() < 0.02
    assert abs(plain[0]) < abs(plain[2]), "the plain gradient ranks the single key first"
    assert tempered[0] > 4 * plain[0]
    assert abs(tempered[0]) > 2 * abs(tempered[2])
    assert max(abs(effect(0)), abs(effect(2))) < effect(0, 1) / 10, "alone neither key matters, together they do"


def planted(heads: int, tokens: int, norm: nn.Module | None = None) -> GPT2LMHeadModel:
    """Attention alone, without norms; token i is embedded as the i-th axis, answers are read from the last two axes."""
    width = 4 * heads
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=width, n_layer=1, n_head=heads, n_positions=8, n_inner=4,
        bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    hf = GPT2LMHeadModel(config).double()
    hf.transformer.h[0].ln_1 = hf.transformer.h[0].ln_2 = nn.Identity()
    hf.transformer.ln_f = nn.Identity() if norm is None else norm.double()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if "ln_f" not in name:
                parameter.zero_()
        for token in range(tokens):
            hf.transformer.wte.weight[token, token] = 1
            hf.lm_head.weight[42, token] = 1  # so that no prompt has logits of nothing but zeros
        hf.lm_head.weight[40, width - 2] = hf.lm_head.weight[40, width - 1] = 1  # token 40 is the answer
    return hf.eval()


def test_a_saturated_softmax() -> None:
    """Head 0 turns from one key to the other as a whole; the other heads lean a little. AtP ranks it last.

    Prompts are key 0, key 1, then the token that asks: 2 (clean) wants key 0, 3 (corrupted) wants key 1. Only key 0
    has a value.
    """
    hf = planted(heads=4, tokens=4)
    width, attention = 16, hf.transformer.h[0].attn
    with torch.no_grad():
        query, key, value = (attention.c_attn.weight[:, part * width : (part + 1) * width] for part in range(3))
        for head, strength in enumerate([8.0, 0.2, 0.2, 0.2]):
            at = 4 * head
            query[2, at], query[3, at] = strength, -strength
            key[0, at], key[1, at] = 1, -1  # a difference of 2 strengths, by 1 / sqrt(4)
            attention.c_attn.bias[at + 1] = 40
            key[2, at + 1] = key[3, at + 1] = -40  # nobody attends to the token that asks
            value[0, at] = 1
            attention.c_proj.weight[at, 14] = 1
    model = assay.load(hf, tiny_tokenizer())
    pairs = assay.PromptPairs((assay.PromptPair("w0 w1 w2", "w0 w1 w3", " w40", " w41"),), metric="logit-diff")
    options = {"sites": "q", "force": True}
    exact = assay.activation_patching(model, pairs, **options).importance
    assert exact.argmax() == 0
    assert exact[0] > 5 * exact[1]
    assert assay.attribution_patching(model, pairs, **options).importance.argmin() == 0, "AtP misses it"
    gim = assay.gim(model, pairs, **options).importance
    fixed = assay.atp_star(model, pairs, grad_drop=False, **options).importance
    assert gim.argmax() == fixed.argmax() == 0
    assert fixed[0] == pytest.approx(exact[0], rel=1e-6)
    without = assay.attribution_patching(model, pairs, rules="gim-without-temperature", **options).importance
    assert without.argmin() == 0, "it is the temperature that finds it"


def test_a_norm_that_hides_what_is_removed() -> None:
    """Heads 0 and 1 both write the answer, and the norm makes up for either; head 2 writes a little elsewhere."""
    hf = planted(heads=3, tokens=2, norm=LlamaRMSNorm(12))
    width, attention = 12, hf.transformer.h[0].attn
    with torch.no_grad():
        value = attention.c_attn.weight[:, 2 * width :]
        for head, (amount, axis) in enumerate([(5.0, 10), (5.0, 10), (0.1, 11)]):
            value[0, 4 * head] = 1  # only the clean token has a value
            attention.c_proj.weight[4 * head, axis] = amount
    model = assay.load(hf, tiny_tokenizer())
    pairs = assay.PromptPairs((assay.PromptPair("w0", "w1", " w40", " w41"),), metric="logit-diff")
    options = {"sites": "heads", "direction": "noise", "force": True}
    exact = assay.activation_patching(model, pairs, **options).importance
    assert (np.abs(exact[:2]) < np.abs(exact[2])).all(), "alone, each is made up for"
    plain = np.abs(assay.attribution_patching(model, pairs, **options).importance)
    assert plain.argmax() == 2
    rules = RuleSet(freeze_norms=True)
    frozen = assay.attribution_patching(model, pairs, rules=rules, **options).importance
    assert frozen[0] == frozen[1] > 10 * frozen[2] > 0
    assert assay.gim(model, pairs, **options).importance.argmax() in (0, 1)

    def logit(removed: tuple[int, ...]) -> float:
        def cut(_, args):
            z = args[0].clone()
            for head in removed:
                z[..., 4 * head : 4 * head + 4] = 0
            return (z,)

        handle = attention.c_proj.register_forward_pre_hook(cut)
        found = naive.logits_of(hf, [0])[-1, 40].item()
        handle.remove()
        return found

    assert logit(()) - logit((0, 1)) > 10 * abs(logit(()) - logit((2,))), "removing both shows what they do"
