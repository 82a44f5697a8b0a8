"""Reading prompt pairs: JSON Lines, CSV, parquet, JSON, EAP-IG's and relations' layouts, Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.data.encoding import Align, require_align
from assay.data.equal_lengths import equal_lengths
from assay.data.pairs import REQUIRED, PromptPair, PromptPairs
from assay.data.readers.jsonl import read_jsonl
from assay.data.readers.rows import Columns, parse_columns
from assay.data.readers.source import FORMATS, PromptSource, is_prompt_source, open_prompts
from assay.errors import DataError, OptionError, require_seed
from assay.model import Model

__all__ = [
    "FORMATS", "AnyPairs", "PromptSource", "as_pairs", "is_prompt_source", "open_prompts", "parse_columns",
    "read_jsonl", "read_pairs",
]  # fmt: skip

AnyPairs = PromptPairs | Sequence[PromptPair | dict[str, Any]] | str | Path


def read_pairs(
    path: str | Path,
    model: Model | None = None,
    columns: Columns | None = None,
    *,
    template: int | None = None,
    seed: int = 0,
    n: int | None = None,
    align: Align = "reject",
) -> PromptPairs:
    """Read prompt pairs from a file or a Hugging Face data set.

    Tables (``.jsonl``, ``.csv``, ``.parquet``, ``.json`` with a list of objects, ``hf:owner/name[:config][:split]``)
    have columns ``clean``, ``corrupted`` and ``answer``, and may have ``wrong_answer``, ``id`` and ``group``.
    An answer may be a list of strings (in CSV: a JSON array), whose probabilities add. Two CSV layouts of EAP-IG, IOI
    and Greater-Than, and relations (``.json`` with ``prompt_templates`` and ``samples``) are known by their columns;
    their answers are found as README says. So are rows of MIB's data sets, whose ``corrupted`` column is one of their
    counterfactuals, and questions with four choices (ARC, OpenBookQA). Rows without answers are left out and counted
    in the pairs' ``options["dropped"]``.

    Args:
        model: needed where answers depend on its tokenizer: Greater-Than, relations, MIB's rows and choices.
        columns: other names of columns, such as ``{"clean": "prompt", "answer": "target"}``; for EAP-IG's IOI,
            ``{"corrupted": "corrupted_hard"}`` takes its other corruption.
        template: of a relation: which of its templates, counted from 0, the zero-shot ones after the others.
        seed: of partners that are drawn.
        n: the first so many pairs; all if None.
        align: ``skip`` leaves out pairs whose prompts differ in token length, so that ``n`` counts the others; it needs
            a model. Whatever else pairs stay as they are; `assay.measure` takes it.

    Raises:
        DataError: what is wrong, in which file and row.
        OptionError: an option that does not fit the file.
    """
    if n is not None and n < 1:
        raise OptionError(f"n must be at least 1, not {n}.")
    require_align(align)
    source = open_prompts(path, columns, template)
    if align != "skip":
        return source.pairs(model, seed, n)
    if model is None:
        raise OptionError("Token lengths depend on the model: give it, for align='skip'.")
    return equal_lengths(model, source.pairs(model, seed), n)


def as_pairs(pairs: AnyPairs, model: Model | None = None, seed: int = 0) -> PromptPairs:
    """Pairs from whatever a user has: pairs, a list of them or of dictionaries, or what `read_pairs` reads.

    Raises:
        DataError: something else.
        OptionError: a seed that is none.
    """
    require_seed(seed)
    if isinstance(pairs, PromptPairs):
        return pairs
    if isinstance(pairs, (str, Path)):
        return read_pairs(pairs, model, seed=seed)
    try:
        return PromptPairs(tuple(pair if isinstance(pair, PromptPair) else PromptPair(**pair) for pair in pairs))
    except TypeError as error:
        raise DataError(
            "Give prompt pairs as assay.PromptPairs, a list of assay.PromptPair or of dictionaries with "
            f"{', '.join(REQUIRED)}, or the path of a file that assay.read_pairs reads ({error})."
        ) from error
