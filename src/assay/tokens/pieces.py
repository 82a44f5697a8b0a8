"""Tokens as pieces of text that a person can read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from assay.data.encoding import tokenizer_of
from assay.model import Model

_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
"""As byte-level vocabularies write them."""


def pieces(model: Model, ids: Sequence[int]) -> tuple[str, ...]:
    """What each token adds to the decoded text; bytes of a character that is split over tokens as \u27e8F0 9F\u27e9."""
    tokenizer = tokenizer_of(model)
    found, before = [], ""
    for number, token in enumerate(ids, 1):
        text = tokenizer.decode(list(ids[:number]), clean_up_tokenization_spaces=False)
        added = text[len(before) :]
        broken = not text.startswith(before) or not added or "\ufffd" in added
        found.append(_alone(tokenizer, int(token)) if broken else added)
        before = text
    return tuple(found)


def continuation(model: Model, prompt: Sequence[int], target: Sequence[int]) -> str:
    """What a target adds to the text of its prompt, with characters whole."""
    tokenizer = tokenizer_of(model)
    before = tokenizer.decode(list(prompt), clean_up_tokenization_spaces=False)
    text = tokenizer.decode([*prompt, *target], clean_up_tokenization_spaces=False)
    added: str = text[len(before) :]
    if text.startswith(before) and added and "\ufffd" not in added:
        return added
    return "".join(pieces(model, [*prompt, *target])[len(prompt) :])


def _alone(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """By its bytes where the vocabulary says them, or by its name there."""
    name = str(tokenizer.convert_ids_to_tokens(token))
    if byte := re.fullmatch("<0x([0-9A-F]{2})>", name):
        return _readable(bytes.fromhex(byte[1]))
    if "\ufffd" in tokenizer.decode([token]) and set(name) <= set(_BYTES):
        return _readable(bytes(_BYTES[character] for character in name))
    return name


def _readable(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    return re.sub(
        "[\udc80-\udcff]+", lambda run: f"\u27e8{' '.join(f'{ord(one) - 0xDC00:02X}' for one in run[0])}\u27e9", text
    )
