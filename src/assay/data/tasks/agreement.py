"""Subject-verb agreement (Linzen et al., arXiv 1611.01368): "The keys to the cabinet" -> " are", not " is"."""

from __future__ import annotations

import random

from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, single_tokens
from assay.model import Model

SUBJECTS = """
    key book picture letter cup plate box chair boy girl teacher doctor farmer friend player student driver neighbor
    writer singer brother sister painter lawyer
""".split()
ATTRACTORS = """
    table window door house tree car garden building school river wall bridge tower boat desk lamp train road
""".split()
ADJECTIVES = "old new young small tall big".split()
PLACES = "near behind beside by".split()
PRIMERS = (
    ("The stars above the house are bright. The man with the dogs is tired.", "is", "are"),
    ("The roses in the field were red. The baker in the shops was busy.", "was", "were"),
)


def agreement(model: Model, n: int = 16, seed: int = 0) -> PromptPairs:
    """``n`` pairs: the verb agrees with its subject, not with the noun before it.

    In half of the pairs a noun of the other number, an attractor, stands between subject and verb (group
    ``attractor``; the other group is ``plain``). Of either, half have a singular and half a plural subject. Two
    sentences in front set the tense. In the corrupted prompt the subject has the other number.

    Raises:
        DataError: fewer than two of the nouns are one token in both numbers for this tokenizer.
    """
    subjects, attractors = (
        _nouns(model, words, what) for words, what in ((SUBJECTS, "nouns"), (ATTRACTORS, "further nouns"))
    )
    draw = random.Random(seed)

    def make(number: int) -> PromptPair:
        attracted, plural = number % 2 == 0, number // 2 % 2 == 0
        primer, *verbs = PRIMERS[number // 4 % 2]
        forms = _forms(draw.choice(subjects))
        attractor = _forms(draw.choice(attractors))[not plural]
        rest = f"{draw.choice(PLACES)} the {attractor}"
        adjective = draw.choice(ADJECTIVES)

        def prompt(plural: bool) -> str:
            noun = forms[plural]
            return f"{primer} The {noun} {rest}" if attracted else f"{primer} The {adjective} {noun}"

        return PromptPair(
            prompt(plural),
            prompt(not plural),
            answer=f" {verbs[plural]}",
            wrong_answer=f" {verbs[not plural]}",
            group="attractor" if attracted else "plain",
        )

    return PromptPairs(collect(model, "agreement", n, make), task="agreement", metric="logit-diff")


def _forms(noun: str) -> tuple[str, str]:
    """Singular and plural."""
    return noun, noun + ("es" if noun.endswith("x") else "s")


def _nouns(model: Model, nouns: list[str], what: str) -> list[str]:
    """Those that are one token in both numbers."""
    plurals = single_tokens(model, "agreement", (_forms(noun)[1] for noun in nouns), 2, f"{what} in the plural")
    singulars = single_tokens(model, "agreement", nouns, 2, f"{what} in the singular")
    return [noun for noun in singulars if _forms(noun)[1] in plurals]
