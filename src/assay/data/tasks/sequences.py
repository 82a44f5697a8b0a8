"""The two algorithmic languages of Ye (arXiv 2602.01442): sorting and reversing integers.

A line reads ``START x1 .. xn SEP y1 .. yn END`` where y is x sorted or reversed and every x is an
integer in 1..99, repeats allowed. Everything up to and including SEP is the prompt; ``y1 .. yn END``
is the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import DataError, OptionError
from assay.model import Model

START, SEP, END, PAD, UNKNOWN = "START", "SEP", "END", "PAD", "UNK"
LARGEST = 99
DEFAULT_LENGTH, LONGEST = 5, 11
VOCABULARY: tuple[str, ...] = (PAD, START, SEP, END, UNKNOWN, *map(str, range(1, LARGEST + 1)))
"""104 symbols, in the order of their token ids."""

TRAINED_LENGTHS = range(3, 8)
"""Lengths the bundled models were trained on; 8 to 11 are out of distribution."""

TRANSFORMATIONS: dict[str, Callable[[Sequence[int]], list[int]]] = {
    "sort": sorted,
    "reverse": lambda numbers: list(reversed(numbers)),
}


def prompt_text(numbers: Sequence[int]) -> str:
    return " ".join([START, *map(str, numbers), SEP])


def answer_text(kind: str, numbers: Sequence[int]) -> str:
    """The answer, with the leading space that joins it to the prompt."""
    return " " + " ".join([*map(str, TRANSFORMATIONS[kind](numbers)), END])


def sequence_pairs(kind: str, n: int = 16, seed: int = 0, length: int = DEFAULT_LENGTH) -> PromptPairs:
    """``n`` pairs of random sequences of one length; the answers are the two transformed sequences.

    Raises:
        OptionError: a length below 1 or above 11, the longest ever measured.
    """
    if not 1 <= length <= LONGEST:
        raise OptionError(f"{kind} takes a length from 1 to {LONGEST}, not {length}.")
    draw = random.Random(seed)
    pairs: list[PromptPair] = []
    while len(pairs) < n:
        clean, corrupted = ([draw.randint(1, LARGEST) for _ in range(length)] for _ in range(2))
        answer, wrong = (answer_text(kind, numbers) for numbers in (clean, corrupted))
        if answer != wrong:
            pairs.append(PromptPair(prompt_text(clean), prompt_text(corrupted), answer, wrong, id=str(len(pairs))))
    return PromptPairs(tuple(pairs), task=kind, metric="log-prob-diff", options={"length": length})


def sort(model: Model, n: int = 16, seed: int = 0, length: int = DEFAULT_LENGTH) -> PromptPairs:
    """Sorting, for ``sequence-sort`` and models with its vocabulary."""
    _require_vocabulary(model, "sort")
    return sequence_pairs("sort", n, seed, length)


def reverse(model: Model, n: int = 16, seed: int = 0, length: int = DEFAULT_LENGTH) -> PromptPairs:
    """Reversal, for ``sequence-reverse`` and models with its vocabulary."""
    _require_vocabulary(model, "reverse")
    return sequence_pairs("reverse", n, seed, length)


def _require_vocabulary(model: Model, kind: str) -> None:
    text = f"{START} 1 {LARGEST} {SEP} {END}"
    known = model.tokenizer is not None and model.tokenizer.tokenize(text) == text.split()
    if not known:
        raise DataError(
            f"{kind} is a task for sequence-{kind}; {model.name} does not read its symbols as single tokens."
        )
