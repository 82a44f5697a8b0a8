"""What is asked of a text: how much does each of its tokens speak for a target?"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from assay.data.chat import as_chat
from assay.data.complaints import of_each
from assay.data.encoding import Row, encode, prompt_ids, tokenizer_of
from assay.data.metrics import METRICS, Metric, Targets
from assay.data.pairs import PromptPair, PromptPairs, require_text
from assay.data.readers.jsonl import jsonl_entries
from assay.data.readers.rows import Entry, read_bytes
from assay.errors import DataError
from assay.model import Model
from assay.tokens.runs import next_token

NAMES_SHOWN = 4
COLUMNS = ("text", "target", "against", "id")

LOGIT = Metric(
    "logit",
    "logits",
    "logit of the target",
    answers="answer",
    reads="tokens",
    differentiable=True,
    row_values=lambda logits, targets: logits[..., 0].sum(-1),
)


@dataclass(frozen=True)
class Question:
    """A text, the continuation to be explained, and one that it is set against.

    Args:
        text: the prompt.
        target: literally what continues it, so mostly with a leading space; None: the model's most probable next token.
        against: another continuation, for a contrast; None: none.
    """

    text: str
    target: str | None = None
    against: str | None = None
    id: str = ""


@dataclass(frozen=True)
class Asked:
    """A question in token ids.

    T counts the prompt's tokens. What a target of several tokens has before its last one follows them in the rows.
    """

    question: Question
    prompt: tuple[int, ...]
    """T token ids, with what the tokenizer or chat template puts in front."""
    fixed: tuple[bool, ...]
    """T: special tokens, which stay in the baseline and therefore score 0."""
    target: tuple[int, ...]
    against: tuple[int, ...]
    rows: tuple[Row, ...]
    """One, or two where target and contrast are teacher-forced apart."""
    metric: Metric
    """What is explained: a logit or a difference of two; of several tokens, log-probabilities."""

    def targets(self, row: Row, count: int, device: torch.device) -> Targets:
        """What a metric reads, for so many sequences of a row."""

        def tensor(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, device=device).expand(count, -1)

        wrongs = tensor([row.wrong] * len(row.tokens)).unsqueeze(-1)
        signs = torch.full((count,), row.sign, device=device)
        return Targets(tensor(row.positions), tensor(row.tokens).unsqueeze(-1), wrongs, signs)

    @property
    def probability(self) -> Metric:
        """The target's probability, less that of the contrast."""
        return METRICS["prob-diff"]


def ask(model: Model, questions: Sequence[Question], *, chat: bool = False) -> list[Asked]:
    """The questions in token ids.

    Args:
        chat: put texts into the model's chat template.

    Raises:
        DataError: a text of less than two tokens or longer than the context, a target without tokens, one that would
            join the text's last word, or one that is the same as its contrast.
        OptionError: no chat template.
    """
    return of_each(lambda question: _ask(model, question, chat), numbered(questions), "texts")


def numbered(questions: Sequence[Question]) -> list[Question]:
    """The questions, each with an id.

    Raises:
        DataError: none, something else than questions, or what is no text in one.
    """
    if isinstance(questions, (str, Question)) or not isinstance(questions, Sequence):
        raise DataError(
            f"Texts are a list of assay.Question, not {questions!r:.80}. For one text there is assay.explain."
        )
    if not questions:
        raise DataError("There are no texts.")
    found = []
    for number, question in enumerate(questions, 1):
        if not isinstance(question, Question):
            raise DataError(f"text {number} is {question!r:.80}. Write assay.Question(text, target, against).")
        found.append(question if question.id else replace(question, id=f"text {number}"))
    return of_each(_of_text, found, "texts")


def _of_text(question: Question) -> Question:
    for name in ("text", "target", "against"):
        given = getattr(question, name)
        if given is None and name != "text":
            continue
        require_text(given, name, question.id)
        if not given:
            what = "Leave it out for the model's most probable next token." if name == "target" else "Give some text."
            raise DataError(f"{question.id}: {name} is empty, so it has no tokens. {what}")
    return question


def _ask(model: Model, question: Question, chat: bool) -> Asked:
    tokenizer = tokenizer_of(model)
    text = question.text
    if chat:
        text = as_chat(model, PromptPairs((PromptPair(text, text, "-"),)))[0].clean
    prompt, target = _continued(model, question, text, question.target)
    special = set(tokenizer.all_special_ids)
    fixed = tuple(token in special for token in prompt)
    if len(prompt) < 2 or all(fixed):
        raise DataError(
            f"{question.id}: {question.text!r} is {len(prompt)} token{'s' * (len(prompt) > 1)}; a comparison of tokens "
            "needs a text of at least two, not all of them special."
        )
    if not target:
        target = (next_token(model, prompt, question.id),)
    against = () if question.against is None else _continued(model, question, text, question.against)[1]
    if target == against:
        shown = tokenizer.decode(list(target))
        raise DataError(f"{question.id}: target and against are the same, {shown!r}, so there is no contrast.")
    rows, metric = _rows(prompt, target, against)
    return Asked(question, prompt, fixed, target, against, rows, metric)


