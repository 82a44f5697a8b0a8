"""From text to token ids, refusing what would be measured wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from transformers import PreTrainedTokenizerBase

from assay.data.metrics import METRICS, Metric, metric_named
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import DataError, OptionError
from assay.model import Model

COMPLAINTS_SHOWN = 4

Align = Literal["reject", "pad", "last-k"]
"""What happens to two prompts of unequal token length: see `encode`."""


@dataclass(frozen=True)
class Row:
    """One sequence to run, clean and corrupted, and where its answer is read.

    A multi-token answer is teacher-forced: all but its last token follow the prompt.
    """

    example: int
    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    wrong: int = -1
    sign: int = 1

    @property
    def first_difference(self) -> int:
        """First position at which the two sequences differ; their length if they do not."""
        for position, (clean, corrupted) in enumerate(zip(self.clean, self.corrupted, strict=True)):
            if clean != corrupted:
                return position
        return len(self.clean)


def default_metric(model: Model, pairs: PromptPairs) -> tuple[Metric, str]:
    """The task's metric, or for a user's own pairs the first that all of them allow; and why."""
    if pairs.metric is not None:
        return metric_named(pairs.metric), f"the metric of the task {pairs.task}"
    for pair in pairs:
        if pair.wrong_answer is None:
            return METRICS["log-prob"], f"pair {pair.id!r} has no wrong_answer"
    tokenizer = _tokenizer_of(model)
    for pair in pairs:
        for answer in (pair.answer, pair.wrong_answer or ""):
            count = len(_continuation(tokenizer, pair, answer, pair.clean))
            if count != 1:
                return METRICS["log-prob-diff"], f"{answer!r} of pair {pair.id!r} is {count} tokens"
    return METRICS["logit-diff"], "all answers are single tokens"


def require_align(align: str) -> None:
    """Refuse an alignment that does not exist."""
    if align not in get_args(Align):
        raise OptionError(f"There is no alignment {align!r}. Choose one of {', '.join(get_args(Align))}.")


def encode(model: Model, pairs: PromptPairs, metric: Metric, align: Align = "reject") -> list[Row]:
    """Rows to run for these pairs under this metric, in the order of the pairs.

    Args:
        align: what to do with two prompts of unequal token length. ``reject`` them; ``pad`` the shorter in front
            (after its begin-of-text token) with the tokenizer's padding token, else a newline or space, which the
            model sees and attends to like any other token; or keep the ``last-k`` tokens of both (and the
            begin-of-text token), k being the shorter length.

    Raises:
        OptionError: no such alignment.
        DataError: prompts of unequal token length (both tokenisations are shown), unknown words, an
            answer that would join the last word, is not one token where one is needed, or is missing.
    """
    require_align(align)
    rows: list[Row] = []
    complaints = []
    for example, pair in enumerate(pairs):
        try:
            found = _rows_of(model, example, pair, metric, align)
            for row in found:
                _require_fitting(model, pair, row)
            rows += found
        except DataError as error:
            complaints.append(str(error))
    if len(complaints) == 1:
        raise DataError(complaints[0])
    if complaints:
        shown = "\n".join(complaints[:COMPLAINTS_SHOWN])
        rest = len(complaints) - COMPLAINTS_SHOWN
        more = f"\n... and {rest} more" if rest > 0 else ""
        raise DataError(f"{len(complaints)} of {len(pairs)} pairs cannot be used.\n{shown}{more}")
    return rows


def _require_fitting(model: Model, pair: PromptPair, row: Row) -> None:
    limit = model.context_length
    if limit is not None and len(row.clean) > limit:
        raise DataError(f"Pair {pair.id!r} is {len(row.clean)} tokens long; {model.name} takes {limit} at most.")
    largest = max(*row.clean, *row.corrupted, *row.tokens, row.wrong)
    if largest >= model.vocab_size:
        raise DataError(
            f"Pair {pair.id!r} has token {largest}, beyond the {model.vocab_size} of {model.name}. "
            "Is this its tokenizer?"
        )


def _rows_of(model: Model, example: int, pair: PromptPair, metric: Metric, align: Align) -> list[Row]:
    tokenizer = _tokenizer_of(model)
    clean, corrupted = (tuple(prompt_ids(tokenizer, text)) for text in (pair.clean, pair.corrupted))
    for name, ids in (("clean", clean), ("corrupted", corrupted)):
        if not ids:
            raise DataError(f"The {name} prompt of pair {pair.id!r} has no tokens.")
        _require_known_words(tokenizer, ids, getattr(pair, name), f"The {name} prompt of pair {pair.id!r}")
    if len(clean) != len(corrupted):
        clean, corrupted = _aligned(tokenizer, pair, clean, corrupted, align)
    answer = _answer_ids(tokenizer, pair, pair.answer)
    if metric.answers == "answer":
        return [_sequence_row(example, clean, corrupted, answer)]
    if pair.wrong_answer is None:
        raise DataError(
            f"Pair {pair.id!r} has no wrong_answer, which {metric.name} needs. Give one, or use --metric log-prob."
        )
    wrong = _answer_ids(tokenizer, pair, pair.wrong_answer)
    if answer == wrong:
        raise DataError(f"Pair {pair.id!r}: answer and wrong_answer are the same tokens {_show(tokenizer, answer)}.")
    if len(answer) == len(wrong) == 1:
        return [Row(example, clean, corrupted, (len(clean) - 1,), answer, wrong=wrong[0])]
    if metric.answers == "single":
        text, ids = (pair.answer, answer) if len(answer) > 1 else (pair.wrong_answer, wrong)
        raise DataError(
            f"Pair {pair.id!r}: {text!r} is {len(ids)} tokens {_show(tokenizer, ids)}; {metric.name} compares "
            "single tokens. Use --metric log-prob-diff."
        )
    return [
        _sequence_row(example, clean, corrupted, answer),
        _sequence_row(example, clean, corrupted, wrong, sign=-1),
    ]


def _aligned(
    tokenizer: PreTrainedTokenizerBase,
    pair: PromptPair,
    clean: tuple[int, ...],
    corrupted: tuple[int, ...],
    align: Align,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompts of unequal length made equally long, counted from the end."""
    shown = f"  clean:     {_show(tokenizer, clean)}\n  corrupted: {_show(tokenizer, corrupted)}"
    if align == "reject":
        raise DataError(
            f"Pair {pair.id!r}: clean and corrupted have {len(clean)} and {len(corrupted)} tokens; "
            "patching needs equal lengths. Change the prompts, or use --align pad or --align last-k.\n" + shown
        )
    front = int(clean[0] == corrupted[0] and clean[0] in tokenizer.all_special_ids)
    if align == "pad":
        pad, length = _pad_token(tokenizer), max(len(clean), len(corrupted))
        made = [ids[:front] + (pad,) * (length - len(ids)) + ids[front:] for ids in (clean, corrupted)]
    else:
        k = min(len(clean), len(corrupted)) - front
        made = [ids[:front] + ids[len(ids) - k :] for ids in (clean, corrupted)]
    if made[0] == made[1]:
        raise DataError(
            f"Pair {pair.id!r}: --align {align} leaves no difference between clean and corrupted"
            f"{'; use --align pad' if align == 'last-k' else ''}.\n{shown}"
        )
    return made[0], made[1]


