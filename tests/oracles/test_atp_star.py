"""AtP* against its definition: the softmax written out again, and backward passes through a cut model by hooks."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import Tensor

import assay
from assay.errors import OptionError
from conftest import ids_of, random_pairs, wrapped
from families import TINY, attention_inputs
from oracles import naive

FAMILIES = ["llama", "gemma2", "gpt-neox", "gpt-oss", "granite"]


class Cut(torch.autograd.Function):
    """Lets a value through and no gradient back."""

    @staticmethod
    def forward(_, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(_, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


def gradients_by_hooks(model: assay.Model, family: str, base: list[int], pair, dropped: int | None) -> dict:
    """Gradient of the logit difference at every place of interest, with one layer's contribution cut off."""
    hf, tiny = model.hf, TINY[family]
    blocks = hf.get_submodule(tiny.layers)
    kept: dict = {}

    def leaf(key: object, value: Tensor) -> Tensor:
        value.retain_grad()
        kept[key] = value
        return value

    def keep_output(key: object, cut: bool):
        def hook(_, __, output):
            value = output[0] if isinstance(output, tuple) else output
            value = Cut.apply(leaf(key, value)) if cut else leaf(key, value)
            return (value, *output[1:]) if isinstance(output, tuple) else value

        return hook

    with ExitStack() as stack:
        first = hf.get_input_embeddings().register_forward_hook(lambda *args: args[2].detach().requires_grad_(True))
        stack.callback(first.remove)
        for layer, block in enumerate(blocks):
            for name, path in (("attention", tiny.attention), ("mlps", tiny.mlp)):
                hook = block.get_submodule(path).register_forward_hook(keep_output((name, layer), dropped == layer))
                stack.callback(hook.remove)

            def change(q, k, v, layer=layer):
                return leaf(("q", layer), q * 1), leaf(("k", layer), k * 1), leaf(("v", layer), v * 1)

            stack.enter_context(attention_inputs(hf, layer, change))
            projection = block.get_submodule(tiny.output_projection)
            hook = projection.register_forward_pre_hook(lambda _, args, layer=layer: leaf(("z", layer), args[0]))
            stack.callback(hook.remove)
        logits = hf(input_ids=torch.tensor([base]), use_cache=False).logits[0, -1]
    (answer,), (wrong,) = ids_of(pair.answer), ids_of(pair.wrong_answer)
    (logits[answer] - logits[wrong]).backward()
    for parameter in hf.parameters():
        parameter.grad = None
    zero = torch.zeros(())
    return {key: (value.grad if value.grad is not None else zero.expand_as(value))[0] for key, value in kept.items()}


def softmax_of(model: assay.Model, family: str, layer: int, q: Tensor, k: Tensor) -> Tensor:
    """(H, T, T) attention pattern written out: scores, softcap, causal and sliding mask, sinks."""
    hf, config = model.hf, model.config
    module = hf.get_submodule(TINY[family].layers)[layer].get_submodule(TINY[family].attention)
    k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    scale = {"granite": 0.3, "gemma2": 10**-0.5}.get(family, q.shape[-1] ** -0.5)
    scores = q @ k.transpose(1, 2) * scale
    if family == "gemma2":
        scores = 3.0 * torch.tanh(scores / 3.0)
    far = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])[None]
    seen = far >= 0
    if getattr(config, "layer_types", None) and config.layer_types[layer] == "sliding_attention":
        seen = seen & (far < config.sliding_window)
    weights = torch.exp(scores) * seen
    total = weights.sum(-1, keepdim=True)
    if family == "gpt-oss":
        total = total + torch.exp(module.sinks)[:, None, None]
    return (weights / total).detach()


