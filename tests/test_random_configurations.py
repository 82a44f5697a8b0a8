"""Random tiny models and prompts: exact effects equal the naive loop, whatever hypothesis comes up with.

A few cases run with the suite; ``make test-all`` runs 300.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

import assay
from assay.data import PromptPair, PromptPairs
from conftest import words
from families import TINY, VOCABULARY, Tiny, config, tiny_tokenizer
from oracles.test_exact_effects import naive_effects

CASES = int(os.environ.get("ASSAY_RANDOM_CASES", "15"))


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, int | bool]:
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    return {
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * draw(st.integers(1, 6)),
        "hidden_size": heads * draw(st.integers(1, 5)) * 2,
        "intermediate_size": draw(st.integers(1, 40)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
    }


@st.composite
def prompts(draw: st.DrawFn) -> PromptPairs:
    token = st.integers(1, VOCABULARY - 1)
    pairs = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 9))
        clean = draw(st.lists(token, min_size=length, max_size=length))
        kept = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        other = draw(st.lists(token, min_size=length, max_size=length))
        corrupted = [a if keep else b for a, b, keep in zip(clean, other, kept, strict=True)]
        answer, wrong = draw(st.lists(token, min_size=2, max_size=2, unique=True))
        pairs.append(PromptPair(words(clean), words(corrupted), f" w{answer}", f" w{wrong}"))
    return PromptPairs(tuple(pairs), metric="logit-diff")


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(configurations(), prompts(), st.sampled_from(["denoise", "noise"]), st.integers(0, 99))
def test_exact_effects_equal_naive_loop(
    entries: dict[str, int | bool], pairs: PromptPairs, direction: str, seed: int
) -> None:
    torch.manual_seed(seed)
    hf = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, max_position_embeddings=32, bos_token_id=None, eos_token_id=None, pad_token_id=None,
            initializer_range=0.3, **entries,
        )
    ).eval().double()  # fmt: skip
    hf.set_attn_implementation("oracle")
    model = assay.load(hf, tiny_tokenizer())
    scores = assay.activation_patching(model, pairs, direction=direction, force=True)
    TINY["drawn"] = Tiny("LlamaForCausalLM", config("LlamaConfig"))
    try:
        expected = naive_effects(model, "drawn", pairs, direction)
    finally:
        del TINY["drawn"]
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(scores.values, expected, rtol=0, atol=1e-9 * scale)
