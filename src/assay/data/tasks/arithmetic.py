"""Arithmetic (Stolfo et al., arXiv 2305.15054): sums and differences after worked examples, "2 + 5 =" -> " 7"."""

from __future__ import annotations

import random
from typing import Literal

from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, complaint, require_choice
from assay.model import Model

OPERATIONS = {"plus": "+", "minus": "-"}
Operation = Literal["plus", "minus"]
LARGEST = 9
EXAMPLES = 4
WORDINGS = (("{} {} {} =", " {}"), ("{} {} {} = ", "{}"), ("{}{}{}=", "{}"))
"""Question and answer, the space before the answer where the tokenizer wants it; the first that it reads is used."""


def arithmetic(model: Model, n: int = 16, seed: int = 0, operation: Operation = "plus") -> PromptPairs:
    """``n`` pairs: a sum or difference of one-digit numbers, after four worked examples of the same operation.

    All numbers and results are one digit, so that the result is one token for tokenizers that divide numbers into
    digits, too. In the corrupted prompt the last two numbers are others, with another result, which is the wrong
    answer.

    Args:
        operation: ``plus`` or ``minus``.

    Raises:
        DataError: this tokenizer does not read digits as single tokens.
        OptionError: an unknown operation.
    """
    require_choice("arithmetic", "operation", operation, OPERATIONS)
    sign = OPERATIONS[operation]
    question, result = _wording(model, sign)
    draw = random.Random(seed)

    def numbers() -> tuple[int, int, int]:
        """Two numbers and their result; every result from 1 to 9 is as likely as another."""
        value = draw.randint(1, LARGEST)
        if operation == "plus":
            second = draw.randint(0, value)
            return value - second, second, value
        second = draw.randint(0, LARGEST - value)
        return value + second, second, value

    def make(_: int) -> PromptPair:
        shown = [numbers() for _ in range(EXAMPLES)]
        front = "".join(f"{question.format(a, sign, b)}{result.format(value)}\n" for a, b, value in shown)
        (a, b, answer), (c, d, wrong) = numbers(), numbers()
        return PromptPair(
            front + question.format(a, sign, b),
            front + question.format(c, sign, d),
            answer=result.format(answer),
            wrong_answer=result.format(wrong),
        )

    pairs = collect(model, "arithmetic", n, make)
    return PromptPairs(pairs, task="arithmetic", metric="logit-diff", options={"operation": operation})


def _wording(model: Model, sign: str) -> tuple[str, str]:
    for question, result in WORDINGS:
        clean, corrupted = (question.format(first, sign, 1) for first in (4, 6))
        if complaint(model, PromptPair(clean, corrupted, result.format(3), result.format(7))) is None:
            return question, result
    return WORDINGS[0]
