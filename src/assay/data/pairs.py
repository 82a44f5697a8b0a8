"""Prompt pairs: a clean and a corrupted prompt, the answer to the clean one, and a wrong answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

from assay.errors import DataError

REQUIRED = ("clean", "corrupted", "answer")
OPTIONAL = ("wrong_answer", "id", "group")


@dataclass(frozen=True)
class PromptPair:
    """Two prompts of equal token length and what should follow the clean one.

    Answers continue the prompt literally, so most need their leading space: ``" Paris"``.
    """

    clean: str
    corrupted: str
    answer: str
    wrong_answer: str | None = None
    id: str = ""
    group: str = ""

    def swapped(self) -> PromptPair:
        """Clean and corrupted exchanged, and the answers with them."""
        if self.wrong_answer is None:
            raise DataError(f"Pair {self.id!r} has no wrong_answer, so it cannot be swapped.")
        return PromptPair(self.corrupted, self.clean, self.wrong_answer, self.answer, self.id, self.group)


@dataclass(frozen=True)
class PromptPairs(Sequence[PromptPair]):
    """Pairs of one task, with the metric it is usually measured by and how it was made."""

    pairs: tuple[PromptPair, ...]
    task: str = "custom"
    metric: str | None = None
    """The task's metric; None: logit-diff where every pair has single-token answers, else log-prob-diff or
    log-prob."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise DataError("There are no prompt pairs.")
        numbered = tuple(
            pair if pair.id else PromptPair(**{**asdict(pair), "id": str(number)})
            for number, pair in enumerate(self.pairs)
        )
        for pair in numbered:
            for name, text in asdict(pair).items():
                _require_text(text, name, f"Pair {pair.id!r}")
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

    def swapped(self) -> PromptPairs:
        """Every pair with clean and corrupted exchanged."""
        return PromptPairs(tuple(pair.swapped() for pair in self), self.task, self.metric, self.options)

    def to_records(self) -> list[dict[str, str | None]]:
        return [asdict(pair) for pair in self]


def _require_text(text: Any, name: str, where: str) -> None:
    if text is None and name == "wrong_answer":
        return
    if not isinstance(text, str):
        raise DataError(f"{where}: {name} must be a string, not {type(text).__name__}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {name} holds half a surrogate pair, which is not text.") from error
