"""Greater-than (Hanna et al., arXiv 2305.00586): a span of years ends after it begins.

"The war lasted from the year 1732 to the year 17" -> "45", not "19".
"""

from __future__ import annotations

import random
from collections import Counter

from transformers import PreTrainedTokenizerBase

from assay.data.encoding import prompt_ids
from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, require_tokenizer
from assay.model import Model

NOUNS = """
    war siege strike famine drought plague truce alliance project voyage expedition campaign rebellion occupation
    construction exhibition investigation conflict dispute boom crisis reign journey trial festival recession
""".split()
TEMPLATE = "The {noun} lasted from the year {century}{start:02d} to the year {century}"
CENTURIES = range(12, 19)


def greater_than(model: Model, n: int = 16, seed: int = 0) -> PromptPairs:
    """``n`` pairs: which years may end a span that began in a given year?

    A pair has one answer and one wrong answer, as far above the year in which the span begins as the other is
    below, so that staying near it earns nothing. The answer is two digits long where the tokenizer reads a year
    as two pairs of digits. Where it reads digit by digit, the answer is the tens digit, above or below that of
    the first year. The corrupted prompt begins in year 01 of the century, which rules out no answer.

    Raises:
        DataError: the tokenizer divides years in another way, or does not know the words.
    """
    tokenizer = require_tokenizer(model, "greater-than")
    by_digit = _reads_digit_by_digit(tokenizer)
    draw = random.Random(seed)

    def make(_: int) -> PromptPair:
        noun, century = draw.choice(NOUNS), draw.choice(CENTURIES)
        if by_digit:
            tens = draw.randint(1, 8)
            start = 10 * tens + draw.randint(0, 9)
            distance = draw.randint(1, min(tens, 9 - tens))
            above, below = str(tens + distance), str(tens - distance)
        else:
            start = draw.randint(3, 97)
            distance = draw.randint(1, min(start - 2, 99 - start))
            above, below = f"{start + distance:02d}", f"{start - distance:02d}"
        clean, corrupted = (TEMPLATE.format(noun=noun, century=century, start=year) for year in (start, 1))
        return PromptPair(clean, corrupted, answer=above, wrong_answer=below, group=str(century))

    pairs = collect(model, "greater-than", n, make)
    return PromptPairs(pairs, task="greater-than", metric="logit-diff")


def _reads_digit_by_digit(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the last two digits of most years are two tokens of their own."""
    century = len(prompt_ids(tokenizer, "the year 17"))
    added = Counter(len(prompt_ids(tokenizer, f"the year 17{year}")) - century for year in range(10, 99))
    return added[2] > added[1]
