"""Reading prompt pairs: what is accepted, and what is refused with the line's number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.data import PromptPair, PromptPairs, read_jsonl
from assay.errors import DataError

LINE = {"clean": "a b", "corrupted": "a c", "answer": " d", "wrong_answer": " e"}


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_reads_all_columns_and_numbers_the_rest(tmp_path: Path) -> None:
    first = {**LINE, "id": "x", "group": "g", "note": "ignored"}
    second = {"clean": "é\u2028<b>", "corrupted": "🙂", "answer": [" d"]}
    path = write(tmp_path / "mine.jsonl", json.dumps(first), "", json.dumps(second, ensure_ascii=False))
    pairs = read_jsonl(path)
    assert pairs.task == "mine"
    assert pairs[0] == PromptPair("a b", "a c", " d", " e", "x", "g")
    assert pairs[1] == PromptPair("é\u2028<b>", "🙂", " d", None, "line 3", "")


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([json.dumps(LINE), "{oops"], r"line 2: not JSON"),
        (["[1, 2]"], r"line 1: expected a JSON object"),
        ([json.dumps({**LINE, "answer": ""})], r"line 1: 'answer' must be a non-empty string"),
        ([json.dumps({**LINE, "clean": 3})], r"line 1: 'clean' must be"),
        ([json.dumps({"clean": "a", "corrupted": "b"})], r"lacks 'answer'. Needed: "),
        ([json.dumps({**LINE, "wrong_anwser": "x"})], r"line 1: column 'wrong_anwser' .* did you mean 'wrong_answer'"),
        ([json.dumps({**LINE, "answer": []})], r"line 1: 'answer' is an empty list"),
        ([json.dumps({**LINE, "wrong_answer": [" a", None]})], r"line 1: 'wrong_answer' must be .* not empty"),
        ([json.dumps({**LINE, "clean": ["a", "b"]})], r"line 1: 'clean' must be a non-empty string, not \["),
        ([json.dumps({**LINE, "id": 7}), json.dumps({**LINE, "id": "7"})], r"id '7' is given to more than one"),
        ([""], r"is empty"),
    ],
)
def test_bad_files_are_refused(lines: list[str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=complaint):
        read_jsonl(write(tmp_path / "bad.jsonl", *lines))


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file"):
        read_jsonl(tmp_path / "none.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        read_jsonl(tmp_path / "binary.jsonl")


def test_a_list_of_answers_is_a_set() -> None:
    pair = PromptPair("a", "b", [" c", " d"], (" e",))
    assert (pair.answer, pair.wrong_answer) == ((" c", " d"), " e")
    assert pair == PromptPair("a", "b", (" c", " d"), " e")
    assert hash(pair) == hash(PromptPair("a", "b", (" c", " d"), [" e"]))
    assert pair.swapped() == PromptPair("b", "a", " e", [" c", " d"])
    pairs = PromptPairs((pair,))
    assert pairs.to_records()[0]["answer"] == [" c", " d"]
    assert PromptPairs(tuple(PromptPair(**record) for record in json.loads(json.dumps(pairs.to_records())))) == pairs
    with pytest.raises(DataError, match="answer is an empty list"):
        PromptPairs((PromptPair("a", "b", []),))
    with pytest.raises(DataError, match="each of wrong_answer must be a string, not int"):
        PromptPairs((PromptPair("a", "b", " c", [" d", 3]),))


def test_swapping_twice_gives_the_pair_back() -> None:
    pair = PromptPair("a", "b", " c", " d", "1", "g")
    assert pair.swapped() == PromptPair("b", "a", " d", " c", "1", "g")
    assert pair.swapped().swapped() == pair
    with pytest.raises(DataError, match="no wrong_answer"):
        PromptPair("a", "b", " c").swapped()
    with pytest.raises(DataError, match="no prompt pairs"):
        PromptPairs(())
