"""JSON Lines: one JSON object per line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from assay.data.complaints import of_each
from assay.data.pairs import REQUIRED, PromptPairs
from assay.data.readers.rows import Columns, Entry, decode, read_bytes, require_columns, to_pairs
from assay.errors import DataError


def read_jsonl(path: str | Path, columns: Columns | None = None) -> PromptPairs:
    """Read pairs from a file with one JSON object per line.

    Columns ``clean``, ``corrupted`` and ``answer`` are required, ``wrong_answer``, ``id`` and ``group``
    optional; others are ignored. Blank lines are skipped.

    Raises:
        DataError: no such file, nothing in it, or a bad line (named by its number).
    """
    content = read_bytes(path)
    pairs = to_pairs(jsonl_entries(content, str(path)), require_columns(columns))
    options = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "file": Path(path).name,
        **({"columns": dict(columns)} if columns else {}),
    }
    return PromptPairs(pairs, task=Path(path).stem, options=options)


def jsonl_entries(content: bytes, name: str, required: Sequence[str] = REQUIRED) -> list[Entry]:
    """The objects of the lines that are not blank; ``required`` is what errors say that they need."""
    # Not splitlines: a prompt may hold characters such as U+2028 that it would cut at.
    numbered = [(number, line) for number, line in enumerate(decode(content, name).split("\n"), 1) if line.strip()]
    if not numbered:
        raise DataError(f"{name} is empty. It needs one JSON object per line with {', '.join(required)}.")
    return of_each(lambda each: _parse(each[1], name, f"line {each[0]}", required), numbered, f"lines of {name}")


def _parse(line: str, name: str, label: str, required: Sequence[str]) -> Entry:
    try:
        values = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        what = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deep"
        raise DataError(f"{name}, {label}: not JSON ({what}).") from error
    if not isinstance(values, dict):
        raise DataError(f"{name}, {label}: expected a JSON object with {', '.join(required)}.")
    return Entry(name, label, values)
