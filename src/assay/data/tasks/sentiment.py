"""Sentiment (Tigges et al., arXiv 2310.15154): "Review: The story was great. Sentiment:" -> " positive"."""

from __future__ import annotations

import random
from typing import Literal

from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, known_length, require_choice, require_tokenizer, single_tokens
from assay.errors import DataError
from assay.model import Model

KINDS = ("reviews", "words")
Kind = Literal["reviews", "words"]

POSITIVE = """
    great wonderful excellent brilliant amazing lovely fantastic superb good beautiful delightful marvelous impressive
    charming outstanding perfect
""".split()
NEGATIVE = """
    terrible awful horrible dreadful bad boring poor disappointing dull ugly annoying miserable disgusting pathetic
    lousy worthless
""".split()
REVIEWS = (
    "The story was {0} and the actors were {1}.",
    "We stayed here for two nights. The room was {0}, and so was the breakfast: simply {1}.",
    "I read it on the train. The first chapter is {0} and the ending is {1}.",
    "My sister took me to this place for lunch. The soup was {0}. The service was {1}.",
    "A {0} album with {1} songs.",
    "The camera is {0}, the screen is {1}, and it came in a plain box.",
    "They played for an hour. The singer was {0} and the sound was {1}.",
    "This was a {0} show. The costumes were {1} too.",
    "The guide talked about the old town all day. What a {0} tour, and what {1} views!",
    "I bought these shoes last week. They look {0} and they feel {1}.",
)
WORDS = ("The {2} was {0}.", "It is a {0} {2}.", "Such a {0} {2}!", "What a {0} {2}!")
THINGS = "film book meal hotel song game party trip play show dinner concert".split()
EXAMPLES = {
    "reviews": (
        ("The food was cold and the waiter was rude.", "negative"),
        ("The beach was clean and we loved every day.", "positive"),
        ("The staff were kind and helpful.", "positive"),
        ("It broke after one day and nobody answered my call.", "negative"),
    ),
    "words": (
        ("The waiter was rude.", "negative"),
        ("It is a clean beach.", "positive"),
        ("The staff were kind.", "positive"),
        ("It is a broken toy.", "negative"),
    ),
}


def sentiment(model: Model, n: int = 16, seed: int = 0, kind: Kind = "reviews") -> PromptPairs:
    """``n`` pairs: is a review positive or negative? Half of them are either.

    In the corrupted prompt each adjective is replaced by one of the opposite sentiment with as many tokens. Four
    reviews with their sentiment stand in front.

    Args:
        kind: ``reviews``, short reviews with two adjectives; ``words``, one adjective in a bare sentence.

    Raises:
        DataError: " positive" and " negative" are not single tokens for this tokenizer, or it reads no two opposite
            adjectives with equal length.
        OptionError: an unknown kind.
    """
    require_choice("sentiment", "kind", kind, KINDS)
    single_tokens(model, "sentiment", ("positive", "negative"), 2, "labels")
    opposites = _opposites(model)
    sides = {
        label: [word for word in words if word in opposites]
        for label, words in (("positive", POSITIVE), ("negative", NEGATIVE))
    }
    front = "\n".join(f"Review: {text} Sentiment: {label}" for text, label in EXAMPLES[kind])
    templates = REVIEWS if kind == "reviews" else WORDS
    draw = random.Random(seed)

    def make(number: int) -> PromptPair:
        label, other = ("positive", "negative") if number % 2 == 0 else ("negative", "positive")
        template = draw.choice(templates)
        adjectives = draw.sample(sides[label], 2)
        flipped = [draw.choice(opposites[word]) for word in adjectives]
        thing = draw.choice(THINGS)
        clean, corrupted = (
            f"{front}\nReview: {template.format(*words, thing)} Sentiment:" for words in (adjectives, flipped)
        )
        return PromptPair(clean, corrupted, answer=f" {label}", wrong_answer=f" {other}", group=label)

    pairs = collect(model, "sentiment", n, make)
    return PromptPairs(pairs, task="sentiment", metric="logit-diff", options={"kind": kind})


def _opposites(model: Model) -> dict[str, list[str]]:
    """For each adjective, those of the other sentiment with as many tokens; adjectives without any are left out."""
    tokenizer = require_tokenizer(model, "sentiment")
    length = {word: known_length(tokenizer, f"It was {word}.") for word in (*POSITIVE, *NEGATIVE)}
    found = {
        word: [other for other in others if length[other] == length[word] is not None]
        for words, others in ((POSITIVE, NEGATIVE), (NEGATIVE, POSITIVE))
        for word in words
    }
    found = {word: others for word, others in found.items() if others}
    if min(sum(word in found for word in words) for words in (POSITIVE, NEGATIVE)) < 2:
        raise DataError(
            f"The tokenizer of {model.name} reads too few opposite adjectives of equal token length; "
            "sentiment needs two of either."
        )
    return found
