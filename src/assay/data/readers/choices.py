"""Questions with four answers to choose from, in MIB's form of ARC, each against the same with other letters.

"Question: ... A. ... B. ... C. ... D. ... Answer:" -> " B". The counterfactual has four other letters, drawn for each
question (MIB's symbol counterfactual, arXiv 2504.13151); the letter of the same choice there is the wrong answer.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Collection, Sequence

from transformers import PreTrainedTokenizerBase

from assay.data.complaints import of_each
from assay.data.pairs import PromptPair
from assay.data.readers.rows import Entry
from assay.errors import DataError

LETTERS = "A B C D".split()
OPTION = re.compile(r"\s*([A-Z])[.)] *(.*\S)\s*")
OTHERS = "not four choices"


def is_choices(columns: Collection[str]) -> bool:
    """ARC's columns ``question``, ``choices`` and ``answerKey``; or ``question``, ``options`` by lines, ``answer``."""
    return {"question", "choices", "answerKey"} <= set(columns) or {"question", "options", "answer"} <= set(columns)


def choice_pairs(
    entries: Sequence[Entry], tokenizer: PreTrainedTokenizerBase, seed: int, n: int | None
) -> tuple[tuple[PromptPair, ...], dict[str, int]]:
    """The first ``n`` pairs, and how many rows before them had not four choices.

    Args:
        seed: of the other letters.

    Raises:
        DataError: a row without an answer among its choices, or a tokenizer with too few letters.
    """
    read = of_each(_choices, entries, f"rows of {entries[0].file}")
    letters = [letter for letter in string.ascii_uppercase if _is_one_token(tokenizer, letter)]
    if len(letters) < 2 * len(LETTERS) or not set(LETTERS) <= set(letters):
        raise DataError(
            f"This tokenizer reads {len(letters)} letters as single tokens after a space; A to D and 4 others are "
            "needed."
        )
    pairs: list[PromptPair] = []
    dropped = 0
    for number, (entry, (question, texts, right)) in enumerate(zip(entries, read, strict=True)):
        if len(pairs) == n:
            break
        if len(texts) != len(LETTERS):
            dropped += 1
            continue
        draw = random.Random(f"{seed}/{number}")
        others = draw.sample([letter for letter in letters if letter not in LETTERS], len(LETTERS))
        clean, corrupted = (_prompt(question, texts, symbols) for symbols in (LETTERS, others))
        pairs.append(PromptPair(clean, corrupted, f" {LETTERS[right]}", f" {others[right]}", id=entry.label))
    if not pairs:
        raise DataError(f"{entries[0].file}: no row has four choices.")
    return tuple(pairs), {OTHERS: dropped} if dropped else {}


def _prompt(question: str, texts: Sequence[str], symbols: Sequence[str]) -> str:
    listed = "".join(f"{symbol}. {text}\n" for symbol, text in zip(symbols, texts, strict=True))
    return f"Question: {question}\n{listed}Answer:"


def _is_one_token(tokenizer: PreTrainedTokenizerBase, letter: str) -> bool:
    ids = tokenizer(f" {letter}", add_special_tokens=False)["input_ids"]
    return len(ids) == 1 and ids[0] != tokenizer.unk_token_id


def _choices(entry: Entry) -> tuple[str, list[str], int]:
    """Question, choices, and which of them is right."""
    row = entry.values
    try:
        question = row["question"].strip()
        if "options" in row:
            found = [OPTION.fullmatch(line) for line in row["options"].strip().split("\n")]
            options = [(match[1], match[2]) for match in found if match]
            labels, texts = [label for label, _ in options], [text for _, text in options]
            if len(options) != len(found):
                raise ValueError("an option is not like 'A. text'")
            answer = OPTION.fullmatch(row["answer"])
            right = options.index((answer[1], answer[2])) if answer else labels.index(row["answer"].strip())
        else:
            labels, texts = [str(label) for label in row["choices"]["label"]], list(row["choices"]["text"])
            right = labels.index(str(row["answerKey"]))
        if not question or not all(isinstance(text, str) and text for text in texts):
            raise ValueError("an empty text")
        return question, texts, right
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(
            f"{entry.where}: not a question with its choices and an answer among them ({error})."
        ) from error