def by_hand(model: assay.Model, family: str, pair, sites: str, qk_fix: bool, grad_drop: bool) -> np.ndarray:
    hf = model.hf
    clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
    places = naive.places(hf, tuple(sites.split(",")))
    ends = {
        place: [naive.activation(hf, family, ids, place).detach() for ids in (corrupted, clean)] for place in places
    }
    kv_heads = model.n_kv_heads
    units = {"q": model.n_heads, "k": kv_heads, "v": kv_heads}
    stacked = {
        (kind, layer): torch.stack(
            [naive.activation(hf, family, corrupted, (kind, layer, unit)).detach() for unit in range(count)]
        )
        for kind, count in units.items()
        for layer in range(model.n_layers)
    }
    total = np.zeros(len(places))
    for dropped in range(model.n_layers) if grad_drop else [None]:
        gradients = gradients_by_hooks(model, family, corrupted, pair, dropped)
        for i, (site, layer, unit) in enumerate(places):
            here, there = ends[site, layer, unit]
            if site in ("q", "k") and qk_fix:
                q, k, v = (stacked[kind, layer] for kind in "qkv")
                before = softmax_of(model, family, layer, q, k)
                moved = {"q": q.clone(), "k": k.clone()}
                moved[site][unit] = there
                after = softmax_of(model, family, layer, moved["q"], moved["k"])
                # Gradient at the pattern: of z = pattern v.
                z = gradients["z", layer].view(len(corrupted), model.n_heads, -1).transpose(0, 1)
                at_pattern = z @ v.repeat_interleave(model.n_heads // kv_heads, 0).transpose(1, 2)
                value = (at_pattern * (after - before)).sum()
            elif site in ("q", "k", "v"):
                value = (gradients[site, layer][unit] * (there - here)).sum()
            elif site == "heads":
                width = here.shape[-1]
                value = (gradients["z", layer][:, unit * width : (unit + 1) * width] * (there - here)).sum()
            else:
                value = (gradients[site, layer].reshape(here.shape) * (there - here)).sum()
            total[i] += abs(value.item())
    return total / (model.n_layers - 1 if grad_drop else 1)


@pytest.mark.parametrize(("qk_fix", "grad_drop"), [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("family", FAMILIES)
def test_atp_star_equals_its_definition(family: str, qk_fix: bool, grad_drop: bool) -> None:
    model, pairs = wrapped(family), random_pairs(2)
    sites = "heads,mlps,q,k,v"
    found = assay.atp_star(model, pairs, sites=sites, qk_fix=qk_fix, grad_drop=grad_drop, force=True)
    for i, pair in enumerate(pairs):
        expected = by_hand(model, family, pair, sites, qk_fix, grad_drop)
        assert (expected > 1e-3).mean() > 0.8
        np.testing.assert_allclose(found.values[:, i], expected, rtol=1e-9, atol=1e-9)


def test_a_saturated_query_is_mended_by_the_qk_fix() -> None:
    """Where attention is a hard choice that the patch turns round, its gradient is nothing and the fix sees it."""
    model, pairs = wrapped("gpt2"), random_pairs(1)
    with torch.no_grad():
        width = model.d_model
        model.layers[2].attention.c_attn.weight[:, : 2 * width] *= 4
    exact = np.abs(assay.activation_patching(model, pairs, sites="q[2]", force=True).values)
    errors = [
        np.abs(assay.atp_star(model, pairs, sites="q[2]", qk_fix=fix, grad_drop=False, force=True).values - exact).sum()
        for fix in (True, False)
    ]
    assert errors[0] < 0.7 * errors[1]


def test_positions_of_queries_and_keys() -> None:
    """At every position by itself: a query only moves its own row, so the sum over positions is the whole."""
    model, pairs = wrapped("llama"), random_pairs(1)
    whole = response_estimates(model, pairs, "q")
    each = response_estimates(model, pairs, "q@each")
    length = len(ids_of(pairs[0].clean))
    np.testing.assert_allclose(each.reshape(len(whole), length).sum(1), whole, rtol=0, atol=1e-9)
    keys = response_estimates(model, pairs, "k@each").reshape(-1, length)
    first = next(
        i for i, (a, b) in enumerate(zip(*map(ids_of, (pairs[0].clean, pairs[0].corrupted)), strict=True)) if a != b
    )
    assert (keys[:, :first] == 0).all()
    assert np.abs(keys[:, first:]).max() > 1e-3


def response_estimates(model: assay.Model, pairs, sites: str) -> np.ndarray:
    """Signed estimates with the QK fix, for one pair."""
    from assay.data.encoding import encode
    from assay.data.metrics import METRICS
    from assay.engine.attention_changes import changes
    from assay.engine.batches import make_batches
    from assay.engine.grad_drop import gradients_dropping
    from assay.engine.response import Response
    from assay.methods.preparation import _each_position
    from assay.sites import select

    rows = encode(model, pairs, METRICS["logit-diff"])
    (batch,) = make_batches(model, rows, "denoise", 1 << 30)
    response = Response(model, batch, METRICS["logit-diff"], _each_position(select(model, sites), rows))
    found = changes(response, through_softmax=True)
    (gradients,) = gradients_dropping(response, {change.place for change in found}, [None])
    estimates = np.zeros(len(response.components))
    for change in found:
        estimates[change.numbers] = change.products(response, gradients[change.place])[:, 0].numpy()
    return estimates


def test_what_atp_star_refuses() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    for sites in ("residual-pre", "embeddings"):
        with pytest.raises(OptionError, match="atp-star is defined for"):
            assay.atp_star(model, pairs, sites=sites, force=True)
    longer = [
        {"clean": p.clean, "corrupted": p.corrupted, "answer": p.answer + " w3", "wrong_answer": p.wrong_answer + " w4"}
        for p in pairs
    ]
    with pytest.raises(OptionError, match="a row for each of its two answers"):
        assay.atp_star(model, longer, metric="log-prob-diff", force=True)
    scores = assay.atp_star(model, longer, metric="log-prob", force=True)
    assert not scores.signed
    assert (scores.importance >= 0).all()
    noise = assay.atp_star(model, pairs, direction="noise", force=True)
    assert (noise.importance >= 0).all()


def test_what_is_said_of_unsigned_scores() -> None:
    from assay.report import words

    scores = assay.atp_star(wrapped("llama"), random_pairs(2), force=True)
    assert "absolute effect of each pair, without a sign" in words.meaning(scores)
    assert not words.has_shares(scores)
