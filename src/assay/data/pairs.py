"""Prompt pairs: a clean and a corrupted prompt, the answer to the clean one, and a wrong answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

from assay.errors import DataError

REQUIRED = ("clean", "corrupted", "answer")
OPTIONAL = ("wrong_answer", "id", "group")
ANSWERS = ("answer", "wrong_answer")
CUSTOM = "custom"
"""The task of pairs that were given as such."""
Answer = str | Sequence[str]
"""One text, or a set of texts whose probabilities add."""


@dataclass(frozen=True)
class PromptPair:
    """Two prompts of equal token length and what should follow the clean one.

    Answers continue the prompt literally, so most need their leading space: ``" Paris"``. A list of answers is a
    set: their probabilities add. It is kept as a tuple, a list of one as its string.
    """

    clean: str
    corrupted: str
    answer: Answer
    wrong_answer: Answer | None = None
    id: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        for name in ANSWERS:
            given = getattr(self, name)
            if isinstance(given, (list, tuple)):
                object.__setattr__(self, name, given[0] if len(given) == 1 else tuple(given))

    def swapped(self) -> PromptPair:
        """Clean and corrupted exchanged, and the answers with them."""
        if self.wrong_answer is None:
            raise DataError(f"Pair {self.id!r} has no wrong_answer, so it cannot be swapped.")
        return PromptPair(self.corrupted, self.clean, self.wrong_answer, self.answer, self.id, self.group)


@dataclass(frozen=True)
class PromptPairs(Sequence[PromptPair]):
    """Pairs of one task, with the metric it is usually measured by and how it was made."""

    pairs: tuple[PromptPair, ...]
    task: str = CUSTOM
    metric: str | None = None
    """The task's metric; None: logit-diff where every pair has one single-token answer and wrong answer, else
    log-prob-diff or log-prob."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise DataError("There are no prompt pairs.")
        numbered = tuple(
            pair if pair.id else PromptPair(**{**asdict(pair), "id": str(number)})
            for number, pair in enumerate(self.pairs)
        )
        for pair in numbered:
            for name, value in asdict(pair).items():
                if name in ANSWERS and isinstance(value, tuple):
                    if not value:
                        raise DataError(f"Pair {pair.id!r}: {name} is an empty list. Give at least one string.")
                    for text in value:
                        require_text(text, f"each of {name}", f"Pair {pair.id!r}")
                else:
                    require_text(value, name, f"Pair {pair.id!r}")
        object.__setattr__(self, "pairs", numbered)

    @overload
    def __getitem__(self, index: int) -> PromptPair: ...
    @overload
    def __getitem__(self, index: slice) -> PromptPairs: ...
    def __getitem__(self, index: int | slice) -> PromptPair | PromptPairs:
        if isinstance(index, slice):
            return PromptPairs(self.pairs[index], self.task, self.metric, self.options)
        return self.pairs[index]

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[PromptPair]:
        return iter(self.pairs)

    @property
    def title(self) -> str:
        """The task's name; of a file, its name in quotes."""
        if self.task == CUSTOM:
            return "these prompts"
        return f'"{self.options["file"]}"' if "file" in self.options else self.task

    @property
    def behaviour(self) -> str:
        """What components drive, in a sentence."""
        return self.title if self.title == self.task else f"the behaviour in {self.title}"

    def swapped(self) -> PromptPairs:
        """Every pair with clean and corrupted exchanged."""
        return PromptPairs(tuple(pair.swapped() for pair in self), self.task, self.metric, self.options)

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary per pair; a set of answers is a list."""
        return [
            {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(pair).items()}
            for pair in self
        ]


def members(answer: Answer) -> tuple[str, ...]:
    """The texts of an answer: one, or those of a set."""
    return (answer,) if isinstance(answer, str) else tuple(answer)


def require_text(text: Any, name: str, where: str) -> None:
    """Refuse what is no string, or none that can be written down; a wrong answer may be missing.

    Raises:
        DataError: with ``where`` and ``name``.
    """
    if text is None and name == "wrong_answer":
        return
    if not isinstance(text, str):
        raise DataError(f"{where}: {name} must be a string, not {type(text).__name__}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {name} holds half a surrogate pair, which is not text.") from error
