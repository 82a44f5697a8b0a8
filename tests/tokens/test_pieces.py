"""Tokens as text: characters that a tokenizer splits are shown by their bytes, however its vocabulary writes them."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import assay
from assay.tokens.pieces import continuation, pieces

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer_of_bytes(kind: str) -> Tokenizer:
    """One token a byte, but for the start of an emoji with the space before it."""
    if kind == "byte-level":
        names = [*BYTES, "ĠðŁ", "Ġð"]
        merges = [("Ġ", "ð"), ("Ġð", "Ł")]
        tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    names = [f"<0x{byte:02X}>" for byte in range(256)] + [chr(byte) for byte in range(32, 127)]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def model_of(kind: str) -> assay.Model:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=360, n_embd=8, n_layer=1, n_head=2, n_positions=64)
    return assay.load(
        GPT2LMHeadModel(config).eval(), PreTrainedTokenizerFast(tokenizer_object=tokenizer_of_bytes(kind))
    )


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
def test_a_split_character_is_shown_by_its_bytes(kind: str) -> None:
    model = model_of(kind)
    ids = model.tokenizer("a 🍕é\ufffdb").input_ids
    found = pieces(model, ids)
    start = ("a", " ⟨F0 9F⟩") if kind == "byte-level" else ("a", " ", "⟨F0⟩", "⟨9F⟩")
    split = ("⟨8D⟩", "⟨95⟩", "⟨C3⟩", "⟨A9⟩", "⟨EF⟩", "⟨BF⟩", "⟨BD⟩")
    assert found == (*start, *split, "b")
    assert "Ġ" not in "".join(found)


def test_a_target_has_its_characters_whole() -> None:
    model = model_of("byte-level")
    prompt, target = (model.tokenizer(text).input_ids for text in ("I eat", " 🍕"))
    assert continuation(model, prompt, target) == " 🍕"
    assert continuation(model, prompt, target[:2]) == " ⟨F0 9F⟩⟨8D⟩"
    found = assay.explain(model, "I eat", " 🍕", method="random", baseline="mean")
    assert (found.target, found.tokens) == (" 🍕", tuple("I eat"))
