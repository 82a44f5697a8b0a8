"""Where rounding would become a number: streams of zeros behind a norm, and gradients too small for float16."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import assay
from assay.data import PromptPair, PromptPairs
from assay.errors import InterventionError
from conftest import ids_of, random_pairs, wrapped
from families import TINY
from oracles import naive

HAS_MID = [name for name, tiny in TINY.items() if not tiny.parallel and name not in ("mixtral", "qwen3-moe", "gpt-oss")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("family", HAS_MID)
def test_a_stream_set_to_zero_is_zero(family: str, dtype: torch.dtype) -> None:
    """A norm behind it makes a rounding error of such a stream as large as any other value."""
    model, pairs = wrapped(family, dtype), random_pairs(3)
    try:
        found = assay.zero_ablation(model, pairs, sites="residual-mid,residual-pre", force=True)
    except InterventionError:
        assert model.residual_multiplier != 1, "only there may it be refused"
        return
    for component, values in zip(found.components, found.values, strict=True):
        place = (component.site, component.layer, None)
        for pair, value in zip(pairs, values, strict=True):
            ids = ids_of(pair.clean)
            zero = torch.zeros_like(naive.activation(model.hf, family, ids, place))
            (answer,), (wrong,) = ids_of(pair.answer), ids_of(pair.wrong_answer)
            base = naive.logits_of(model.hf, ids)[-1]
            patched = naive.patched_logits(model.hf, family, ids, place, zero)[-1]
            expected = (patched[answer] - patched[wrong] - base[answer] + base[wrong]).item()
            assert value == pytest.approx(expected, abs=1e-4 if dtype == torch.float32 else 1e-9), component.name


@pytest.mark.parametrize("method", ["attribution-patching", "direct-effect", "two-point", "atp-star"])
@pytest.mark.parametrize("scale", [3, 6])
def test_small_probabilities_have_gradients_in_float16(method: str, scale: float) -> None:
    """At probabilities down to 1e-9 the estimates are those of the same weights in float32, to half precision."""
    pairs = PromptPairs(random_pairs(4).pairs, metric="log-prob")
    sharp = wrapped("gpt2", torch.float32)
    with torch.no_grad():
        sharp.hf.lm_head.weight.mul_(scale)
    sharp.hf.to(torch.float16)
    whole = wrapped("gpt2", torch.float32)
    whole.hf.load_state_dict({name: value.float() for name, value in sharp.hf.state_dict().items()})
    half = assay.load(sharp.hf, sharp.tokenizer)
    unlikely = PromptPairs(tuple(_unlikely(whole, pair) for pair in pairs))
    options = {"metric": "log-prob" if method == "atp-star" else "prob-diff", "force": True, "sites": "heads,mlps"}
    expected = assay.measure(method, whole, unlikely, **options).values
    found = assay.measure(method, half, unlikely, **options).values
    assert np.abs(expected).max() < 1e-3 or method == "atp-star", "not a small one"
    for example in range(len(unlikely)):
        size = np.abs(expected[:, example]).max()
        assert np.abs(found[:, example] - expected[:, example]).max() < 0.1 * size


def _unlikely(model: assay.Model, pair: PromptPair) -> PromptPair:
    """The same prompts with the two least likely tokens as answers."""
    order = naive.logits_of(model.hf, ids_of(pair.clean))[-1].argsort()
    first, second = (int(i) for i in order[:2])
    return PromptPair(pair.clean, pair.corrupted, f" w{second}", f" w{first}")


def test_resampling_tells_a_prompt_from_an_answer_after_it() -> None:
    """Two rows of the same tokens, one of them with its last token an answer's: each has its own draw."""
    model = wrapped("llama")
    one = PromptPair("w1 w2 w3", "w4 w5 w6", " w20")
    other = PromptPair("w1 w2", "w4 w5", " w3 w22")
    references = [PromptPair("w7 w8 w9", "w10 w11 w12", " w1"), PromptPair("w7 w8", "w10 w11", " w1")]
    options = {"metric": "log-prob", "force": True}
    alone = assay.resample_ablation(model, [one], reference=references, **options)
    beside = assay.resample_ablation(model, [one, other], reference=references, **options)
    np.testing.assert_allclose(beside.values[:, 0], alone.values[:, 0], rtol=0, atol=1e-11)
