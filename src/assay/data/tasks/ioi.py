"""Indirect object identification (Wang et al., arXiv 2211.00593): who received the thing?

"When Mary and John went to the shop, John gave a drink to" -> " Mary". Names stand in the order
A B .. B (answer A: ABBA) or B A .. B (answer A: BABA).
"""

from __future__ import annotations

import random
from typing import Literal

from transformers import PreTrainedTokenizerBase

from assay.data.encoding import prompt_ids
from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import require_choice, require_tokenizer, single_tokens
from assay.errors import DataError
from assay.model import Model

CORRUPTIONS = ("abc", "swap", "random-token")
Corruption = Literal["abc", "swap", "random-token"]

NAMES = """
    Mary John Tom James Dan Michael Robert William David Richard Joseph Charles Matthew Anthony Mark Steven Paul
    Andrew Joshua Kevin Brian George Edward Jason Jeffrey Ryan Jacob Gary Nicholas Eric Jonathan Stephen Larry
    Justin Scott Brandon Benjamin Samuel Patrick Alexander Jack Peter Henry Adam Simon Martin Oliver Victor Frank
    Emily Anna Sarah Laura Emma Alice Susan Lisa Julia Maria Rachel Hannah Kate Jane Rebecca Sophie Lucy Amy
    Claire Helen Diana Elizabeth Jennifer Linda Barbara Jessica Karen Nancy Margaret Sandra Ashley Michelle Amanda
    Melissa Stephanie Nicole Angela Victoria Catherine Grace Olivia Charlotte Ruth Ellen Martha Rose Joan Alex
""".split()
PLACES = "shop park school station library office hospital museum garden restaurant market beach harbour church".split()
OBJECTS = "drink book ring letter key ticket map kiss basket watch bottle camera flower newspaper".split()
TEMPLATES = (
    "When {first} and {second} went to the {place}, {subject} gave a {object} to",
    "After {first} and {second} had met at the {place}, {subject} handed a {object} to",
    "Then, {first} and {second} walked to the {place}. There {subject} passed a {object} to",
    "While {first} and {second} were working at the {place}, {subject} offered a {object} to",
    "Once {first} and {second} had found a {object} at the {place}, {subject} gave it to",
    "The day {first} and {second} came back from the {place}, {subject} sold a {object} to",
    "Yesterday {first} and {second} had lunch near the {place}, and {subject} brought a {object} to",
    "Because {first} and {second} had been late at the {place}, {subject} sent a {object} to",
)


def ioi(model: Model, n: int = 16, seed: int = 0, corruption: Corruption = "abc") -> PromptPairs:
    """``n`` pairs for this model's tokenizer, half of them ABBA, half BABA.

    Args:
        corruption: what becomes of the second mention of the subject in the corrupted prompt: ``abc``, a
            third name; ``swap``, the indirect object, so that the answers trade places; ``random-token``,
            a random token of the vocabulary.

    Raises:
        DataError: fewer than three of the names are one token for this tokenizer.
        OptionError: an unknown corruption.
    """
    require_choice("ioi", "corruption", corruption, CORRUPTIONS)
    tokenizer = require_tokenizer(model, "ioi")
    names = single_tokens(model, "ioi", NAMES, 3, "English names")
    draw = random.Random(seed)
    pairs = []
    for number in range(n):
        template = TEMPLATES[(number // 2) % len(TEMPLATES)]
        indirect_object, subject, third = draw.sample(names, 3)
        abba = number % 2 == 0
        first, second = (indirect_object, subject) if abba else (subject, indirect_object)
        words = {"first": first, "second": second, "place": draw.choice(PLACES), "object": draw.choice(OBJECTS)}
        clean = template.format(**words, subject=subject)
        if corruption == "random-token":
            corrupted = _with_random_token(tokenizer, template, words, subject, draw)
        else:
            other = third if corruption == "abc" else indirect_object
            corrupted = template.format(**words, subject=other)
        pairs.append(
            PromptPair(
                clean,
                corrupted,
                answer=f" {indirect_object}",
                wrong_answer=f" {subject}",
                id=str(number),
                group="ABBA" if abba else "BABA",
            )
        )
    return PromptPairs(tuple(pairs), task="ioi", metric="logit-diff", options={"corruption": corruption})


def _with_random_token(
    tokenizer: PreTrainedTokenizerBase, template: str, words: dict[str, str], subject: str, draw: random.Random
) -> str:
    """The prompt with one random token in the place of the subject's second mention.

    Tokens that do not survive decoding and tokenising again, at that place, are drawn anew.
    """
    clean = prompt_ids(tokenizer, template.format(**words, subject=subject))
    special = set(tokenizer.all_special_ids)
    for _ in range(10_000):
        token = draw.randrange(len(tokenizer))
        word = tokenizer.decode([token])
        if token in special or not word.strip() or word.strip() in words.values():
            continue
        corrupted = template.replace(" {subject}", "{subject}").format(**words, subject=word)
        ids = prompt_ids(tokenizer, corrupted)
        changed = [i for i, (old, new) in enumerate(zip(clean, ids, strict=False)) if old != new]
        if len(ids) == len(clean) and len(changed) == 1 and ids[changed[0]] == token:
            return corrupted
    raise DataError("No random token keeps the prompt's token length with this tokenizer; use corruption abc.")
