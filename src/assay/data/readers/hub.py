"""Hugging Face data sets: ``hf:owner/name[:config][:split]``, or a folder as the name. Needs the extra ``datasets``."""

from __future__ import annotations

import json
from typing import Any

from assay.data.readers.choices import is_choices
from assay.data.readers.mib import is_mib
from assay.data.readers.rows import KNOWN, Columns
from assay.errors import DataError, OptionError

PREFIX = "hf:"
SPLITS = ("train", "validation", "test")
FORM = "hf:owner/name, hf:owner/name:split, hf:owner/name:config:split or hf:owner/name::split"


def parse_name(text: str) -> tuple[str, str | None, str]:
    """Name, config and split. A single part after the name is a split if it is called like one, else a config.

    Raises:
        OptionError: not such a name.
    """
    # A slice such as test[:100] has a colon of its own.
    head, bracket, cut = text.removeprefix(PREFIX).partition("[")
    name, *parts = head.split(":")
    if len(parts) == 1 and (parts[0] in SPLITS or bracket):
        parts = ["", *parts]
    config, split = [*parts, "", ""][:2]
    if not name or len(parts) > 2 or (bracket and not split):
        raise OptionError(f"A data set is named {FORM}, not {text!r}.")
    return name, config or None, (split or "train") + bracket + cut


def fetch_rows(text: str, columns: Columns) -> bytes:
    """The rows' prompt columns as JSON lines, so that they are hashed and read like a file; of MIB's rows and of
    questions with choices, all columns.

    Raises:
        DataError: the extra is not installed, or the data set cannot be had.
    """
    table = _table(text)
    if is_mib(table.column_names) or (is_choices(table.column_names) and not columns):
        return _as_lines(table)
    wanted = [columns.get(column, column) for column in KNOWN]
    kept = table.select_columns([column for column in table.column_names if column in wanted])
    missing = [column for column in wanted[:3] if column not in kept.column_names]
    if missing:
        raise DataError(
            f"{text} has no column {missing[0]!r}; it has {', '.join(map(repr, table.column_names))}. Say which are "
            "the prompts and the answer: --columns clean=...,corrupted=...,answer=..."
        )
    return _as_lines(kept)


def fetch_table(text: str) -> bytes:
    """All columns of the rows as JSON lines.

    Raises:
        DataError: as `fetch_rows`.
    """
    return _as_lines(_table(text))


def _table(text: str) -> Any:
    name, config, split = parse_name(text)
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"Reading {text} needs the package datasets, which is not installed: pip install 'assay[datasets]'."
        ) from error
    try:
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:  # the library, its readers and its network layer share no base class
        reason = str(error).strip() or type(error).__name__
        raise DataError(
            f"The data set {name} (config {config or 'default'}, split {split}) cannot be loaded: {reason}\n"
            f"Check name and network. Form: {FORM}."
        ) from error


def _as_lines(table: Any) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False, default=str) for row in table).encode("utf-8", "surrogatepass")
