"""Tables: CSV with a header, parquet, and JSON that is a list of objects. Rows count from 1 after the header."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from assay.data.complaints import of_each
from assay.data.pairs import REQUIRED
from assay.data.readers.rows import Entry, decode
from assay.errors import DataError

LIST = re.compile(r"""\s*\[\s*["'].*\]\s*""", re.DOTALL)


def csv_entries(content: bytes, name: str, answers: Collection[str] = ()) -> list[Entry]:
    """Cells as the text they are: ``NA`` and ``007`` stay what they say, spaces count, an empty cell is no value.

    Args:
        answers: columns in which a JSON array of strings is a list.
    """
    text = decode(content, name)
    try:
        # The header is read as a row: pandas would rename columns that come twice, and make an index of an unnamed one.
        frame = pd.read_csv(io.StringIO(text), header=None, dtype=str, keep_default_na=False, index_col=False)
    except pd.errors.EmptyDataError:
        raise DataError(f"{name} is empty. It needs a header with {', '.join(REQUIRED)}.") from None
    except (pd.errors.ParserError, ValueError) as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        raise DataError(f"{name} is not comma-separated text: {reason}. Put texts with commas in quotes.") from error
    header, *rows = frame.values.tolist()
    twice = [column for column, count in Counter(header).items() if count > 1 and column]
    if twice:
        raise DataError(f"{name} has more than one column {twice[0]!r}. Rename all but one.")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise DataError(f"{name} has columns that are not separated by commas: {header[0]!r}. Save it with commas.")
    entries = _entries([{c: v or None for c, v in _pairs_in(header, row)} for row in rows], name)

    def with_lists(entry: Entry) -> Entry:
        lists = {c: _listed(entry, c) for c in answers if LIST.fullmatch(entry.values.get(c) or "")}
        return replace(entry, values=entry.values | lists)

    return of_each(with_lists, entries, f"rows of {name}")


def _listed(entry: Entry, column: str) -> list[Any]:
    """A cell's JSON array. ``['a', 'b']``, as Python writes it, is refused: NumPy writes the same without commas."""
    cell: str = entry.values[column]
    try:
        found: list[Any] = json.loads(cell)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(
            f"{entry.where}: {column!r} looks like a list but is not a JSON array: {cell[:60]} Write it as in "
            '["one", "two"].'
        ) from error
    return found


def parquet_entries(content: bytes, name: str) -> list[Entry]:
    try:
        rows = pa.parquet.read_table(io.BytesIO(content)).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{name} is not a parquet file that can be read: {error}") from error
    return _entries(rows, name)


def json_entries(document: list[Any], name: str) -> list[Entry]:
    def require_object(numbered: tuple[int, Any]) -> None:
        number, row = numbered
        if not isinstance(row, dict):
            raise DataError(f"{name}, row {number}: expected a JSON object with {', '.join(REQUIRED)}.")

    of_each(require_object, list(enumerate(document, 1)), f"rows of {name}")
    return _entries(document, name)


def _pairs_in(header: list[str], row: list[Any]) -> list[tuple[str, str | None]]:
    """Columns with their cells; cells that a short row lacks are NaN."""
    return [(column, cell if isinstance(cell, str) else None) for column, cell in zip(header, row, strict=True)]


def _entries(rows: list[dict[str, Any]], name: str) -> list[Entry]:
    if not rows:
        raise DataError(f"{name} has no rows.")
    return [Entry(name, f"row {number}", row) for number, row in enumerate(rows, 1)]
