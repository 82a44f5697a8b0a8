"""Induction (Olsson et al., arXiv 2209.11895): what followed a word last time follows it again, "A B .. A" -> " B"."""

from __future__ import annotations

import random

from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, single_tokens
from assay.errors import OptionError
from assay.model import Model

WORDS = """
    table river music stone paper window garden summer coffee silver bridge doctor forest orange winter planet castle
    mirror engine letter island button circle desert market hammer pocket rocket shadow ticket tunnel valley basket
    bottle camera candle cotton dragon finger flower guitar jacket kitchen ladder lemon magnet needle pencil pepper
    pillow rabbit saddle salad spider spoon sugar temple tiger tomato turtle wagon whale
""".split()
LONGEST = 40
SHORT = 4
"""Words of each line in front."""


def induction(model: Model, n: int = 16, seed: int = 0, length: int = 6) -> PromptPairs:
    """``n`` pairs of random words, all different, at whose end one of the earlier words stands again.

    Two shorter lines, each of four other words given twice, stand in front and show that words come again. The
    answer is the word that followed the repeated one. In the corrupted prompt another word stands in its earlier
    place, so that nothing in this line is repeated. The wrong answer is another word of the sequence.

    Args:
        length: how many different words the sequence has, 4 to 40.

    Raises:
        DataError: too few of the words are one token for this tokenizer.
        OptionError: a length out of range.
    """
    if not 4 <= length <= LONGEST:
        raise OptionError(f"induction takes a length from 4 to {LONGEST}, not {length}.")
    words = single_tokens(model, "induction", WORDS, length + 1 + 2 * SHORT, "English words")
    draw = random.Random(seed)

    def make(_: int) -> PromptPair:
        *sequence, other = draw.sample(words, length + 1 + 2 * SHORT)
        shown, sequence = sequence[: 2 * SHORT], sequence[2 * SHORT :]
        front = "".join(" ".join([*line, *line]) + "\n" for line in (shown[:SHORT], shown[SHORT:]))
        # The word is neither first nor next to last: its repetition would follow its successor at once.
        place = draw.randint(1, length - 3)
        wrong = draw.choice([word for i, word in enumerate(sequence) if i not in (place, place + 1)])
        repeated, answer = sequence[place : place + 2]
        changed = [*sequence[:place], other, *sequence[place + 1 :]]
        clean, corrupted = (front + " ".join([*line, repeated]) for line in (sequence, changed))
        return PromptPair(clean, corrupted, answer=f" {answer}", wrong_answer=f" {wrong}")

    pairs = collect(model, "induction", n, make)
    return PromptPairs(pairs, task="induction", metric="logit-diff", options={"length": length})
