"""Data sets of labelled texts as questions of yes or no, in the prompts of arXiv 2505.17630.

The prompts are the paper's for models that have none of their own; answers are " Yes" and " No".
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.data.complaints import of_each
from assay.data.readers.hub import PREFIX, fetch_table
from assay.data.readers.jsonl import jsonl_entries
from assay.data.readers.rows import Entry, decode, read_bytes
from assay.data.readers.tables import csv_entries, json_entries, parquet_entries
from assay.errors import DataError, OptionError, instead_of

YES, NO = " Yes", " No"
SUFFIXES = (".jsonl", ".csv", ".parquet", ".json")
SUPPORT = {
    "supports": True, "support": True, "supported": True, "true": True,
    "refutes": False, "refute": False, "contradict": False, "contradicts": False, "false": False,
    "not enough info": None, "not_enough_info": None, "nei": None,
}  # fmt: skip
SENTIMENT = {"positive": True, "pos": True, "negative": False, "neg": False, "neutral": None}


@dataclass(frozen=True)
class YesNoTask:
    """How rows of one data set become prompts."""

    prompt: str
    """With ``{text}`` and, where there is one, ``{query}``."""
    text: tuple[str, ...]
    """Names that the column has in what is published."""
    label: tuple[str, ...]
    labels: Mapping[str, bool | None]
    """A label in small letters to what is right; None: such rows are left out."""
    query: tuple[str, ...] = ()


TASKS: dict[str, YesNoTask] = {
    "boolq": YesNoTask(
        "{text}\nQuestion: {query}\nAnswer:",
        ("passage", "context", "text"),
        ("answer", "label"),
        {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False},
        ("question", "query"),
    ),
    "fever": YesNoTask(
        "{text}\n\n{query}\n\nIs this statement true? Yes or No?",
        ("evidence", "context", "passage", "text"),
        ("label", "classification"),
        SUPPORT,
        ("claim", "query"),
    ),
    "scifact": YesNoTask(
        "{text}\n\n{query}\n\nIs this statement true? Yes or No?",
        ("abstract", "evidence", "context", "text"),
        ("label", "classification"),
        SUPPORT,
        ("claim", "query"),
    ),
    "movies": YesNoTask(
        "{text}. Is the movie review positive? Yes or No? Answer:",
        ("text", "review", "context"),
        ("label", "classification", "sentiment"),
        SENTIMENT | {"1": True, "0": False},
    ),
    "hatexplain": YesNoTask(
        "Classify the passage as hatespeech or not. Answer 'Yes' if the input contains hatespeech, and 'No' "
        "otherwise.\n\nPassage: {text}\nHatespeech:",
        ("text", "post_tokens", "context"),
        ("label", "annotators"),
        {"hatespeech": True, "hate": True, "0": True, "normal": False, "1": False, "offensive": False, "2": False},
    ),
    "twitter": YesNoTask(
        "This is an overall sentiment classifier for twitter posts. Is the following sentiment positive? Yes or "
        "No?\n\nINPUT: {text}\nSENTIMENT:",
        ("text", "tweet", "context"),
        ("label", "sentiment"),
        SENTIMENT,
    ),
}
MAJORITY = "no majority of annotators"


@dataclass(frozen=True)
class YesNoPrompt:
    """One row: what is asked, and whether yes is right."""

    id: str
    text: str
    is_yes: bool

    @property
    def answers(self) -> tuple[str, str]:
        """The right one and the other."""
        return (YES, NO) if self.is_yes else (NO, YES)


@dataclass(frozen=True)
class YesNoPrompts:
    """The rows of a data set that have an answer."""

    task: str
    file: str
    sha256: str
    prompts: tuple[YesNoPrompt, ...]
    dropped: dict[str, int]
    """Rows without an answer of yes or no, by their label."""


def read_yes_no(task: str, source: str | Path) -> YesNoPrompts:
    """Read one of the six data sets from a file or from the hub.

    Numbers as labels: 1 is yes and 0 no in BoolQ and film reviews; HateXplain's are those of its hub version (0 is
    hatespeech, 1 normal, 2 offensive, which counts as no); for tweets they mean one thing here and another there, so
    words are needed.

    Args:
        task: ``boolq``, ``fever``, ``scifact``, ``movies``, ``hatexplain`` or ``twitter``.
        source: a JSON Lines, CSV, parquet or JSON file, or ``hf:owner/name``.

    Raises:
        OptionError: no such data set.
        DataError: it cannot be read, lacks a column, or has a label that is not known; by row.
    """
    if task not in TASKS:
        raise OptionError(f"There is no data set {task!r} with a prompt. {instead_of(task, TASKS)}")
    kind, name = TASKS[task], str(source)
    content = fetch_table(name) if name.startswith(PREFIX) else read_bytes(source)
    entries = _entries(content, name)
    columns = {
        what: _column(entries, what, names)
        for what, names in (("text", kind.text), ("label", kind.label), ("query", kind.query))
        if names
    }
    rows = of_each(lambda entry: _row(entry, kind, columns), entries, f"rows of {name}")
    dropped = Counter(row for row in rows if isinstance(row, str))
    prompts = tuple(row for row in rows if isinstance(row, YesNoPrompt))
    shown = name if name.startswith(PREFIX) else Path(name).name
    return YesNoPrompts(task, shown, hashlib.sha256(content).hexdigest(), prompts, dict(dropped))


def _entries(content: bytes, name: str) -> list[Entry]:
    suffix = ".jsonl" if name.startswith(PREFIX) else Path(name).suffix.lower()
    if suffix == ".jsonl":
        return jsonl_entries(content, name, ("a text", "a label"))
    if suffix == ".csv":
        return csv_entries(content, name)
    if suffix == ".parquet":
        return parquet_entries(content, name)
    if suffix != ".json":
        raise DataError(f"{name} is not a file that assay reads. Give a {', '.join(SUFFIXES)} file, or hf:owner/name.")
    try:
        document = json.loads(decode(content, name))
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{name} is not JSON: {error}") from error
    if not isinstance(document, list):
        raise DataError(f"{name} is not a list of objects.")
    return json_entries(document, name)


def _column(entries: Sequence[Entry], what: str, names: Sequence[str]) -> str:
    present = dict.fromkeys(name for entry in entries for name in entry.values)
    for name in names:
        if name in present:
            return name
    raise DataError(
        f"{entries[0].file} has no {what}: no column is called {' or '.join(map(repr, names))}. It has "
        f"{', '.join(map(repr, present)) or 'none'}."
    )


def _row(entry: Entry, task: YesNoTask, columns: Mapping[str, str]) -> YesNoPrompt | str:
    """A prompt, or the label for which there is none."""
    label = _label(entry, columns["label"])
    if label is None:
        return MAJORITY
    if label not in task.labels:
        known = ", ".join(name for name in task.labels if not name.isdigit())
        raise DataError(f"{entry.where}: the label {label!r} is not one of {known}.")
    is_yes = task.labels[label]
    if is_yes is None:
        return label
    filled = {what: _text(entry, name) for what, name in columns.items() if what != "label"}
    identifier = entry.values.get("id")
    return YesNoPrompt(entry.label if identifier is None else str(identifier), task.prompt.format(**filled), is_yes)


def _label(entry: Entry, column: str) -> str | None:
    """In small letters; of several annotators what most of them say, None if none leads."""
    value = entry.values.get(column)
    if isinstance(value, Mapping):  # the hub's form: {"label": [0, 2, 0], ...}
        value = value.get("label")
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        value = [each.get("label") for each in value]
    if isinstance(value, list):
        counted = Counter(_word(each) for each in value).most_common(2)
        if not counted or (len(counted) == 2 and counted[0][1] == counted[1][1]):
            return None
        return counted[0][0]
    if value is None:
        raise DataError(f"{entry.where}: {column!r} is empty.")
    return _word(value)


def _word(value: Any) -> str:
    return str(value).strip().lower()


def _text(entry: Entry, column: str) -> str:
    """A text; a list of sentences or words with spaces between."""
    value = entry.values.get(column)
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        value = " ".join(value)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{entry.where}: {column!r} must be a text or a list of texts, not {json.dumps(value)[:60]}.")
    return value.strip()
