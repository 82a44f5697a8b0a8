"""What somebody did to a model, before or after loading it, must be in the numbers or be refused; never ignored."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, Qwen2Config, Qwen2ForCausalLM
from transformers.masking_utils import eager_mask

import assay
from assay.data import PromptPair
from assay.errors import DataError, InterventionError, ModelError
from conftest import ids_of, random_pairs, wrapped
from families import _oracle_attention, tiny_tokenizer
from oracles import naive
from oracles.test_exact_effects import naive_effects


def edit_first(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
    changed = output.clone()
    changed[:, 0] = changed[:, 0].flip(-1)
    return changed


def double(_: object, __: object, output: object) -> object:
    if isinstance(output, torch.Tensor):
        return output * 2
    name = "logits" if "logits" in output else "last_hidden_state"
    output[name] = output[name] * 2
    return output


def mix_positions(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
    return output + output.mean(1, keepdim=True)


def cold(module, query, key, value, mask, scaling=None, **kwargs):
    return _oracle_attention(module, query, key, value, mask, scaling=2 * scaling, **kwargs)


AttentionInterface.register("cold", cold)
AttentionMaskInterface.register("cold", eager_mask)


def patch_forward(model: assay.Model) -> None:
    head = model.hf.lm_head
    normal = head.forward
    head.forward = lambda x: normal(x) * 2


CHANGES = {
    "final norm, first position": lambda model: model.final_norm.register_forward_hook(edit_first),
    "head, first position": lambda model: model.hf.lm_head.register_forward_hook(edit_first),
    "head doubled": lambda model: model.hf.lm_head.register_forward_hook(double),
    "head forward replaced": patch_forward,
    "inner model doubled": lambda model: model.hf.base_model.register_forward_hook(double),
    "whole model doubled": lambda model: model.hf.register_forward_hook(double),
    "other attention": lambda model: model.hf.set_attn_implementation("cold"),
    "embeddings mixed": lambda model: model.embedding.register_forward_hook(mix_positions),
    "layer mixed": lambda model: model.layers[0].module.register_forward_hook(mix_positions),
    "a batch entry": lambda model: model.layers[1].module.register_forward_hook(
        lambda _, __, output: torch.cat([output[:1] * 2, output[1:]])
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_changes_after_loading_are_in_the_numbers_or_refused(family: str, change: str) -> None:
    model, pairs = wrapped(family), random_pairs()
    CHANGES[change](model)
    try:
        scores = assay.activation_patching(model, pairs, force=True)
    except InterventionError:
        assert change in ("inner model doubled", "whole model doubled", "other attention", "a batch entry")
        return
    expected = naive_effects(model, family, pairs, "denoise")
    np.testing.assert_allclose(scores.values, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("change", ["embeddings mixed", "layer mixed", "final norm, first position", "head doubled"])
def test_slopes_see_the_changes_too(change: str) -> None:
    family, step = "llama", 1e-5
    model = wrapped(family)
    pairs = random_pairs(2)
    CHANGES[change](model)
    estimate = assay.attribution_patching(model, pairs, force=True)
    for place, slopes in zip(naive.places(model.hf), estimate.values, strict=True):
        for pair, slope in zip(pairs, slopes, strict=True):
            clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
            base, source = (naive.activation(model.hf, family, ids, place) for ids in (corrupted, clean))
            (answer,), (wrong,) = ids_of(pair.answer), ids_of(pair.wrong_answer)

            def value(a: float, place=place, base=base, source=source, corrupted=corrupted, answer=answer, wrong=wrong):
                logits = naive.patched_logits(model.hf, family, corrupted, place, base + a * (source - base))[-1]
                return (logits[answer] - logits[wrong]).item()

            assert slope == pytest.approx((value(step) - value(-step)) / (2 * step), rel=1e-5, abs=1e-6)


def test_a_hook_on_every_module_is_seen() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)

    def hook(module: object, _: object, output: object) -> object:
        return output * 2 if module is model.hf.lm_head else None

    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        scores = assay.activation_patching(model, pairs, force=True)
        np.testing.assert_allclose(scores.values, naive_effects(model, "llama", pairs, "denoise"), rtol=0, atol=1e-9)
    finally:
        handle.remove()


def test_attention_that_is_not_causal_is_refused() -> None:
    config = Qwen2Config(
        vocab_size=48, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, use_sliding_window=True, sliding_window=3, layer_types=["sliding_attention"] * 3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = assay.load(Qwen2ForCausalLM(config).eval(), tiny_tokenizer())
    model.hf.config.is_causal = False
    with pytest.raises(InterventionError, match="does not attend causally"):
        assay.activation_patching(model, random_pairs(), force=True)
    with pytest.raises(ModelError, match="both directions"):
        assay.load(model.hf, model.tokenizer)


def test_what_would_spoil_precision_or_gradients_is_refused() -> None:
    model, pairs = wrapped("llama", torch.float32), random_pairs(2)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ModelError, match="autocast"):
        assay.activation_patching(model, pairs, force=True)
    with torch.inference_mode(), pytest.raises(ModelError, match="inference_mode"):
        assay.attribution_patching(model, pairs, force=True)
    outside = assay.attribution_patching(model, pairs, force=True)
    with torch.no_grad():
        inside = assay.attribution_patching(model, pairs, force=True)
    assert (inside.values == outside.values).all()


def test_logits_that_nobody_reads_must_be_finite_for_exact_match() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    with torch.no_grad():
        model.unembedding.weight[47] = float("nan")
    with pytest.raises(DataError, match="not finite"):
        assay.activation_patching(model, pairs, metric="exact-match", force=True)


def test_threads_take_turns_on_a_model() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    expected = assay.activation_patching(model, pairs, force=True).values
    found: list[np.ndarray] = []

    def work() -> None:
        for _ in range(3):
            found.append(assay.activation_patching(model, pairs, force=True).values)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 9
    assert all((values == expected).all() for values in found)
    assert model.hf.config._attn_implementation == "oracle"


def test_a_mean_is_over_distinct_prompts_whatever_the_answers() -> None:
    model, pairs, reference = wrapped("llama"), random_pairs(3), random_pairs(6, seed=4)
    longer = [PromptPair(p.clean, p.corrupted, p.answer + " w3" * (i % 3)) for i, p in enumerate(reference)]
    repeated = [*reference, *reference[:2]]

    def ablate(reference: object, metric: str) -> np.ndarray:
        return assay.mean_ablation(
            model, pairs, reference=reference, metric=metric, mean="all-positions", force=True
        ).values

    for metric in ("logit-diff", "log-prob-diff"):
        expected = ablate(reference, metric)
        for other in (longer, repeated):
            np.testing.assert_allclose(ablate(other, metric), expected, rtol=0, atol=1e-11)
    one = random_pairs(1, lengths=(7,))[0]
    same = [PromptPair(one.clean, one.corrupted, one.answer, one.wrong_answer) for _ in range(40)]
    with pytest.raises(DataError, match="there are 1 of 7 tokens"):
        assay.mean_ablation(model, same, force=True)
