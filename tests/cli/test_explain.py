"""``assay explain`` as a user meets it."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import assay
from assay.report.explanations import print_explanations, write_explanations
from assay.tokens import METHODS
from assay.tokens.result import visible
from cli.conftest import Run

SORT = ("explain", "sequence-sort", "START 7 3 SEP", "--baseline", "mean")


def test_a_text_is_explained_kept_and_shown_again(run: Run) -> None:
    ended = run(*SORT, "--methods", "gim,leave-one-out", "--out", "here")
    assert ended.code == 0, ended.err
    assert "the model's own most probable next token" in ended.out
    assert "leave-one-out" in ended.out
    assert {"run.json", "scores.parquet", "report.html"} <= {path.name for path in Path("here").iterdir()}
    scores = pd.read_parquet("here/scores.parquet")
    assert set(scores["method"]) == {"gim", "leave-one-out"}
    found = assay.Explanations.load("here")
    direct = assay.explain(assay.load("sequence-sort"), "START 7 3 SEP", method="leave-one-out", baseline="mean")
    np.testing.assert_allclose(found[0].scores["leave-one-out"], direct.scores["leave-one-out"], atol=1e-4)
    kept = json.loads(Path("here/run.json").read_text("utf-8"))
    assert (
        len(kept["provenance"]["model"]["weights_sha256"]) == len(kept["provenance"]["model"]["tokenizer_sha256"]) == 64
    )
    again = run(*SORT, "--methods", "gim,leave-one-out", "--out", "here")
    assert again.code == 0
    assert "finished already" in again.out
    shown = run("show", "here").out
    assert shown[shown.index("Which") :] == again.out[again.out.index("Which") :]
    other = run(*SORT, "--methods", "gim", "--out", "here")
    assert other.code == 2
    assert "another configuration" in other.err


def test_numbers_are_there_without_colour(run: Run) -> None:
    ended = run(*SORT, "--methods", "leave-one-out", "--target", " 3")
    assert "\x1b[" not in ended.out
    found = assay.explain(assay.load("sequence-sort"), "START 7 3 SEP", " 3", method="leave-one-out", baseline="mean")
    for score in found.scores["leave-one-out"]:
        assert f"{score:+.3g}" in ended.out or abs(score) < 1e-3


def test_a_file_is_explained_and_faithfulness_measured(run: Run) -> None:
    rows = [{"text": "START 7 3 9 1 SEP", "target": " 1"}, {"text": "START 5 2 8 4 SEP", "target": " 2", "id": "mine"}]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    ended = run(
        "explain", "sequence-sort", "--file", "texts.jsonl", "--baseline", "mean", "--methods",
        "leave-one-out,gradient-x-input", "--faithfulness", "--json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert [text["id"] for text in found["texts"]] == ["line 1", "mine"]
    assert np.shape(found["faithfulness"]["values"]) == (3, 8, 2)
    (folder,) = Path("runs").iterdir()
    assert "comprehensiveness" in run("show", str(folder)).out
    assert json.loads(run("show", str(folder), "--json").out)["texts"] == found["texts"]


def test_texts_that_are_explained_differently_are_refused_by_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contrasts before the model is loaded; how many tokens a target has, after."""
    rows = [{"text": "START 7 3 SEP", "target": " 3", "against": " 7"}, {"text": "START 5 2 SEP", "target": " 2"}]
    rows += [{"text": "START 9 1 SEP", "target": " 1", "id": "mine"}]
    Path("mixed.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    rows = [{"text": "START 7 3 SEP", "target": " 3 7"}, {"text": "START 5 2 SEP", "target": " 2"}]
    Path("tokens.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = ("explain", "sequence-sort", "--baseline", "mean", "--faithfulness", "--file")
    later = run(*command, "tokens.jsonl")
    assert (later.code, "1 by log-prob (line 1); 1 by logit (line 2)" in " ".join(later.err.split())) == (2, True)
    monkeypatch.setattr("assay.cli.explaining.load_given", lambda *_, **__: pytest.fail("the model was loaded"))
    before = run(*command, "mixed.jsonl")
    said = " ".join(before.err.split())
    assert (before.code, "1 with a contrast (line 1); 2 without a contrast (line 2, mine)" in said) == (2, True)
    assert not Path("runs").exists()


def test_a_plain_text_file_is_told_what_a_line_must_be(run: Run) -> None:
    Path("plain.txt").write_text("The capital of France is\n", encoding="utf-8")
    ended = run("explain", "sequence-sort", "--file", "plain.txt")
    assert ended.code == 2
    assert 'such as {"text": "The capital of France is", "target": " Paris"}' in " ".join(ended.err.split())


def test_what_scores_are_is_said_of_each_method(run: Run) -> None:
    ended = run(*SORT, "--methods", "gim,gradient-x-input,integrated-gradients,leave-one-out,random,attn-lrp")
    said = " ".join(ended.out.split())
    assert "leave-one-out: what logits lose when the token alone is replaced." in said
    assert "integrated-gradients: meant to sum to the difference between text and baseline, in logits." in said
    assert "gradient-x-input: a first-order estimate" in said
    assert "gim, attn-lrp: only ranks tokens" in said
    assert "random: random numbers" in said
    assert "Next: --faithfulness" in said
    alone = " ".join(run(*SORT, "--methods", "gim").out.split())
    assert "in logits" not in alone.split("text 1")[0]
    assert "Next: --methods ...,leave-one-out" in alone


def test_no_number_is_cut_or_wrapped_at_eighty_columns() -> None:
    found = assay.explain_all(
        assay.load("sequence-sort"), [assay.Question("START 7 3 SEP")], tuple(METHODS)[:10], baseline="mean"
    )
    console = Console(width=80, file=StringIO())
    print_explanations(console, found)
    text = console.file.getvalue()
    assert "…" not in text
    for scores in found[0].scores.values():
        for score in scores[~np.array(found[0].fixed)]:
            assert re.search(rf"(?<!\S){re.escape(f'{score:+.3g}')}(?!\S)", text)


def test_few_texts_are_said_to_be_few(run: Run) -> None:
    rows = [{"text": f"START {7 + i} 3 SEP", "target": " 3"} for i in range(2)]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = ("explain", "sequence-sort", "--baseline", "mean", "--methods", "leave-one-out", "--faithfulness")
    several = " ".join(run(*command, "--file", "texts.jsonl").out.split())
    assert "2 of 4 tokens take part" in several
    assert "k over counts: 1 to 2;" in several
    assert "of 2 texts only" in several
    assert "the 5 tokens that leave-one-out ranks first are listed" in several
    one = " ".join(run(*command, "START 7 3 SEP").out.split())
    assert "fewer than 6 texts have no 95 % interval" in one
    assert "bootstrap" not in one


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "sequence-sort"), "Give either a TEXT or a --file"),
        (("explain", "sequence-sort", "a", "--file", "b"), "Give either a TEXT or a --file"),
        ((*SORT, "--methods", "gimm"), "Did you mean 'gim'"),
        ((*SORT, "--methods", "deeplift,lime"), "no token attribution method 'lime'"),
        ((*SORT, "--target", ""), "target is empty"),
        ((*SORT, "--steps", "0"), "at least 1 step"),
        ((*SORT, "--memory", "lots"), "--memory takes a size"),
        ((*SORT, "--dtype", "float3"), "Did you mean"),
        ((*SORT, "--chat"), "has no chat template"),
        ((*SORT, "--seed", "-1"), "--seed.: Input should be greater than or equal to 0"),
        (("explain", "sequence-sort", "START \udcff"), "text 1: text holds half a surrogate pair"),
        ((*SORT, "--target", "\udcff"), "text 1: target holds half a surrogate pair"),
        ((*SORT, "--baseline", "\udcff"), "baseline holds half a surrogate pair"),
        (("explain", "sequence-sort", "START 7 3 SEP"), "no token for a space"),
        (("explain", "sequence-sort", "--file", "none.jsonl"), "no file none.jsonl"),
        (("explain", "sequence-sort", "--file", "bad.jsonl"), "2 of 3 lines of bad.jsonl cannot be used"),
        (("explain", "sequence-sort", "--file", "bad.jsonl", "--target", " 1"), "leave --target and --against out"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(run: Run, arguments: tuple[str, ...], message: str) -> None:
    Path("bad.jsonl").write_text('{"text": "START 1 SEP"}\n{"txt": "a"}\n{"text": 3}\n', encoding="utf-8")
    ended = run(*arguments)
    assert ended.code == 2, ended.out
    assert re.search(message, ended.err)
    assert not Path("runs").exists()


def test_nothing_in_a_token_is_markup_or_controls_a_terminal(run: Run, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x>[bold]\x1b[31m\n\u202e"
    found = assay.explain_all(
        assay.load("sequence-sort"), [assay.Question("START 7 3 SEP")], "leave-one-out", baseline="mean"
    )
    item = found[0]
    changed = {"tokens": (evil, *item.tokens[1:]), "id": evil, "target": evil, "against": evil, "baseline": evil}
    spoiled = assay.Explanations(
        **{**vars(found), "items": (assay.Explanation(**{**vars(item), **changed}),)},
    )
    spoiled.provenance["command"] = evil
    spoiled.save(tmp_path / "evil", finish=lambda scratch: write_explanations(spoiled, scratch / "report.html"))
    page = (tmp_path / "evil/report.html").read_text("utf-8")
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)
    ended = run("show", str(tmp_path / "evil"))
    assert ended.code == 0, ended.err
    assert "\x1b" not in ended.out
    assert "\u202e" not in ended.out
    assert "[bold]" in ended.out


def test_visible() -> None:
    assert visible(" a\n\t\x1b\u2028é🙂") == " a\\n\\t\\u001b\\u2028é🙂"
