"""The two CSV layouts of EAP-IG (Hanna et al., arXiv 2403.17806): IOI and Greater-Than.

Neither says its answers in text. Those of IOI are in the prompts; those of Greater-Than are digits, and how many
digits are one token is the tokenizer's choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from assay.data.complaints import of_each
from assay.data.pairs import PromptPair
from assay.data.readers.rows import Columns, Entry, require_present, text_of
from assay.data.years import ends_after_and_not, single_tokens_after
from assay.errors import DataError

WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
SENTENCE_START = re.compile(r"(?:^|[.!?]\s+)[\"'“]?$")
PROBED = 5


def is_ioi(columns: set[str]) -> bool:
    return {"clean", "corrupted", "correct_idx", "incorrect_idx"} <= columns


def is_greater_than(columns: set[str], first: Entry) -> bool:
    return {"clean", "corrupted", "label"} <= columns and str(first.values["label"]).strip().isdigit()


def ioi_pairs(entries: Sequence[Entry], columns: Columns) -> tuple[PromptPair, ...]:
    """The answer is the name that the clean prompt has once, the wrong answer the one that it has twice.

    The file's own token ids hold for one tokenizer only and are not used.

    Raises:
        DataError: a row whose names cannot be told.
    """
    require_present(entries, columns)

    def pair_of(entry: Entry) -> PromptPair:
        clean = text_of(entry, "clean", columns)
        indirect_object, subject = _names(clean, entry.where)
        return PromptPair(
            clean,
            text_of(entry, "corrupted", columns),
            answer=f" {indirect_object}",
            wrong_answer=f" {subject}",
            id=entry.label,
            group="ABBA" if clean.index(indirect_object) < clean.index(subject) else "BABA",
        )

    return tuple(of_each(pair_of, entries, f"rows of {entries[0].file}"))


def _names(prompt: str, where: str) -> tuple[str, str]:
    """Indirect object and subject: capitalised words, of which one opens a sentence only if it is a name as well."""
    words = [match for match in WORD.finditer(prompt) if match.group()[0].isupper() and match.group() != "I"]
    counts = Counter(match.group() for match in words)
    twice = [word for word, count in counts.items() if count == 2]
    once = [match for match in words if counts[match.group()] == 1]
    if len(once) > 1:
        once = [match for match in once if not SENTENCE_START.search(prompt[: match.start()])]
    if len(twice) != 1 or len(once) != 1:
        raise DataError(
            f"{where}: the answer cannot be told from the clean prompt {prompt!r}, and the file gives it as token ids "
            f"of one tokenizer only. Expected one name that occurs twice, found {twice}, and one that occurs once, "
            f"found {[match.group() for match in once]}. Leave the row out, or add a column answer."
        )
    return once[0].group(), twice[0]


def greater_than_pairs(
    entries: Sequence[Entry], tokenizer: PreTrainedTokenizerBase, columns: Columns, n: int | None
) -> tuple[tuple[PromptPair, ...], dict[str, int]]:
    """The first ``n`` pairs, and how many rows before them were dropped, by reason.

    Answers are sets of years, or of tens digits where no two digits are one token: see `ends_after_and_not`.

    Raises:
        DataError: a row that is not of this kind, or none for which the tokenizer has such answers.
    """
    require_present(entries, columns)
    rows = of_each(lambda entry: _prompts_and_label(entry, columns), entries, f"rows of {entries[0].file}")
    digits = _digits_per_token(tokenizer, [prompts for prompts, _ in rows[:PROBED]], entries[0].file)
    pairs: list[PromptPair] = []
    dropped = 0
    for entry, (prompts, label) in zip(entries, rows, strict=True):
        if len(pairs) == n:
            break
        answer, wrong = ends_after_and_not(tokenizer, prompts, label, digits)
        if answer and wrong:
            pairs.append(PromptPair(*prompts, answer, wrong, id=entry.label))
        else:
            dropped += 1
    reason = "no later single-token year" if digits == 2 else "no tens digit both above and below the label's"
    if not pairs:
        raise DataError(f"{entries[0].file}: no row can be used: {reason}.")
    return tuple(pairs), {reason: dropped} if dropped else {}


def _prompts_and_label(entry: Entry, columns: Columns) -> tuple[tuple[str, str], int]:
    clean, corrupted = (text_of(entry, name, columns) for name in ("clean", "corrupted"))
    label = str(entry.values["label"]).strip()
    century = re.search(r"\d\d$", clean)
    if not re.fullmatch(r"[0-9]{1,2}", label) or not century or f"{century.group()}{label:0>2}" not in clean:
        raise DataError(
            f"{entry.where}: expected a prompt such as 'The war lasted from the year 1352 to the year 13' with label "
            f"52, not {clean!r} with label {label!r}."
        )
    return (clean, corrupted), int(label)


def _digits_per_token(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[tuple[str, str]], file: str) -> int:
    for digits in (2, 1):
        probes = (f"{5:0{digits}}", "5" * digits)
        if any(single_tokens_after(tokenizer, pair, probes) for pair in prompts):
            return digits
    raise DataError(
        f"{file}: this tokenizer joins the digits of a year otherwise than 13 and 52 or 13, 5 and 2, so no answer "
        "begins a new token after these prompts. Use a model of another family."
    )
