"""Rows of MIB's data sets (Mueller et al., arXiv 2504.13151): a prompt, and counterfactuals in columns of their own.

Three layouts, known by their columns: IOI (``metadata`` names who is who), multiple choice (``choices`` and
``answerKey``; copy colours and ARC), and arithmetic (``label``). Answers are read as MIB reads them: names with a space
in front, labels and numbers as they stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from assay.data.complaints import of_each
from assay.data.pairs import PromptPair
from assay.data.readers.rows import Columns, Entry, require_present
from assay.errors import DataError

COUNTERFACTUALS = {
    "metadata": "s2_io_flip_counterfactual",
    "choices": "symbol_counterfactual",
    "label": "random_counterfactual",
}
"""The one that MIB takes, by the column that tells the layout."""
NONE, LONG = "no counterfactual", "an answer is not one token"


def is_mib(columns: Collection[str]) -> bool:
    return "prompt" in columns and any(name.endswith("_counterfactual") for name in columns)


def mib_pairs(
    entries: Sequence[Entry], tokenizer: PreTrainedTokenizerBase, columns: Columns, n: int | None
) -> tuple[tuple[PromptPair, ...], dict[str, int]]:
    """The first ``n`` pairs, and how many rows before them were left out, by reason.

    Args:
        columns: ``corrupted`` may name another counterfactual.

    Raises:
        DataError: a row that is not of the layout, or none that can be used.
    """
    require_present(entries, columns)
    for other in set(columns) - {"corrupted"}:
        raise DataError(
            f"{entries[0].file} has MIB's rows: --columns gives their counterfactual, as corrupted=NAME, not {other}."
        )
    layout = next((name for name in COUNTERFACTUALS if name in entries[0].values), None)
    if layout is None:
        raise DataError(f"{entries[0].file} has rows like MIB's without {', '.join(COUNTERFACTUALS)}.")
    name = columns.get("corrupted", COUNTERFACTUALS[layout])
    read = of_each(lambda entry: _pair(entry, layout, name), entries, f"rows of {entries[0].file}")
    pairs: list[PromptPair] = []
    dropped: Counter[str] = Counter()
    for pair in read:
        if len(pairs) == n:
            break
        if pair is None:
            dropped[NONE] += 1
        elif any(_length(tokenizer, answer) != 1 for answer in (pair.answer, pair.wrong_answer)):
            dropped[LONG] += 1
        else:
            pairs.append(pair)
    if not pairs:
        raise DataError(f"{entries[0].file}: no row can be used: {', '.join(dropped)}.")
    return tuple(pairs), dict(dropped)


def _length(tokenizer: PreTrainedTokenizerBase, answer: object) -> int:
    return len(tokenizer(answer, add_special_tokens=False)["input_ids"])


def _pair(entry: Entry, layout: str, name: str) -> PromptPair | None:
    """None where the row has no such counterfactual."""
    row = entry.values
    if name not in row:
        known = ", ".join(column for column in row if column.endswith("_counterfactual"))
        raise DataError(f"{entry.where}: there is no {name}. The row has {known or 'no counterfactual'}.")
    other = row[name]
    if other is None or (isinstance(other, dict) and other.get("prompt") is None):
        return None
    try:
        if layout == "metadata":
            answers = [f" {row['metadata'][who]}" for who in ("indirect_object", "subject")]
        elif layout == "choices":
            answers = [_label(each) for each in (row, other)]
        else:
            answers = [str(each["label"]) for each in (row, other)]
        texts = row["prompt"], other["prompt"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{entry.where}: not a row of MIB's layout with {layout} ({error!r}).") from error
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{entry.where}: a prompt is not text.")
    return PromptPair(*texts, answer=answers[0], wrong_answer=answers[1], id=entry.label)


def _label(row: dict[str, Any]) -> str:
    return str(row["choices"]["label"][int(row["answerKey"])])
