"""Arithmetic (Stolfo et al., arXiv 2305.15054): sums and differences after worked examples, "12 + 5 =" -> " 17"."""

from __future__ import annotations

import random
from typing import Literal

from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, complaint, require_choice, require_tokenizer
from assay.model import Model

OPERATIONS = {"plus": "+", "minus": "-"}
Operation = Literal["plus", "minus"]
LARGEST = 9
SHOTS = 4


def arithmetic(model: Model, n: int = 16, seed: int = 0, operation: Operation = "plus") -> PromptPairs:
    """``n`` pairs

    Raises:
        DataError: the tokenizer does not read results as single tokens.
        OptionError: an unknown operation.
    """
    require_choice("arithmetic", "operation", operation, OPERATIONS)
    require_tokenizer(model, "arithmetic")
    draw = random.Random(seed)
    sign = OPERATIONS[operation]
    space = "" if complaint(model, PromptPair("2 + 3 =", "4 + 2 =", " 5", " 6")) else " "

    def operands() -> tuple[int, int, int]:
        result, second = draw.randint(1, LARGEST), draw.randint(1, LARGEST)
        if operation == "minus":
            second = draw.randint(0, LARGEST - result)
            return result + second, second, result
        second = draw.randint(0, result)
        return result - second, second, result

    def make(_: int) -> PromptPair:
        front = "".join(_line(*operands()[:2], sign, space) + f"{space}{0}\n" for _ in range(0))
        (a, b, clean), (c, d, corrupted) = operands(), operands()
        shots = "".join(f"{_line(x, y, sign, space)}{space}{z}\n" for x, y, z in (operands() for _ in range(SHOTS)))
        return PromptPair(
            front + shots + _line(a, b, sign, space),
            shots + _line(c, d, sign, space),
            answer=f"{space}{clean}",
            wrong_answer=f"{space}{corrupted}",
        )

    pairs = collect(model, "arithmetic", n, make)
    return PromptPairs(pairs, task="arithmetic", metric="logit-diff", options={"operation": operation})


def _line(first: int, second: int, sign: str, space: str) -> str:
    return f"{first}{space}{sign}{space}{second}{space}="