def _pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The padding token, else a newline or a space."""
    if tokenizer.pad_token_id is not None:
        return int(tokenizer.pad_token_id)
    for text in ("\n", " "):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
            return int(ids[0])
    raise DataError("This tokenizer has no token for --align pad: no padding, newline or space. Use --align last-k.")


def _sequence_row(
    example: int, clean: tuple[int, ...], corrupted: tuple[int, ...], answer: tuple[int, ...], sign: int = 1
) -> Row:
    positions = tuple(range(len(clean) - 1, len(clean) - 1 + len(answer)))
    return Row(example, clean + answer[:-1], corrupted + answer[:-1], positions, answer, sign=sign)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids with what the tokenizer puts in front, but never a second begin-of-text token, and open at the end.

    Tokenizers that close every text would close a prompt before its answer.
    """
    bare: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer.bos_token_id is not None and tokenizer.bos_token_id in bare:
        return bare
    whole: list[int] = tokenizer(text)["input_ids"]
    for before in range(len(whole) - len(bare) + 1):
        if whole[before : before + len(bare)] == bare:
            return whole[:before] + bare
    return whole


def _answer_ids(tokenizer: PreTrainedTokenizerBase, pair: PromptPair, answer: str) -> tuple[int, ...]:
    found = {_continuation(tokenizer, pair, answer, prompt) for prompt in (pair.clean, pair.corrupted)}
    if len(found) != 1:
        shown = " and ".join(_show(tokenizer, ids) for ids in sorted(found))
        raise DataError(f"Pair {pair.id!r}: {answer!r} is tokenised differently after its two prompts: {shown}.")
    (ids,) = found
    _require_known_words(tokenizer, ids, answer, f"The answer {answer!r} of pair {pair.id!r}")
    return ids


def _continuation(tokenizer: PreTrainedTokenizerBase, pair: PromptPair, answer: str, prompt: str) -> tuple[int, ...]:
    """The tokens that ``answer`` adds to ``prompt``."""
    if _is_cased_letter(prompt[-1:]) and _is_cased_letter(answer[:1]):
        raise DataError(
            f"Pair {pair.id!r}: the answer {answer!r} would continue the word {prompt.split()[-1]!r}. "
            f"If it is a word of its own, write {' ' + answer!r}."
        )
    before = prompt_ids(tokenizer, prompt)
    together = prompt_ids(tokenizer, prompt + answer)
    if together[: len(before)] != before or len(together) == len(before):
        raise DataError(
            f"Pair {pair.id!r}: the answer {answer!r} does not begin a new token after its prompt.\n"
            f"  prompt:      {_show(tokenizer, before)}\n  with answer: {_show(tokenizer, together)}\n"
            "Move a space at the end of the prompt to the start of the answer, or split elsewhere."
        )
    return tuple(together[len(before) :])


def _is_cased_letter(character: str) -> bool:
    return character.lower() != character.upper()


def _require_known_words(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str, what: str) -> None:
    # A begin-of-text token may double as the unknown one; written out in the text it is meant.
    unknown = tokenizer.unk_token_id
    expected = unknown == tokenizer.bos_token_id or str(tokenizer.unk_token) in text
    if unknown is not None and unknown in ids and not expected:
        raise DataError(f"{what} has words that this tokenizer does not know: {_show(tokenizer, ids)}.")


def _show(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Tokens in brackets, long sequences shortened."""
    shown = [f"[{token}]" for token in tokenizer.convert_ids_to_tokens(list(ids))]
    return " ".join(shown if len(shown) <= 60 else [*shown[:40], "...", *shown[-19:]])


def _tokenizer_of(model: Model) -> PreTrainedTokenizerBase:
    if model.tokenizer is None:
        raise DataError(f"{model.name} was loaded without a tokenizer; pass one: assay.load(model, tokenizer).")
    return model.tokenizer
