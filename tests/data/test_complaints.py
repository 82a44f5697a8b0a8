"""What is wrong with a file, all of it at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.data import read_pairs
from assay.errors import DataError
from conftest import wrapped

GOOD = {"clean": "w1 w2", "corrupted": "w1 w3", "answer": " w4"}


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(DataError) as raised:
        read_pairs(path)
    return str(raised.value)


def test_lines_that_are_no_json_are_counted_and_the_first_shown(tmp_path: Path) -> None:
    lines = [json.dumps(GOOD), *["{"] * 6, "[1]", json.dumps(GOOD)]
    message = refusal(tmp_path / "a.jsonl", "\n".join(lines))
    assert f"7 of 9 lines of {tmp_path / 'a.jsonl'} cannot be used." in message
    assert [number for number in range(1, 10) if f"line {number}:" in message] == [2, 3, 4, 5]
    assert message.endswith("... and 3 more")
    assert "cannot be used" not in refusal(tmp_path / "a.jsonl", "\n".join([json.dumps(GOOD), "{"]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "clean,corrupted,answer\nw1,,w2\nw1,w2,w3\nw1,w2,\n"),
        ("a.csv", "clean,corrupted,answer\nw1,w2,\"['a' 'b']\"\nw1,w2,w3\nw1,w2,\"['a']\"\n"),
        ("a.json", json.dumps([GOOD | {"answer": 3}, GOOD, GOOD | {"clean": ""}])),
        ("a.json", json.dumps([1, GOOD, 2])),
        (
            "a.csv",
            "clean,corrupted,correct_idx,incorrect_idx\nw1,w2,3,4\nThen Ann met Al and Al gave,w2,3,4\nw1,w2,3,4\n",
        ),
    ],
    ids=["csv", "lists", "json", "no objects", "ioi"],
)
def test_rows_are_counted_wherever_they_come_from(name: str, text: str, tmp_path: Path) -> None:
    message = refusal(tmp_path / name, text)
    assert f"2 of 3 rows of {tmp_path / name} cannot be used." in message
    assert "row 1" in message
    assert "row 3" in message


def test_samples_of_a_relation_are_counted(tmp_path: Path) -> None:
    document = {"prompt_templates": ["{} is"], "samples": [1, {"subject": "a", "object": "b"}, {"subject": "c"}]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="2 of 3 samples"):
        read_pairs(path, wrapped("llama"))


def test_all_missing_columns_are_named_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path / "imdb.csv", "review,sentiment\ngood,positive\n")
    assert "lacks 'clean', 'corrupted', 'answer'" in message
    assert "It has 'review', 'sentiment'" in message
    partly = "\n".join([json.dumps(GOOD), json.dumps({"clean": "a", "corrupted": "b"})])
    assert "line 2: column 'answer' is missing; other rows have it" in refusal(tmp_path / "partly.jsonl", partly)
