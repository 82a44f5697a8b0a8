"""Copy colours: multiple choice whose answer stands in the question (Wiegreffe et al., arXiv 2407.15018).

"A box is brown. What color is a box? A. gray B. black C. white D. brown Answer:" -> " D"
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, single_tokens
from assay.model import Model

LETTERS = "A B C D".split()
COLOURS = "red blue green black white brown gray yellow pink purple orange".split()
OBJECTS = """
    box cup hat ball chair door book shirt bag car boat house lamp ring coat bottle phone pen table flower key bike
""".split()
QUESTION = "A {object} is {colour}. What color is a {object}?"
EXAMPLES = (
    ("glass", "green", ("green", "red", "black", "pink"), "A"),
    ("roof", "brown", ("blue", "white", "brown", "yellow"), "C"),
    ("wall", "white", ("purple", "white", "gray", "red"), "B"),
    ("train", "blue", ("orange", "brown", "green", "blue"), "D"),
)
"""Thing, its colour, the colours to choose from, the right letter."""


def copy_colours(model: Model, n: int = 16, seed: int = 0) -> PromptPairs:
    """``n`` pairs: the letter of the colour that the question names, each letter in turn. Four examples stand in front.

    In the corrupted prompt the thing has another of the four colours, so that another letter is right; that letter
    is the wrong answer.

    Raises:
        DataError: too few letters, colours or things are one token for this tokenizer.
    """
    single_tokens(model, "copy-colours", LETTERS, len(LETTERS), "letters")
    colours = single_tokens(model, "copy-colours", COLOURS, len(LETTERS), "colours")
    objects = single_tokens(model, "copy-colours", OBJECTS, 1, "things")
    front = "".join(f"{_question(thing, colour, shown)} {letter}\n" for thing, colour, shown, letter in EXAMPLES)
    draw = random.Random(seed)

    def make(number: int) -> PromptPair:
        right = number % len(LETTERS)
        other = draw.choice([i for i in range(len(LETTERS)) if i != right])
        shown = draw.sample(colours, len(LETTERS))
        thing = draw.choice(objects)
        clean, corrupted = (front + _question(thing, shown[i], shown) for i in (right, other))
        return PromptPair(clean, corrupted, answer=f" {LETTERS[right]}", wrong_answer=f" {LETTERS[other]}")

    return PromptPairs(collect(model, "copy-colours", n, make), task="copy-colours", metric="logit-diff")


def _question(thing: str, colour: str, shown: Sequence[str]) -> str:
    listed = " ".join(f"{letter}. {each}" for letter, each in zip(LETTERS, shown, strict=True))
    return f"{QUESTION.format(object=thing, colour=colour)} {listed} Answer:"
