"""Data sets of labelled texts as questions of yes or no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from assay.data.readers.yes_no import NO, TASKS, YES, read_yes_no
from assay.errors import AssayError, DataError

ROWS: dict[str, list[dict[str, Any]]] = {
    "boolq": [
        {"passage": "Iron rusts. ", "question": "does iron rust", "answer": True},
        {"passage": "Gold is noble.", "question": "does gold rust", "answer": "False"},
    ],
    "fever": [
        {"claim": "Oslo is in Norway.", "evidence": ["Oslo is", "Norway's capital."], "label": "SUPPORTS"},
        {"claim": "Oslo is in Spain.", "evidence": "Oslo is Norway's capital.", "label": "REFUTES"},
        {"claim": "Oslo is old.", "evidence": "Oslo is Norway's capital.", "label": "NOT ENOUGH INFO"},
    ],
    "scifact": [
        {"query": "Mice sleep.", "abstract": ["Mice were seen asleep.", "Often."], "classification": "SUPPORT"},
        {"query": "Mice fly.", "abstract": ["Mice walk."], "classification": "CONTRADICT"},
    ],
    "movies": [{"text": "A joy", "label": 1}, {"text": "A bore", "label": "NEG"}],
    "hatexplain": [
        {"id": "a", "post_tokens": ["they", "are", "vermin"], "annotators": {"label": [0, 0, 2]}},
        {"id": "b", "post_tokens": ["good", "morning"], "annotators": [{"label": "normal"}, {"label": "normal"}]},
        {"id": "c", "post_tokens": ["hm"], "annotators": {"label": [0, 1, 2]}},
        {"id": "d", "post_tokens": ["you", "fool"], "annotators": {"label": [2, 2, 1]}},
    ],
    "twitter": [
        {"tweet": "so happy", "sentiment": "positive"},
        {"tweet": "so sad", "sentiment": "negative"},
        {"tweet": "so so", "sentiment": "neutral"},
    ],
}
PROMPTS = {
    "boolq": "Iron rusts.\nQuestion: does iron rust\nAnswer:",
    "fever": "Oslo is Norway's capital.\n\nOslo is in Norway.\n\nIs this statement true? Yes or No?",
    "scifact": "Mice were seen asleep. Often.\n\nMice sleep.\n\nIs this statement true? Yes or No?",
    "movies": "A joy. Is the movie review positive? Yes or No? Answer:",
    "hatexplain": "Classify the passage as hatespeech or not. Answer 'Yes' if the input contains hatespeech, and 'No' "
    "otherwise.\n\nPassage: they are vermin\nHatespeech:",
    "twitter": "This is an overall sentiment classifier for twitter posts. Is the following sentiment positive? Yes or "
    "No?\n\nINPUT: so happy\nSENTIMENT:",
}


def written(folder: Path, task: str, suffix: str = ".jsonl") -> Path:
    path = folder / f"{task}{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS[task])))
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS[task]))
    elif suffix == ".csv":
        pd.DataFrame(ROWS[task]).to_csv(path, index=False)
    else:
        pd.DataFrame(ROWS[task]).astype({"label": str} if task == "movies" else {}).to_parquet(path)
    return path


@pytest.mark.parametrize("task", TASKS)
def test_rows_become_the_papers_prompts(task: str, tmp_path: Path) -> None:
    found = read_yes_no(task, written(tmp_path, task))
    assert found.prompts[0].text == PROMPTS[task]
    assert found.prompts[0].answers == (YES, NO)
    assert found.prompts[1].answers == (NO, YES)
    assert len(found.prompts) + sum(found.dropped.values()) == len(ROWS[task])


def test_rows_without_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    assert read_yes_no("fever", written(tmp_path, "fever")).dropped == {"not enough info": 1}
    assert read_yes_no("twitter", written(tmp_path, "twitter")).dropped == {"neutral": 1}
    hate = read_yes_no("hatexplain", written(tmp_path, "hatexplain"))
    assert hate.dropped == {"no majority of annotators": 1}
    assert [(prompt.id, prompt.is_yes) for prompt in hate.prompts] == [("a", True), ("b", False), ("d", False)]


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
def test_other_files_say_the_same(suffix: str, tmp_path: Path) -> None:
    for task in ("movies", "twitter"):
        assert read_yes_no(task, written(tmp_path, task, suffix)).prompts == tuple(
            type(prompt)(prompt.id.replace("line", "row"), prompt.text, prompt.is_yes)
            for prompt in read_yes_no(task, written(tmp_path, task)).prompts
        )


def test_a_data_set_of_the_hub_is_read_whole(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    written(folder, "movies", ".csv").rename(folder / "train.csv")
    found = read_yes_no("movies", f"hf:{folder}")
    assert found.prompts[0].text == PROMPTS["movies"]


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("movies", {"text": "x", "label": "good"}, "line 1: the label 'good' is not one of positive, pos, negative"),
        ("twitter", {"text": "x", "label": 1}, "the label '1' is not one of positive"),
        ("movies", {"txt": "x", "label": 1}, "has no text: no column is called 'text' or 'review' or 'context'"),
        ("boolq", {"passage": "x", "answer": True}, "has no query: no column is called 'question' or 'query'"),
        ("movies", {"text": " ", "label": 1}, "'text' must be a text or a list of texts"),
        ("movies", {"text": "x", "label": None}, "'label' is empty"),
        ("movie", {"text": "x", "label": 1}, "no data set 'movie' .* Did you mean 'movies'"),
    ],
)
def test_what_cannot_be_read_is_refused(task: str, row: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(AssayError, match=message):
        read_yes_no(task, path)


def test_files_that_are_not_tables_are_refused(tmp_path: Path) -> None:
    for name, content, message in (
        ("a.txt", "x", "is not a file that assay reads"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "{}", "is not a list of objects"),
        ("a.jsonl", "", "needs one JSON object per line with a text, a label"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=message):
            read_yes_no("movies", tmp_path / name)