def _continued(
    model: Model, question: Question, text: str, answer: str | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids of a text and of what continues it; without a continuation the text alone, checked alike."""
    if answer is None:
        ids = prompt_ids(tokenizer_of(model), text)
        limit = model.context_length
        if limit is not None and len(ids) > limit:
            raise DataError(f"{question.id} is {len(ids)} tokens long; {model.name} takes {limit} at most.")
        if ids and max(ids) >= model.vocab_size:
            raise DataError(f"{question.id} has token {max(ids)}, beyond the {model.vocab_size} of {model.name}.")
        return tuple(ids), ()
    pairs = PromptPairs((PromptPair(text, text, answer, id=question.id),))
    try:
        (row,) = encode(model, pairs, METRICS["log-prob"])
    except DataError as error:  # it speaks of pairs, and there are none here
        pair = rf"(The clean prompt of )?[Pp]air {re.escape(repr(question.id))}"
        raise DataError(re.sub(pair, lambda _: question.id, str(error), count=1)) from error
    return row.clean[: row.positions[0] + 1], row.tokens


def _rows(prompt: tuple[int, ...], target: tuple[int, ...], against: tuple[int, ...]) -> tuple[tuple[Row, ...], Metric]:
    def row(answer: tuple[int, ...], wrong: int = -1, sign: int = 1) -> Row:
        ids = prompt + answer[:-1]
        positions = tuple(range(len(prompt) - 1, len(ids)))
        return Row(0, ids, ids, positions, answer, wrong=wrong, sign=sign)

    if not against:
        return (row(target),), LOGIT if len(target) == 1 else METRICS["log-prob"]
    if len(target) == len(against) == 1:
        return (row(target, wrong=against[0]),), METRICS["logit-diff"]
    return (row(target), row(against, sign=-1)), METRICS["log-prob-diff"]


def require_one_kind(kinds: Sequence[tuple[str, str]]) -> None:
    """Refuse to average over texts whose numbers are of different metrics.

    Args:
        kinds: of each text, its name and how it is explained.

    Raises:
        DataError: with how the texts divide.
    """
    texts_of: dict[str, list[str]] = {}
    for name, kind in kinds:
        texts_of.setdefault(kind, []).append(name)
    if len(texts_of) < 2:
        return
    listed = "; ".join(
        f"{len(names)} {kind} ({', '.join(names[:NAMES_SHOWN])}{', ...' if len(names) > NAMES_SHOWN else ''})"
        for kind, names in texts_of.items()
    )
    raise DataError(
        f"Faithfulness is averaged over texts, which must be explained alike. Of {len(kinds)} there are {listed}. "
        "Give all of them targets of one token or all of several, and all or none of them a contrast (against); or "
        "make a file of each kind."
    )


def read_questions(path: str | Path) -> list[Question]:
    """Questions from a JSON Lines file with ``text`` and, where wanted, ``target``, ``against`` and ``id``.

    Raises:
        DataError: no such file, nothing in it, or a bad line (named by its number).
    """
    return questions_of(read_bytes(path), str(path))


def questions_of(content: bytes, name: str) -> list[Question]:
    """`read_questions` of what a file holds."""
    try:
        entries = jsonl_entries(content, name, COLUMNS[:1])
    except DataError as error:
        example = json.dumps({"text": "The capital of France is", "target": " Paris"})
        raise DataError(f"{error}\nA file of texts has one JSON object a line, such as {example}") from error
    return of_each(_question, entries, f"lines of {name}")


def _question(entry: Entry) -> Question:
    def text(name: str) -> Any:
        value = entry.values.get(name)
        if value is None and name != "text":
            return None
        if not isinstance(value, str) or not value:
            raise DataError(f"{entry.where}: {name!r} must be a non-empty string, not {json.dumps(value)}.")
        require_text(value, repr(name), entry.where)
        return value

    if "text" not in entry.values:
        there = ", ".join(map(repr, entry.values)) or "nothing"
        raise DataError(f"{entry.where}: there is no 'text'; there is {there}. Known are {', '.join(COLUMNS)}.")
    identifier = entry.values.get("id")
    return Question(
        text("text"), text("target"), text("against"), entry.label if identifier is None else str(identifier)
    )
