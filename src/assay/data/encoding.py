"""From text to token ids, refusing what would be measured wrongly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from transformers import PreTrainedTokenizerBase

from assay.data.complaints import of_each
from assay.data.metrics import METRICS, Metric, metric_named
from assay.data.pairs import Answer, PromptPair, PromptPairs, members
from assay.errors import DataError, OptionError, instead_of
from assay.model import Model

Align = Literal["reject", "skip", "pad", "last-k"]
"""What happens to two prompts of unequal token length: see `encode`."""


@dataclass(frozen=True)
class Row:
    """One sequence to run, clean and corrupted, and where its answer is read.

    A multi-token answer is teacher-forced: all but its last token follow the prompt. A set of answers has one token
    in ``tokens`` (or ``wrong``) and its other members in ``further`` (``further_wrong``).
    """

    example: int
    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    wrong: int = -1
    sign: int = 1
    further: tuple[int, ...] = ()
    further_wrong: tuple[int, ...] = ()
    copy: int = 0
    """How many earlier examples have a row of the same tokens."""

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
        return metric_named(
            pairs.metric
        ), f"the metric of {'the task ' if pairs.title == pairs.task else ''}{pairs.title}"
    for pair in pairs:
        if pair.wrong_answer is None:
            return METRICS["log-prob"], f"pair {pair.id!r} has no wrong_answer"
    tokenizer = tokenizer_of(model)
    for pair in pairs:
        for answer in (pair.answer, pair.wrong_answer or ""):
            if not isinstance(answer, str):
                return METRICS["log-prob-diff"], f"pair {pair.id!r} has a set of answers"
            (ids,) = _continuations(tokenizer, pair, [answer], pair.clean)
            if len(ids) != 1:
                return METRICS["log-prob-diff"], f"{answer!r} of pair {pair.id!r} is {len(ids)} tokens"
    return METRICS["logit-diff"], "all answers are single tokens"


def require_align(align: str) -> None:
    """Refuse an alignment that does not exist."""
    if align not in get_args(Align):
        raise OptionError(f"There is no alignment {align!r}. {instead_of(align, get_args(Align))}")


def encode(model: Model, pairs: PromptPairs, metric: Metric, align: Align = "reject") -> list[Row]:
    """Rows to run for these pairs under this metric, in the order of the pairs.

    Args:
        align: what to do with two prompts of unequal token length. ``reject`` them (so does ``skip``: what it leaves
            out, `assay.data.equal_lengths.equal_lengths` has left out before); ``pad`` the shorter in front
            (after its begin-of-text token) with the tokenizer's padding token, else a newline or space, which the
            model sees and attends to like any other token; or keep the ``last-k`` tokens of both (and the
            begin-of-text token), k being the shorter length.

    Raises:
        OptionError: no such alignment.
        DataError: prompts of unequal token length (both tokenisations are shown), unknown words, an
            answer that would join the last word, is not one token where one is needed, or is missing; a set of
            answers with a member of several tokens, one that is there twice or in both sets, or for a metric that
            takes none.
    """
    require_align(align)

    def rows_of(numbered: tuple[int, PromptPair]) -> list[Row]:
        example, pair = numbered
        rows = _rows_of(model, example, pair, metric, align)
        for row in rows:
            _require_fitting(model, pair, row)
        return rows

    return _with_copies(of_each(rows_of, list(enumerate(pairs)), "pairs"))


def _with_copies(examples: Sequence[list[Row]]) -> list[Row]:
    """All rows, each with the number of earlier examples that have its tokens with an answer of the same sign."""
    seen: Counter[tuple[object, ...]] = Counter()
    found = []
    for rows in examples:
        keys = [(row.clean, row.corrupted, row.sign) for row in rows]
        found += [replace(row, copy=seen[key]) for row, key in zip(rows, keys, strict=True)]
        seen.update(set(keys))
    return found


def _require_fitting(model: Model, pair: PromptPair, row: Row) -> None:
    limit = model.context_length
    if limit is not None and len(row.clean) > limit:
        raise DataError(f"Pair {pair.id!r} is {len(row.clean)} tokens long; {model.name} takes {limit} at most.")
    largest = max(*row.clean, *row.corrupted, *row.tokens, row.wrong, *row.further, *row.further_wrong)
    if largest >= model.vocab_size:
        raise DataError(
            f"Pair {pair.id!r} has token {largest}, beyond the {model.vocab_size} of {model.name}. "
            "Is this its tokenizer?"
        )


def _rows_of(model: Model, example: int, pair: PromptPair, metric: Metric, align: Align) -> list[Row]:
    tokenizer = tokenizer_of(model)
    clean, corrupted = (tuple(prompt_ids(tokenizer, text)) for text in (pair.clean, pair.corrupted))
    for name, ids in (("clean", clean), ("corrupted", corrupted)):
        if not ids:
            raise DataError(f"The {name} prompt of pair {pair.id!r} has no tokens.")
        _require_known_words(tokenizer, ids, getattr(pair, name), f"The {name} prompt of pair {pair.id!r}")
    if len(clean) != len(corrupted):
        clean, corrupted = _aligned(tokenizer, pair, clean, corrupted, align)
    _require_sets_wanted(pair, metric)
    answer, further = _answer_ids(tokenizer, pair, "answer", pair.answer)
    if metric.answers == "answer":
        return [_sequence_row(example, clean, corrupted, answer, further)]
    if pair.wrong_answer is None:
        raise DataError(
            f"Pair {pair.id!r} has no wrong_answer, which {metric.name} needs. Give one, or use --metric log-prob "
            "(in Python: metric=)."
        )
    wrong, further_wrong = _answer_ids(tokenizer, pair, "wrong_answer", pair.wrong_answer)
    if answer == wrong and not further and not further_wrong:
        raise DataError(f"Pair {pair.id!r}: answer and wrong_answer are the same tokens {_show(tokenizer, answer)}.")
    if len(answer) == len(wrong) == 1:
        if shared := {*answer, *further} & {*wrong, *further_wrong}:
            raise DataError(
                f"Pair {pair.id!r}: {_show(tokenizer, sorted(shared))} belongs to both answer and wrong_answer. "
                "Leave it out of one."
            )
        row = _sequence_row(example, clean, corrupted, answer, further)
        return [replace(row, wrong=wrong[0], further_wrong=further_wrong)]
    if metric.answers == "single":
        text, ids = (pair.answer, answer) if len(answer) > 1 else (pair.wrong_answer, wrong)
        raise DataError(
            f"Pair {pair.id!r}: {text!r} is {len(ids)} tokens {_show(tokenizer, ids)}; {metric.name} compares "
            "single tokens. Use --metric log-prob-diff (in Python: metric=)."
        )
    return [
        _sequence_row(example, clean, corrupted, answer, further),
        _sequence_row(example, clean, corrupted, wrong, further_wrong, sign=-1),
    ]


def _require_sets_wanted(pair: PromptPair, metric: Metric) -> None:
    read = {"answer": pair.answer, "wrong_answer": None if metric.answers == "answer" else pair.wrong_answer}
    for name, answer in read.items():
        if answer is not None and not isinstance(answer, str) and not metric.takes_sets:
            raise DataError(
                f"Pair {pair.id!r}: {name} is a set of {len(answer)} strings, and {metric.name} takes no sets. Use "
                "--metric log-prob-diff or prob-diff (or log-prob; in Python: metric=), where their probabilities add. "
                "An assay.Metric of your own that reads targets.answers says takes_sets=True."
            )


def _aligned(
    tokenizer: PreTrainedTokenizerBase,
    pair: PromptPair,
    clean: tuple[int, ...],
    corrupted: tuple[int, ...],
    align: Align,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompts of unequal length made equally long, counted from the end."""
    shown = f"  clean:     {_show(tokenizer, clean)}\n  corrupted: {_show(tokenizer, corrupted)}"
    if align in ("reject", "skip"):
        raise DataError(
            f"Pair {pair.id!r}: clean and corrupted have {len(clean)} and {len(corrupted)} tokens; patching needs "
            "equal lengths. Change the prompts, or use --align skip, pad or last-k (in Python: align=).\n" + shown
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
    example: int,
    clean: tuple[int, ...],
    corrupted: tuple[int, ...],
    answer: tuple[int, ...],
    further: tuple[int, ...],
    sign: int = 1,
) -> Row:
    positions = tuple(range(len(clean) - 1, len(clean) - 1 + len(answer)))
    return Row(example, clean + answer[:-1], corrupted + answer[:-1], positions, answer, sign=sign, further=further)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids with what the tokenizer puts in front, but never a second begin-of-text token, and open at the end.

    Tokenizers that close every text would close a prompt before its answer.
    """
    return many_prompt_ids(tokenizer, [text])[0]


def many_prompt_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """`prompt_ids` of each text."""
    without, complete = (tokenizer(list(texts), add_special_tokens=special)["input_ids"] for special in (False, True))
    return [_open_ended(tokenizer, bare, whole) for bare, whole in zip(without, complete, strict=True)]


def _open_ended(tokenizer: PreTrainedTokenizerBase, bare: list[int], whole: list[int]) -> list[int]:
    if tokenizer.bos_token_id is not None and tokenizer.bos_token_id in bare:
        return bare
    for before in range(len(whole) - len(bare) + 1):
        if whole[before : before + len(bare)] == bare:
            return whole[:before] + bare
    return whole


def _answer_ids(
    tokenizer: PreTrainedTokenizerBase, pair: PromptPair, name: str, answer: Answer
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of an answer and none; of a set, the token of one member and those of the others."""
    texts = members(answer)
    after_clean, after_corrupted = (
        _continuations(tokenizer, pair, texts, prompt) for prompt in (pair.clean, pair.corrupted)
    )
    for text, ids, others in zip(texts, after_clean, after_corrupted, strict=True):
        if ids != others:
            shown = " and ".join(_show(tokenizer, each) for each in (ids, others))
            raise DataError(f"Pair {pair.id!r}: {text!r} is tokenised differently after its two prompts: {shown}.")
        _require_known_words(tokenizer, ids, text, f"The answer {text!r} of pair {pair.id!r}")
    if isinstance(answer, str):
        return after_clean[0], ()
    tokens: set[int] = set()
    for text, ids in zip(texts, after_clean, strict=True):
        if len(ids) > 1:
            raise DataError(
                f"Pair {pair.id!r}: {text!r}, one of {len(texts)} strings in {name}, is {len(ids)} tokens "
                f"{_show(tokenizer, ids)}. Give single-token members, or one answer."
            )
        if ids[0] in tokens:
            raise DataError(f"Pair {pair.id!r}: {text!r} is in {name} more than once.")
        tokens.add(ids[0])
    first, *further = sorted(tokens)  # sums then have the same bits in whatever order members are given
    return (first,), tuple(further)


