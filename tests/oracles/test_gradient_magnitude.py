"""Gradient magnitude against a loop of torch.autograd.grad over a textbook forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.audit import gradient_magnitude
from assay.data import PromptPairs
from assay.errors import ModelError
from assay.sites import Component
from conftest import ids_of, random_pairs, wrapped
from families import CHANGES, HEADS, LAYERS, TINY, tiny_model

NO_EXPERTS = [name for name in TINY if TINY[name].neurons_after is not None]
VALUE = {
    "gpt2": ("attn.c_attn", "fused"),
    "gpt-neox": ("attention.query_key_value", "by head"),
    "gpt-neox-sequential": ("attention.query_key_value", "by head"),
    "phi3": ("self_attn.qkv_proj", "fused"),
}


def loss_of(hf, pairs: PromptPairs) -> Tensor:
    losses = []
    for pair in pairs:
        answer = ids_of(pair.answer)
        ids = torch.tensor([ids_of(pair.clean) + answer[:-1]])
        log_probs = hf(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        losses += [-log_probs[len(ids_of(pair.clean)) - 1 + i, token] for i, token in enumerate(answer)]
    return torch.stack(losses).mean()


def value_rows(family: str, hf, block) -> tuple[torch.nn.Parameter, bool, list[slice]]:
    """The matrix that makes values, whether it is (in, out), and the outputs of each key-value head."""
    path, layout = VALUE.get(family, ("self_attn.v_proj", "own"))
    weight = block.get_submodule(path).weight
    is_conv = family == "gpt2"
    width = block.get_submodule(TINY[family].output_projection).weight.numel() // hf.config.hidden_size // heads(hf)
    outputs = weight.shape[1 if is_conv else 0]
    if layout == "by head":
        starts = range(2 * width, outputs, 3 * width)
    elif layout == "fused":
        kv = (outputs // width - heads(hf)) // 2
        starts = range((heads(hf) + kv) * width, outputs, width)
    else:
        starts = range(0, outputs, width)
    return weight, is_conv, [slice(start, start + width) for start in starts]


def heads(hf) -> int:
    return hf.config.num_attention_heads


def by_hand(family: str, hf, pairs: PromptPairs, component: Component) -> float:
    """A query head's values get their gradient through it alone: all other heads see them detached."""
    block = hf.get_submodule(TINY[family].layers)[component.layer]
    if component.site == "mlps":
        (gradient,) = torch.autograd.grad(loss_of(hf, pairs), block.get_submodule(TINY[family].neurons_after).weight)
        return float(gradient.norm() / gradient.numel() ** 0.5)

    def only_this(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        alone = value.detach().clone()
        alone[:, component.unit] = value[:, component.unit]
        return query, key, alone

    weight, is_conv, rows = value_rows(family, hf, block)
    output = block.get_submodule(TINY[family].output_projection).weight
    group = heads(hf) // len(rows)
    mine = rows[component.unit // group]
    CHANGES.setdefault(component.layer, []).append(only_this)
    try:
        of_value, of_output = torch.autograd.grad(loss_of(hf, pairs), [weight, output])
    finally:
        CHANGES[component.layer].remove(only_this)
    width = mine.stop - mine.start
    columns = slice(component.unit * width, (component.unit + 1) * width)
    parts = [of_value[:, mine] if is_conv else of_value[mine], of_output[columns] if is_conv else of_output[:, columns]]
    flat = torch.cat([part.flatten() for part in parts])
    return float(flat.norm() / flat.numel() ** 0.5)


@pytest.mark.parametrize("family", NO_EXPERTS)
def test_magnitudes_equal_a_loop_of_autograd(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(4)
    found, _ = gradient_magnitude(model, pairs, batches=2)
    hf = tiny_model(family)  # of its own, so that nothing is shared
    components = [Component(layer, "heads", head) for layer in range(LAYERS) for head in range(heads(hf))]
    components += [Component(layer, "mlps") for layer in range(LAYERS)]
    expected = [[by_hand(family, hf, pairs[part], c) for part in (slice(0, 2), slice(2, 4))] for c in components]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_parts_of_a_group_add_up_to_the_shared_gradient() -> None:
    """Otherwise "through that head only" would leave something out."""
    model, pairs = wrapped("llama"), random_pairs(4)
    from assay.audit.gradient_magnitude import WeightGradients
    from assay.data.encoding import encode
    from assay.data.metrics import METRICS
    from assay.sites import select

    gradients = WeightGradients(model, select(model, "heads"))
    sums: dict[object, Tensor] = {}
    original = gradients._magnitude
    gradients._magnitude = lambda component, found: sums.update(found) or original(component, found)  # type: ignore[method-assign]
    gradients.magnitudes(encode(model, pairs, METRICS["log-prob"]), 1 << 30)
    for layer in range(LAYERS):
        weight = model.layers[layer].attention.v_proj.weight
        (whole,) = torch.autograd.grad(loss_of(model.hf, pairs), weight)
        parts = [sums[id(weight), g] for g in range(HEADS // 2)]
        torch.testing.assert_close(sum(parts), whole, rtol=1e-9, atol=1e-12)
        assert parts[0].norm() > 0.05 * whole.norm()


def test_answers_of_several_tokens_and_all_weights_of_an_mlp() -> None:
    from assay.data import PromptPair

    model, hf = wrapped("llama"), tiny_model("llama")
    pairs = PromptPairs((PromptPair("w3 w4 w9", "w3 w5 w9", " w7 w8", " w9 w11"),
                         PromptPair("w3 w4 w9 w2", "w3 w5 w9 w2", " w7", " w9")))  # fmt: skip
    found, _ = gradient_magnitude(model, pairs, sites="mlps", batches=1, mlp_weights="all")
    for layer, block in enumerate(hf.model.layers):
        gradients = torch.autograd.grad(loss_of(hf, pairs), list(block.mlp.parameters()))
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        assert found[layer, 0] == pytest.approx(float(flat.norm() / flat.numel() ** 0.5), rel=1e-9)


def test_memory_changes_nothing_and_the_model_is_left_as_it_was() -> None:
    model, pairs = wrapped("gemma2"), random_pairs(5)
    frozen = next(model.hf.parameters())
    frozen.requires_grad_(False)
    before = [parameter.requires_grad for parameter in model.hf.parameters()], model.weight_hash
    found, _ = gradient_magnitude(model, pairs, batches=1)
    small, _ = gradient_magnitude(model, pairs, batches=1, memory="16M")
    np.testing.assert_allclose(small, found, rtol=1e-9)
    assert before == ([parameter.requires_grad for parameter in model.hf.parameters()], model.weight_hash)
    assert all(parameter.grad is None for parameter in model.hf.parameters())


def test_experts_are_refused_and_their_heads_are_not() -> None:
    model, pairs = wrapped("mixtral"), random_pairs(2)
    with pytest.raises(ModelError, match="experts"):
        gradient_magnitude(model, pairs)
    found, _ = gradient_magnitude(model, pairs, sites="heads")
    assert (found > 0).all()
