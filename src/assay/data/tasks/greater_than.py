"""Greater-than (Hanna et al., arXiv 2305.00586): a span of years ends after it begins.

"The war lasted from the year 1732 to the year 17" -> "33" or "34" or ... "99", not "00" or ... "32".
"""

from __future__ import annotations

import random
from collections import Counter

from transformers import PreTrainedTokenizerBase

from assay.data.encoding import prompt_ids
from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, require_tokenizer
from assay.data.years import ends_after_and_not
from assay.model import Model

NOUNS = """
    war siege strike famine drought plague truce alliance project voyage expedition campaign rebellion occupation
    construction exhibition investigation conflict dispute boom crisis reign journey trial festival recession
""".split()
TEMPLATE = "The {noun} lasted from the year {century}{start:02d} to the year {century}"
CENTURIES = range(12, 19)


def greater_than(model: Model, n: int = 16, seed: int = 0) -> PromptPairs:
    """``n`` pairs: which years may end a span that began in a given year?

    Answers are sets. Where the tokenizer reads a year as two pairs of digits: all later years of the century,
    against the first year and all before it (the paper's probability difference). Where it reads digit by digit:
    all tens digits above that of the first year, against all below. The corrupted prompt begins in year 01 of the
    century, as in the paper.

    Raises:
        DataError: the tokenizer divides years in another way, or does not know the words.
    """
    tokenizer = require_tokenizer(model, "greater-than")
    digits = 1 if _reads_digit_by_digit(tokenizer) else 2
    draw = random.Random(seed)

    def make(_: int) -> PromptPair:
        noun, century = draw.choice(NOUNS), draw.choice(CENTURIES)
        start = draw.randint(10, 89) if digits == 1 else draw.randint(2, 98)
        clean, corrupted = (TEMPLATE.format(noun=noun, century=century, start=year) for year in (start, 1))
        after, other = ends_after_and_not(tokenizer, (clean, corrupted), start, digits)
        # Where no member is a token, the outermost one stands for the set, so that the refusal shows what it becomes.
        return PromptPair(clean, corrupted, after or "9" * digits, other or "0" * digits, group=str(century))

    pairs = collect(model, "greater-than", n, make, metric="prob-diff")
    return PromptPairs(pairs, task="greater-than", metric="prob-diff")


def _reads_digit_by_digit(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the last two digits of most years are two tokens of their own."""
    century = len(prompt_ids(tokenizer, "the year 17"))
    added = Counter(len(prompt_ids(tokenizer, f"the year 17{year}")) - century for year in range(10, 99))
    return added[2] > added[1]
