"""Rows of MIB's data sets, and questions with four choices."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

import assay
from assay.data.readers import open_prompts, read_pairs
from assay.errors import DataError
from conftest import wrapped
from data.test_readers import shared

IOI = {
    "prompt": "w1 w2 w3 w2 w4",
    "metadata": {"indirect_object": "w1", "subject": "w2", "random_c": "w9"},
    "s2_io_flip_counterfactual": {"prompt": "w1 w2 w3 w1 w4"},
    "abc_counterfactual": {"prompt": "w7 w8 w3 w9 w4"},
}
MCQA = {
    "prompt": "w5 w6 w7",
    "choices": {"label": ["w1", "w2"], "text": ["w5", "w6"]},
    "answerKey": 1,
    "symbol_counterfactual": {"prompt": "w8 w6 w7", "choices": {"label": ["w3", "w4"]}, "answerKey": 1},
}
SUM = {
    "prompt": "w5 w6 w7",
    "label": "w3",
    "operator": "+",
    "random_counterfactual": {"prompt": "w5 w8 w7", "label": "w4", "operator": "+"},
}
ARC = {
    "question": "Which is hot?",
    "choices": {"text": ["ice", "fire", "snow", "milk"], "label": ["1", "2", "3", "4"]},
    "answerKey": "2",
}
BOOK = {"question": "Which is hot?", "options": "A. ice\nB. fire\nC. snow\nD. milk", "answer": "B. fire"}


def lines(path: Path, *rows: dict) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(
    ("row", "answers", "corrupted"),
    [
        (IOI, (" w1", " w2"), "w1 w2 w3 w1 w4"),
        (MCQA, ("w2", "w4"), "w8 w6 w7"),
        (SUM, ("w3", "w4"), "w5 w8 w7"),
    ],
    ids=["ioi", "mcqa", "arithmetic"],
)
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_rows_are_read_as_mib_reads_them(
    row: dict, answers: tuple, corrupted: str, suffix: str, tmp_path: Path
) -> None:
    path = lines(tmp_path / "rows.jsonl", row, row) if suffix == "jsonl" else tmp_path / "rows.json"
    if suffix == "json":
        path.write_text(json.dumps([row, row]))
    pairs = read_pairs(path, wrapped("llama"))
    assert len(pairs) == 2
    assert (pairs[0].clean, pairs[0].corrupted) == (row["prompt"], corrupted)
    assert (pairs[0].answer, pairs[0].wrong_answer) == answers
    assert pairs.metric == "logit-diff"


def test_another_counterfactual_and_rows_without_one(tmp_path: Path) -> None:
    model, path = wrapped("llama"), tmp_path / "rows.jsonl"
    lines(path, IOI)
    other = read_pairs(path, model, {"corrupted": "abc_counterfactual"})
    assert other[0].corrupted == "w7 w8 w3 w9 w4"
    without = {**SUM, "random_counterfactual": {"prompt": None, "label": None}}
    two = {**SUM, "label": "w3 w4"}
    found = read_pairs(lines(path, without, two, SUM), model)
    assert [pair.id for pair in found] == ["line 3"]
    assert found.options["dropped"] == {"no counterfactual": 1, "an answer is not one token": 1}
    assert len(read_pairs(path, model, n=1)) == 1


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({**MCQA, "answerKey": 7}, {}, "not a row of MIB's layout with choices"),
        ({**IOI, "metadata": {}}, {}, "indirect_object"),
        (IOI, {"corrupted": "none_counterfactual"}, "no column 'none_counterfactual'"),
        (IOI, {"answer": "prompt"}, "their counterfactual"),
        ({"prompt": "w1", "x_counterfactual": {}}, {}, "without metadata, choices, label"),
        ({**SUM, "random_counterfactual": None}, {}, "no row can be used: no counterfactual"),
        ({**BOOK, "answer": "B. water"}, {}, "answer among them"),
        ({**BOOK, "options": "ice, fire"}, {}, "not like 'A. text'"),
        ({**ARC, "answerKey": "9"}, {}, "answer among them"),
    ],
)
def test_bad_rows_are_refused(row: dict, columns: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_pairs(lines(tmp_path / "rows.jsonl", row), wrapped("llama"), columns)


def test_answers_need_the_models_tokenizer(tmp_path: Path) -> None:
    assert open_prompts(lines(tmp_path / "rows.jsonl", IOI)).needs_model
    with pytest.raises(DataError, match="depend on a tokenizer"):
        read_pairs(tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match="letters as single tokens"):
        read_pairs(lines(tmp_path / "rows.jsonl", BOOK), wrapped("llama"))


def test_splits_come_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    class Table(list):
        column_names = tuple(IOI)

    asked: list[tuple] = []

    def load_dataset(name: str, config: str | None, split: str) -> Table:
        asked.append((name, config, split))
        return Table([IOI])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    for split in ("train", "validation", "test"):
        assert len(read_pairs(f"hf:mib-bench/ioi:{split}", wrapped("llama"))) == 1
    read_pairs("hf:mib-bench/copycolors_mcqa:4_answer_choices:test", wrapped("llama"))
    assert [each[1:] for each in asked] == [
        (None, "train"), (None, "validation"), (None, "test"), ("4_answer_choices", "test"),
    ]  # fmt: skip


@pytest.mark.xdist_group("real models")
def test_choices_get_other_letters(smollm2: assay.Model, tmp_path: Path) -> None:
    three = {**BOOK, "options": "A. ice\nB. fire\nC. snow"}
    found = {}
    for name, row in (("arc", ARC), ("book", BOOK)):
        pairs = read_pairs(lines(tmp_path / f"{name}.jsonl", three | {"question": "Of three?"}, row) if name == "book"
                           else lines(tmp_path / f"{name}.jsonl", ARC), smollm2, seed=1)  # fmt: skip
        (pair,) = pairs
        found[name] = pair
        assert pair.clean == "Question: Which is hot?\nA. ice\nB. fire\nC. snow\nD. milk\nAnswer:"
        letters = [line[0] for line in pair.corrupted.split("\n")[1:5]]
        assert len(set(letters)) == 4
        assert set(letters).isdisjoint("ABCD")
        assert (pair.answer, pair.wrong_answer) == (" B", f" {letters[1]}")
        assert [line[1:] for line in pair.corrupted.split("\n")[1:5]] == [". ice", ". fire", ". snow", ". milk"]
    assert read_pairs(tmp_path / "book.jsonl", smollm2).options["dropped"] == {"not four choices": 1}
    assert read_pairs(tmp_path / "arc.jsonl", smollm2, seed=1)[0] == found["arc"]


@pytest.mark.xdist_group("real models")
def test_real_science_questions_can_be_run(smollm2: assay.Model) -> None:
    pairs = read_pairs(shared("text/openbookqa.jsonl"), smollm2)
    assert len(pairs) + sum(pairs.options.get("dropped", {}).values()) == 500
    scores = assay.attribution_patching(smollm2, pairs[:8], sites="mlps")
    assert scores.baseline.difference > 0
