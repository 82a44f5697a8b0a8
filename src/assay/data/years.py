"""Years that may end a span, as sets of single tokens (Hanna et al., arXiv 2305.00586)."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from assay.data.encoding import many_prompt_ids


def ends_after_and_not(
    tokenizer: PreTrainedTokenizerBase, prompts: tuple[str, str], start: int, digits: int
) -> tuple[list[str], list[str]]:
    """How a span that begins in year ``start`` of a century may end, and how not.

    Args:
        prompts: what the answers follow; an answer that is not one token of its own after both is left out.
        digits: 2 where a year's last two digits are a token: all later years, against that year and all earlier
            ones, as in the paper. 1 where each digit is one: tens digits above and below that of ``start``; the same
            tens digit decides nothing and is in neither set.
    """
    if digits == 2:
        above, below = range(start + 1, 100), range(start + 1)
    else:
        above, below = range(start // 10 + 1, 10), range(start // 10)
    after, other = ([f"{number:0{digits}}" for number in numbers] for numbers in (above, below))
    return single_tokens_after(tokenizer, prompts, after), single_tokens_after(tokenizer, prompts, other)


def single_tokens_after(
    tokenizer: PreTrainedTokenizerBase, prompts: tuple[str, str], answers: Sequence[str]
) -> list[str]:
    """Those answers that are one token after both prompts, and leave their tokens as they are."""
    found = list(answers)
    for prompt in prompts:
        before, *continued = many_prompt_ids(tokenizer, [prompt, *(prompt + answer for answer in found)])
        found = [answer for answer, ids in zip(found, continued, strict=True) if ids[:-1] == before]
    return found
