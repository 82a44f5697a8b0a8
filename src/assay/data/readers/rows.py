"""From the rows of any table to prompt pairs: columns, their names, and what is refused."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.data.complaints import of_each
from assay.data.pairs import OPTIONAL, REQUIRED, Answer, PromptPair
from assay.errors import DataError, OptionError

KNOWN = REQUIRED + OPTIONAL
Columns = Mapping[str, str]
"""assay's name of a column to the file's name of it."""


@dataclass(frozen=True)
class Entry:
    """One row as the file has it, and where it stands: ``line 3`` or ``row 3``."""

    file: str
    label: str
    values: dict[str, Any]

    @property
    def where(self) -> str:
        return f"{self.file}, {self.label}"


def read_bytes(path: str | Path) -> bytes:
    """The file's content.

    Raises:
        DataError: no such file, or an unreadable one.
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def decode(content: bytes, name: str) -> str:
    """UTF-8, with or without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} cannot be read as UTF-8 text: {error}. Save it as UTF-8.") from error


def parse_columns(text: str | None) -> dict[str, str]:
    """``clean=prompt,answer=target`` as a dictionary.

    Raises:
        OptionError: anything else.
    """
    columns: dict[str, str] = {}
    for part in (text or "").split(",") if text is not None else ():
        name, equals, column = part.partition("=")
        if not (equals and name.strip() and column) or name.strip() in columns:
            raise OptionError(f"--columns is like clean=prompt,answer=target, each name once; not {text!r}.")
        columns[name.strip()] = column
    return require_columns(columns)


def require_columns(columns: Columns | None) -> dict[str, str]:
    """The mapping, if all its keys are columns that assay knows.

    Raises:
        OptionError: an unknown one.
    """
    for name in columns or {}:
        if name not in KNOWN:
            raise OptionError(f"--columns maps {', '.join(KNOWN)}; there is no {name!r}.")
    mapped = [(columns or {}).get(name, name) for name in KNOWN]
    twice = [column for column in mapped if mapped.count(column) > 1]
    if twice:
        raise OptionError(
            f"--columns gives the column {twice[0]!r} two meanings. Map the other one to a column as well."
        )
    return dict(columns or {})


def to_pairs(entries: Sequence[Entry], columns: Columns) -> tuple[PromptPair, ...]:
    """A pair per entry.

    Raises:
        DataError: a column that is missing or nearly has a known name, a value that is no text, an id twice.
    """
    require_present(entries, columns)
    for name in dict.fromkeys(name for entry in entries for name in entry.values):
        _require_no_misspelling(name, columns, next(entry for entry in entries if name in entry.values))
    _require_complete(entries, columns)
    pairs = tuple(of_each(lambda entry: _to_pair(entry, columns), entries, f"rows of {entries[0].file}"))
    seen: set[str] = set()
    for pair in pairs:
        if pair.id in seen:
            raise DataError(f"{entries[0].file}: the id {pair.id!r} is given to more than one pair.")
        seen.add(pair.id)
    return pairs


def require_present(entries: Sequence[Entry], columns: Columns) -> None:
    """Refuse a mapping to a column that no entry has."""
    present = {name: None for entry in entries for name in entry.values}
    for name, column in columns.items():
        if column not in present:
            raise DataError(
                f"{entries[0].file} has no column {column!r}, which --columns gives for {name}. It has "
                f"{', '.join(map(repr, present))}."
            )


def _require_complete(entries: Sequence[Entry], columns: Columns) -> None:
    """Refuse a table that lacks a whole column, with all that it lacks."""
    present = {name: None for entry in entries for name in entry.values}
    lacking = [name for name in REQUIRED if columns.get(name, name) not in present]
    if lacking:
        mapping = ",".join(f"{name}=..." for name in lacking)
        raise DataError(
            f"{entries[0].file} lacks {', '.join(repr(columns.get(name, name)) for name in lacking)}. Needed: "
            f"{', '.join(REQUIRED)}. It has {', '.join(map(repr, present))}; --columns {mapping} (in Python: columns=) "
            "says which of them is which."
        )


def _require_no_misspelling(name: str, columns: Columns, entry: Entry) -> None:
    close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.8)
    if close and name not in KNOWN and name not in columns.values() and close[0] not in columns:
        raise DataError(f"{entry.where}: column {name!r} is not known; did you mean {close[0]!r}?")


def text_of(entry: Entry, name: str, columns: Columns) -> str:
    """The text that an entry has for one of assay's columns.

    Raises:
        DataError: there is none, or it is not text.
    """
    return _text(entry, _value(entry, name, columns), columns.get(name, name))


def answer_of(entry: Entry, name: str, columns: Columns) -> Answer:
    """The text, or the texts of a set, that an entry has for ``answer`` or ``wrong_answer``.

    Raises:
        DataError: there is none, or something in it is not text.
    """
    value, column = _value(entry, name, columns), columns.get(name, name)
    if not isinstance(value, list):
        return _text(entry, value, column)
    if not value:
        raise DataError(f"{entry.where}: {column!r} is an empty list. Give at least one string.")
    return tuple(_text(entry, text, column) for text in value)


def _value(entry: Entry, name: str, columns: Columns) -> Any:
    column = columns.get(name, name)
    if column not in entry.values:
        raise DataError(
            f"{entry.where}: column {column!r} is missing; other rows have it. There are "
            f"{', '.join(map(repr, entry.values))}."
        )
    return entry.values[column]


def _text(entry: Entry, value: Any, column: str) -> str:
    if not isinstance(value, str) or not value:
        shown = "empty" if value is None else json.dumps(value, default=str)
        raise DataError(f"{entry.where}: {column!r} must be a non-empty string, not {shown}.")
    return value


def _to_pair(entry: Entry, columns: Columns) -> PromptPair:
    wrong, identifier, group = (entry.values.get(columns.get(name, name)) for name in OPTIONAL)
    return PromptPair(
        clean=text_of(entry, "clean", columns),
        corrupted=text_of(entry, "corrupted", columns),
        answer=answer_of(entry, "answer", columns),
        wrong_answer=None if wrong is None else answer_of(entry, "wrong_answer", columns),
        id=entry.label if identifier is None else str(identifier),
        group="" if group is None else str(group),
    )
