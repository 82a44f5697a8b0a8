"""Pairs whose prompts are of equal token length, the others left out: ``--align skip``."""

from __future__ import annotations

from assay.data.chat import as_chat
from assay.data.encoding import prompt_ids, tokenizer_of
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import DataError
from assay.model import Model

UNEQUAL = "clean and corrupted differ in token length"


def equal_lengths(model: Model, pairs: PromptPairs, n: int | None = None, *, chat: bool = False) -> PromptPairs:
    """The first ``n`` pairs (all, if None) whose two prompts have as many tokens.

    How many were left out before the last of them is added to ``options["dropped"]``.

    Args:
        chat: count the tokens of prompts in the model's chat template. The pairs stay as they are.

    Raises:
        DataError: no pair is left, or the model has no tokenizer.
        OptionError: no chat template.
    """
    tokenizer = tokenizer_of(model)
    counted = as_chat(model, pairs) if chat else pairs
    kept: list[PromptPair] = []
    left_out = 0
    for pair, rendered in zip(pairs, counted, strict=True):
        if len(kept) == n:
            break
        clean, corrupted = (len(prompt_ids(tokenizer, text)) for text in (rendered.clean, rendered.corrupted))
        if clean == corrupted:
            kept.append(pair)
        else:
            left_out += 1
    if not kept:
        raise DataError(
            f"None of the {len(pairs)} pairs can be used: {UNEQUAL} in all of them. Change the prompts, or use --align "
            "pad or last-k (in Python: align=)."
        )
    if not left_out:
        return PromptPairs(tuple(kept), pairs.task, pairs.metric, pairs.options)
    dropped = pairs.options.get("dropped", {})
    dropped = {**dropped, UNEQUAL: dropped.get(UNEQUAL, 0) + left_out}
    return PromptPairs(tuple(kept), pairs.task, pairs.metric, {**pairs.options, "dropped": dropped})
