"""Addition modulo a prime (Power et al., arXiv 2201.02177): the task on which models grok.

A line reads ``a b = c`` with a + b = c modulo 97. Models are trained on a share of all sums and know them long before
they know the others. Which sums come first is settled once for all trainings, so that the last of them are new to every
model and the first are known to every one. A sum and the same with its summands exchanged are never parted.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Literal

from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import require_choice
from assay.errors import DataError, OptionError
from assay.model import Model

MODULUS = 97
PAD, UNKNOWN, EQUALS = "PAD", "UNK", "="
VOCABULARY: tuple[str, ...] = (PAD, UNKNOWN, EQUALS, *map(str, range(MODULUS)))
"""100 symbols, in the order of their token ids."""

SMALLEST_SHARE, LARGEST_SHARE = 0.3, 0.7
"""Of the sums that a model may be trained on; below the one all know them, above the other none does."""

KINDS = ("held-out", "trained", "all")
Kind = Literal["held-out", "trained", "all"]


@lru_cache(maxsize=1)
def _in_order() -> tuple[tuple[int, int], ...]:
    """All a <= b, in the order in which shares are taken."""
    pairs = [(a, b) for a in range(MODULUS) for b in range(a, MODULUS)]
    random.Random(0).shuffle(pairs)
    return tuple(pairs)


def summands(start: float, stop: float) -> list[tuple[int, int]]:
    """Both orders of the summands of a range of all sums, given as shares of them: (0, 0.5) is the first half."""
    pairs = _in_order()
    part = pairs[round(start * len(pairs)) : round(stop * len(pairs))]
    return [each for a, b in part for each in ([(a, b), (b, a)] if a != b else [(a, b)])]


def modular_addition(model: Model, n: int = 16, seed: int = 0, kind: Kind = "held-out") -> PromptPairs:
    """``n`` pairs of different sums modulo 97, for models of ``assay train modular-addition``.

    Args:
        kind: sums that no model was trained on, that every model was trained on, or all.

    Raises:
        DataError: a model that does not read these numbers as single tokens.
        OptionError: an unknown kind, or more pairs than there are sums.
    """
    require_choice("modular-addition", "kind", kind, KINDS)
    if model.tokenizer is None or model.tokenizer.tokenize(" ".join(VOCABULARY[2:])) != list(VOCABULARY[2:]):
        raise DataError(
            f"modular-addition is a task for models of assay train modular-addition; {model.name} does not read its "
            "symbols as single tokens."
        )
    ranges = {"held-out": (LARGEST_SHARE, 1.0), "trained": (0.0, SMALLEST_SHARE), "all": (0.0, 1.0)}
    known = summands(*ranges[kind])
    if n > len(known):
        raise OptionError(f"There are {len(known)} sums of kind {kind}; --n {n} is more.")
    draw = random.Random(seed)
    pairs = []
    for number, (a, b) in enumerate(draw.sample(known, n)):
        c, d = draw.choice(known)
        while (c + d - a - b) % MODULUS == 0:
            c, d = draw.choice(known)
        clean, corrupted = f"{a} {b} {EQUALS}", f"{c} {d} {EQUALS}"
        answer, wrong = f" {(a + b) % MODULUS}", f" {(c + d) % MODULUS}"
        pairs.append(PromptPair(clean, corrupted, answer, wrong, id=str(number)))
    return PromptPairs(tuple(pairs), task="modular-addition", metric="logit-diff", options={"kind": kind})
