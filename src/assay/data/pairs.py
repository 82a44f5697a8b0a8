"""Prompt pairs: a clean and a corrupted prompt, the answer to the clean one, and a wrong answer."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
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


def read_jsonl(path: str | Path) -> PromptPairs:
    """Read pairs from a file with one JSON object per line.

    Columns ``clean``, ``corrupted`` and ``answer`` are required, ``wrong_answer``, ``id`` and ``group``
    optional; others are ignored. Blank lines are skipped.

    Raises:
        DataError: no such file, nothing in it, or a bad line (named by its number).
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
    # Not splitlines: a prompt may hold characters such as U+2028 that it would cut at.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty. It needs one JSON object per line with {', '.join(REQUIRED)}.")
    pairs = tuple(_parse_line(line, f"{path}, line {number}", number) for number, line in lines)
    _require_distinct_ids(pairs, path)
    return PromptPairs(pairs, task=path.stem, options={"sha256": hashlib.sha256(content).hexdigest()})


def as_pairs(pairs: PromptPairs | Sequence[PromptPair | dict[str, str]] | str | Path) -> PromptPairs:
    """Pairs from whatever a user has: pairs, a list of them or of dictionaries, or the path of a JSONL file.

    Raises:
        DataError: something else.
    """
    if isinstance(pairs, PromptPairs):
        return pairs
    if isinstance(pairs, (str, Path)):
        return read_jsonl(pairs)
    try:
        return PromptPairs(tuple(pair if isinstance(pair, PromptPair) else PromptPair(**pair) for pair in pairs))
    except TypeError as error:
        raise DataError(
            "Give prompt pairs as assay.PromptPairs, a list of assay.PromptPair or of dictionaries with "
            f"{', '.join(REQUIRED)}, or the path of a .jsonl file ({error})."
        ) from error


def _require_text(text: Any, name: str, where: str) -> None:
    if text is None and name == "wrong_answer":
        return
    if not isinstance(text, str):
        raise DataError(f"{where}: {name} must be a string, not {type(text).__name__}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {name} holds half a surrogate pair, which is not text.") from error


def _parse_line(line: str, where: str, number: int) -> PromptPair:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    if not isinstance(entry, dict):
        raise DataError(f"{where}: expected a JSON object with {', '.join(REQUIRED)}.")
    for name in entry:
        close = difflib.get_close_matches(name, REQUIRED + OPTIONAL, n=1, cutoff=0.8)
        if name not in REQUIRED + OPTIONAL and close:
            raise DataError(f"{where}: column {name!r} is not known; did you mean {close[0]!r}?")
    missing = [name for name in REQUIRED if name not in entry]
    if missing:
        raise DataError(f"{where}: column {missing[0]!r} is missing. Needed: {', '.join(REQUIRED)}.")
    texts = {name: _text(entry[name], name, where) for name in REQUIRED}
    wrong = entry.get("wrong_answer")
    return PromptPair(
        **texts,
        wrong_answer=None if wrong is None else _text(wrong, "wrong_answer", where),
        id=str(entry.get("id", f"line {number}")),
        group=str(entry.get("group", "")),
    )


def _text(value: Any, name: str, where: str) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise DataError(f"{where}: {name!r} lists {len(value)} strings; sets of answers are not supported yet.")
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: {name!r} must be a non-empty string, not {json.dumps(value)}.")
    return value


def _require_distinct_ids(pairs: tuple[PromptPair, ...], path: Path) -> None:
    seen: set[str] = set()
    for pair in pairs:
        if pair.id in seen:
            raise DataError(f"{path}: the id {pair.id!r} is given to more than one pair.")
        seen.add(pair.id)
