"""Prompts of given lengths that mean nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from assay.data import PromptPair, PromptPairs
from assay.errors import OptionError

WORDS = ("unknown", *(f"w{number}" for number in range(63)))


def word_tokenizer() -> PreTrainedTokenizerBase:
    """One token for each of `WORDS`."""
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=WORDS[0])


def made_up(lengths: Iterable[tuple[int, int]]) -> PromptPairs:
    """A pair for each length in tokens, and how many of them clean and corrupted prompt begin with alike.

    Raises:
        OptionError: there are no such prompts.
    """
    pairs = []
    for number, (length, shared) in enumerate(lengths):
        if not 0 <= shared < length:
            raise OptionError(
                f"--tokens {length}:{shared} cannot be: prompts of {length} tokens that differ begin with 0 to "
                f"{length - 1} tokens alike."
            )
        begin = [f"w{1 + (number + i) % 20}" for i in range(shared)]
        clean, corrupted = ([f"w{first + i % 10}" for i in range(length - shared)] for first in (21, 41))
        pairs.append(PromptPair(" ".join(begin + clean), " ".join(begin + corrupted), " w61", " w62"))
    return PromptPairs(tuple(pairs), metric="logit-diff")