def _continuations(
    tokenizer: PreTrainedTokenizerBase, pair: PromptPair, answers: Sequence[str], prompt: str
) -> list[tuple[int, ...]]:
    """The tokens that each of ``answers`` adds to ``prompt``."""
    for answer in answers:
        if _is_cased_letter(prompt[-1:]) and _is_cased_letter(answer[:1]):
            raise DataError(
                f"Pair {pair.id!r}: the answer {answer!r} would continue the word {prompt.split()[-1]!r}. "
                f"If it is a word of its own, write {' ' + answer!r}."
            )
    before, *continued = many_prompt_ids(tokenizer, [prompt, *(prompt + answer for answer in answers)])
    for answer, together in zip(answers, continued, strict=True):
        if together[: len(before)] != before or len(together) == len(before):
            raise DataError(
                f"Pair {pair.id!r}: the answer {answer!r} does not begin a new token after its prompt.\n"
                f"  prompt:      {_show(tokenizer, before)}\n  with answer: {_show(tokenizer, together)}\n"
                "Move a space at the end of the prompt to the start of the answer, or split elsewhere."
            )
    return [tuple(together[len(before) :]) for together in continued]


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


def tokenizer_of(model: Model) -> PreTrainedTokenizerBase:
    if model.tokenizer is None:
        raise DataError(f"{model.name} was loaded without a tokenizer; pass one: assay.load(model, tokenizer).")
    return model.tokenizer
