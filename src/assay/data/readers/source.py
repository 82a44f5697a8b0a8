"""A file of prompts, opened: read once, so that what is hashed is what is parsed, before or after a model is loaded."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.data.pairs import ANSWERS, PromptPairs
from assay.data.readers.choices import choice_pairs, is_choices
from assay.data.readers.eap_ig import greater_than_pairs, ioi_pairs, is_greater_than, is_ioi
from assay.data.readers.hub import PREFIX, fetch_rows, parse_name
from assay.data.readers.jsonl import jsonl_entries
from assay.data.readers.mib import is_mib, mib_pairs
from assay.data.readers.relations import is_relation, relation_pairs
from assay.data.readers.rows import Columns, Entry, decode, read_bytes, require_columns, to_pairs
from assay.data.readers.tables import csv_entries, json_entries, parquet_entries
from assay.errors import DataError, OptionError
from assay.model import Model

SUFFIXES = (".jsonl", ".csv", ".parquet", ".json")
FORMATS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file, or hf:owner/name"
Kind = Literal["table", "ioi", "greater-than", "relation", "mib", "choices"]


@dataclass(frozen=True)
class PromptSource:
    """What `open_prompts` found; `pairs` makes prompt pairs of it."""

    name: str
    task: str
    kind: Kind
    sha256: str
    columns: dict[str, str]
    template: int | None
    entries: list[Entry] = field(default_factory=list, repr=False)
    document: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def needs_model(self) -> bool:
        """Whether the pairs depend on the model's tokenizer."""
        return self.kind in ("greater-than", "relation", "mib", "choices")

    @property
    def options(self) -> dict[str, Any]:
        """What determines the pairs, besides their number, the seed and the tokenizer."""
        options: dict[str, Any] = {"sha256": self.sha256}
        if self.columns:
            options["columns"] = self.columns
        if self.kind == "relation":
            options["template"] = self.template or 0
        return options

    def pairs(self, model: Model | None = None, seed: int = 0, n: int | None = None) -> PromptPairs:
        """The first ``n`` pairs, or all; ``options["dropped"]`` counts rows that were left out, by reason.

        Raises:
            DataError: a bad row, named by its number, or no model where one is needed.
        """
        dropped: dict[str, int] = {}
        if self.kind == "table":
            pairs = to_pairs(self.entries, self.columns)
        elif self.kind == "ioi":
            pairs = ioi_pairs(self.entries, self.columns)
        else:
            tokenizer = None if model is None else model.tokenizer
            if tokenizer is None:
                raise DataError(f"The answers to {self.name} depend on a tokenizer: give a model that has one.")
            if self.kind == "greater-than":
                pairs, dropped = greater_than_pairs(self.entries, tokenizer, self.columns, n)
            elif self.kind == "mib":
                pairs, dropped = mib_pairs(self.entries, tokenizer, self.columns, n)
            elif self.kind == "choices":
                pairs, dropped = choice_pairs(self.entries, tokenizer, seed, n)
            else:
                pairs, dropped = relation_pairs(self.document, self.name, tokenizer, self.template or 0, seed, n)
        options = {
            **self.options,
            "file": self.name if self.name.startswith(PREFIX) else Path(self.name).name,
            **({"dropped": dropped} if dropped else {}),
        }
        metric = {"greater-than": "prob-diff", "mib": "logit-diff", "choices": "logit-diff"}.get(self.kind)
        return PromptPairs(pairs[:n], task=self.task, metric=metric, options=options)


def is_prompt_source(name: str) -> bool:
    """Whether this is called like something that can be opened, there or not."""
    return name.startswith(PREFIX) or Path(name).suffix.lower() in SUFFIXES


def open_prompts(path: str | Path, columns: Columns | None = None, template: int | None = None) -> PromptSource:
    """Read a file or data set and find out what it is, by its suffix and its columns.

    Raises:
        DataError: it is not there, not of a known kind, or damaged.
        OptionError: an option that does not fit it.
    """
    name = str(path)
    columns = require_columns(columns)
    entries: list[Entry] = []
    document: Any = None
    if name.startswith(PREFIX):
        task = Path(parse_name(name)[0]).name
        content = fetch_rows(name, columns)
        entries = jsonl_entries(content, name)
    else:
        task, suffix = Path(name).stem, Path(name).suffix.lower()
        if suffix not in SUFFIXES:
            raise DataError(f"{name} is not a file of prompts that assay reads. Give a {FORMATS}.")
        content = read_bytes(path)
        if suffix == ".json":
            document = _json(content, name)
        if suffix == ".jsonl":
            entries = jsonl_entries(content, name)
        elif suffix == ".csv":
            entries = csv_entries(content, name, {columns.get(each, each) for each in ANSWERS})
        elif suffix == ".parquet":
            entries = parquet_entries(content, name)
        elif isinstance(document, list):
            entries = json_entries(document, name)
        elif not is_relation(document):
            raise DataError(
                f"{name} is neither a list of objects with clean, corrupted and answer, nor a relation with "
                "prompt_templates and samples."
            )
    kind = _kind(entries, columns)
    if kind != "relation" and template is not None:
        raise OptionError(f"{name} has no templates, so --template does not apply.")
    if kind == "relation" and columns:
        raise OptionError(f"{name} is a relation, not a table, so --columns does not apply.")
    digest = hashlib.sha256(content).hexdigest()
    return PromptSource(name, task, kind, digest, columns, template, entries, document if kind == "relation" else {})


def _kind(entries: list[Entry], columns: Columns) -> Kind:
    if not entries:
        return "relation"
    present = set(entries[0].values)
    if "clean" not in present and "clean" not in columns:
        if is_mib(present):
            return "mib"
        if is_choices(present) and not columns:
            return "choices"
    if columns.get("answer", "answer") not in present:
        if is_ioi(present):
            return "ioi"
        if is_greater_than(present, entries[0]):
            return "greater-than"
    return "table"


def _json(content: bytes, name: str) -> Any:
    try:
        return json.loads(decode(content, name))
    except json.JSONDecodeError as error:
        raise DataError(f"{name}, line {error.lineno}: not JSON ({error.msg}).") from error
    except RecursionError as error:
        raise DataError(f"{name} is nested too deep to be a file of prompts.") from error
