"""Tokenising pairs: what would be measured wrongly is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

import assay
from assay.data import METRICS, PromptPair, PromptPairs
from assay.data.encoding import default_metric, encode, prompt_ids
from assay.errors import DataError, OptionError
from conftest import wrapped


def pairs(*fields: str | None) -> PromptPairs:
    return PromptPairs((PromptPair(*fields),))


@pytest.fixture(scope="module")
def model() -> assay.Model:
    return wrapped("llama")


def byte_tokenizer(bos: bool) -> PreTrainedTokenizerFast:
    """Bytes as tokens, " b" and " c" merged, optionally with a begin-of-text token in front."""
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(["<s>", *alphabet, "Ġb", "Ġc", "ab"])}
    tokenizer = Tokenizer(BPE(vocabulary, [("Ġ", "b"), ("Ġ", "c"), ("a", "b")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    if bos:
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def test_single_token_answers_share_a_row(model: assay.Model) -> None:
    (row,) = encode(model, pairs("w1 w2 w3", "w1 w4 w3", " w5", " w6"), METRICS["logit-diff"])
    assert (row.clean, row.corrupted) == ((1, 2, 3), (1, 4, 3))
    assert (row.positions, row.tokens, row.wrong, row.first_difference) == ((2,), (5,), 6, 1)


def test_longer_answers_are_teacher_forced_on_rows_of_their_own(model: assay.Model) -> None:
    rows = encode(model, pairs("w1 w2", "w3 w2", " w5 w6 w7", " w8"), METRICS["log-prob-diff"])
    assert [row.clean for row in rows] == [(1, 2, 5, 6), (1, 2)]
    assert [row.positions for row in rows] == [(1, 2, 3), (1,)]
    assert [(row.tokens, row.sign) for row in rows] == [((5, 6, 7), 1), ((8,), -1)]
    (row,) = encode(model, pairs("w1 w2", "w3 w2", " w5 w6 w7", None), METRICS["log-prob"])
    assert row.tokens == (5, 6, 7)


def test_default_metric_fits_the_answers(model: assay.Model) -> None:
    assert default_metric(model, pairs("w1", "w2", " w3", " w4"))[0].name == "logit-diff"
    assert default_metric(model, pairs("w1", "w2", " w3 w3", " w4"))[0].name == "log-prob-diff"
    assert default_metric(model, pairs("w1", "w2", " w3", None))[0].name == "log-prob"
    assert default_metric(model, pairs("w1", "w2", [" w3", " w5"], " w4"))[0].name == "log-prob-diff"
    assert default_metric(model, pairs("w1", "w2", [" w3", " w5"], None))[0].name == "log-prob"


def test_a_set_is_one_row_whatever_its_order(model: assay.Model) -> None:
    (row,) = encode(model, pairs("w1 w2", "w3 w2", [" w9", " w5", " w7"], [" w8", " w6"]), METRICS["prob-diff"])
    assert (row.tokens, row.further, row.wrong, row.further_wrong) == ((5,), (7, 9), 6, (8,))
    assert [row] == encode(model, pairs("w1 w2", "w3 w2", [" w5", " w7", " w9"], [" w6", " w8"]), METRICS["prob-diff"])
    (alone,) = encode(model, pairs("w1 w2", "w3 w2", [" w9", " w5"], [" w9", " w5"]), METRICS["log-prob"])
    assert (alone.tokens, alone.further, alone.wrong) == ((5,), (9,), -1)
    rows = encode(model, pairs("w1 w2", "w3 w2", [" w9", " w5"], " w9 w5"), METRICS["log-prob-diff"])
    assert [(row.tokens, row.further, row.sign) for row in rows] == [((5,), (9,), 1), ((9, 5), (), -1)]


@pytest.mark.parametrize(
    ("fields", "metric", "complaint"),
    [
        (("w1", "w2", [" w5", " w6"], " w7"), "logit-diff", r"'0': answer is a set of 2 .*log-prob-diff or prob-diff"),
        (("w1", "w2", " w5", [" w6", " w7", " w8"]), "logit-diff", r"'0': wrong_answer is a set of 3 strings"),
        (("w1", "w2", [" w5", " w6 w7"], " w8"), "prob-diff", r"'0': ' w6 w7', one of 2 strings in answer, is 2 tok"),
        (("w1", "w2", " w8", [" w5", " w5"]), "prob-diff", r"'0': ' w5' is in wrong_answer more than once"),
        (("w1", "w2", [" w5", " w6"], [" w7", " w6"]), "prob-diff", r"'0': \[w6\] belongs to both"),
        (("w1", "w2", [" w5", " w6"], " w6"), "prob-diff", r"\[w6\] belongs to both"),
        (("w1", "w2", [" w5", " what"], " w6"), "prob-diff", r"answer ' what' .* does not know"),
        (("w1 w2", "w1 w2 w3", " w5", " w6"), "logit-diff", r"2 and 3 tokens(.|\n)*\[w1\] \[w2\]\n.*\[w2\] \[w3\]"),
        (("w1", "w2", " w5 w6", " w7"), "logit-diff", r"' w5 w6' is 2 tokens"),
        (("w1", "w2", " w5", " w5"), "logit-diff", r"the same tokens"),
        (("w1", "w2", " w5", None), "logit-diff", r"no wrong_answer"),
        (("w1 what", "w1 w2", " w5", " w6"), "logit-diff", r"clean prompt .* does not know"),
        (("w1", "w2", " what", " w6"), "logit-diff", r"answer ' what' .* does not know"),
        (("  ", "w2", " w5", " w6"), "logit-diff", r"clean prompt .* has no tokens"),
        ((" ".join(["w1"] * 33), " ".join(["w2"] * 33), " w5", " w6"), "logit-diff", r"33 tokens long; .* takes 32"),
    ],
)  # fmt: skip
def test_unusable_pairs_are_refused(fields: tuple, metric: str, complaint: str, model: assay.Model) -> None:
    with pytest.raises(DataError, match=complaint):
        encode(model, pairs(*fields), METRICS[metric])


def test_an_answer_that_joins_the_last_word_is_refused(model: assay.Model) -> None:
    model = assay.Model(model.hf, byte_tokenizer(bos=False), "bytes")
    with pytest.raises(DataError, match=r"would continue the word 'a'.*' b'"):
        encode(model, pairs("a", "a", "b", "c"), METRICS["logit-diff"])
    with pytest.raises(DataError, match="does not begin a new token"):
        encode(model, pairs("x ", "y ", "b", "c"), METRICS["logit-diff"])


def test_begin_of_text_comes_once() -> None:
    tokenizer = byte_tokenizer(bos=True)
    assert prompt_ids(tokenizer, "x")[0] == 0
    assert prompt_ids(tokenizer, "<s>x") == prompt_ids(tokenizer, "x")
    assert 0 not in prompt_ids(byte_tokenizer(bos=False), "x")


@pytest.mark.parametrize("template", ["$A </s>", "$A </s> </s>", "<s> $A </s>"])
def test_what_a_tokenizer_closes_texts_with_is_left_out(template: str) -> None:
    tokenizer = byte_tokenizer(bos=False)
    tokenizer.add_special_tokens({"eos_token": "</s>"})
    eos = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=[("<s>", 0), ("</s>", eos)]
    )
    start = [0] if "<s> " in template else []
    x = byte_tokenizer(bos=False)("x")["input_ids"]
    assert prompt_ids(tokenizer, "x") == start + x
    assert prompt_ids(tokenizer, "x</s>") == [*start, *x, eos]


def test_tokens_beyond_the_model_are_refused(model: assay.Model) -> None:
    tokenizer = byte_tokenizer(bos=False)
    with pytest.raises(DataError, match="beyond the 48"):
        encode(assay.Model(model.hf, tokenizer, "bytes"), pairs("x", "y", " b", " c"), METRICS["logit-diff"])


def test_half_a_surrogate_pair_is_no_text() -> None:
    for field in ("clean", "id", "group"):
        fields = {"clean": "a", "corrupted": "b", "answer": " c", field: "\ud800"}
        with pytest.raises(DataError, match=f"{field} holds half a surrogate"):
            PromptPairs((PromptPair(**fields),))


def test_pairs_come_in_many_forms(model: assay.Model, tmp_path: Path) -> None:
    entry = {"clean": "w1 w2", "corrupted": "w1 w3", "answer": " w5", "wrong_answer": " w6"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(entry))
    forms = [PromptPairs((PromptPair(**entry),)), [entry], [PromptPair(**entry)], tmp_path / "mine.jsonl"]
    values = [assay.activation_patching(model, form, force=True).values for form in forms]
    assert all((found == values[0]).all() for found in values)
    for wrong in (3, [3], [{"clean": "w1"}], [{**entry, "oops": 1}]):
        with pytest.raises(DataError, match=r"assay\.PromptPair"):
            assay.activation_patching(model, wrong)
    with pytest.raises(OptionError, match=r"must be an assay\.Model"):
        assay.activation_patching(forms[0], model)
    listed = assay.activation_patching(model, [entry], sites=["heads", "mlps"], force=True)
    assert (listed.values == values[0]).all()


def test_unknown_metrics_are_refused(model: assay.Model) -> None:
    with pytest.raises(OptionError, match="There is no metric 'oops'"):
        assay.activation_patching(model, pairs("w1", "w2", " w3", " w4"), metric="oops")
