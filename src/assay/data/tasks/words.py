"""What the makers of prompts share: which words a tokenizer knows, and pairs that can be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import DataError, OptionError, instead_of
from assay.model import Model

DRAWS = 500
"""Draws in a row without a new pair that can be used, after which there are taken to be no more."""


def require_tokenizer(model: Model, task: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer.

    Raises:
        DataError: it was loaded without one.
    """
    if model.tokenizer is None:
        raise DataError(f"{model.name} was loaded without a tokenizer, which the task {task} needs.")
    return model.tokenizer


def is_one_known_token(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return len(ids) == 1 and ids[0] != tokenizer.unk_token_id


def known_length(tokenizer: PreTrainedTokenizerBase, text: str) -> int | None:
    """How many tokens the text is, None if it has words that the tokenizer does not know."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return None if tokenizer.unk_token_id in ids else len(ids)


def single_tokens(model: Model, task: str, words: Iterable[str], needed: int, what: str) -> list[str]:
    """Those of ``words`` that are one token with a space in front.

    Raises:
        DataError: fewer than ``needed`` are, or there is no tokenizer.
    """
    tokenizer = require_tokenizer(model, task)
    words = list(words)
    known = [word for word in words if is_one_known_token(tokenizer, f" {word}")]
    if len(known) < needed:
        raise DataError(
            f"The tokenizer of {model.name} knows {len(known)} of {len(words)} {what} as single tokens; "
            f"{task} needs {needed}. `assay list tasks` shows the other tasks."
        )
    return known


def require_choice(task: str, option: str, value: str, choices: Iterable[str]) -> None:
    """Raise an OptionError unless ``value`` is one of ``choices``."""
    choices = tuple(choices)
    if value not in choices:
        raise OptionError(f"{task} has no {option} {value!r}. {instead_of(value, choices)}")


def complaint(model: Model, pair: PromptPair, metric: str = "logit-diff") -> str | None:
    """Why this pair cannot be measured, None if it can."""
    try:
        encode(model, PromptPairs((pair,)), METRICS[metric])
    except DataError as error:
        return str(error)
    return None


def collect(
    model: Model, task: str, n: int, make: Callable[[int], PromptPair], metric: str = "logit-diff"
) -> tuple[PromptPair, ...]:
    """``n`` different pairs from ``make(number)``, which draws at random, each fit for the metric.

    Pairs that this tokenizer reads with unequal lengths, with answers of several tokens or with unknown
    words are drawn anew.

    Raises:
        DataError: the tokenizer leaves no such pair, or fewer than ``n``.
    """
    require_tokenizer(model, task)
    pairs: list[PromptPair] = []
    seen: set[tuple[str, str]] = set()
    for number in range(n):
        reason = None
        for _ in range(DRAWS):
            pair = replace(make(number), id=str(number))
            if (pair.clean, pair.corrupted) in seen:
                continue
            reason = complaint(model, pair, metric)
            if reason is None:
                break
        else:
            if pairs or reason is None:
                raise DataError(f"{task} has about {len(pairs)} different pairs for {model.name}, not {n}.")
            raise DataError(f"{task} has no pairs that the tokenizer of {model.name} reads as needed. {reason}")
        seen.add((pair.clean, pair.corrupted))
        pairs.append(pair)
    return tuple(pairs)
