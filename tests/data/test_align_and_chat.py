"""Prompts of unequal length, and prompts in a chat template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.data import METRICS, PromptPair, PromptPairs
from assay.data.chat import as_chat
from assay.data.encoding import encode, prompt_ids
from assay.data.equal_lengths import equal_lengths
from assay.data.readers import as_pairs
from assay.errors import DataError, OptionError
from conftest import tiny_model, tiny_tokenizer, wrapped

UNEQUAL = PromptPairs((PromptPair("w9 w1 w2 w3", "w9 w4 w5", " w6", " w7"),), metric="logit-diff")


def model_with(**special: str) -> assay.Model:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(special)
    return assay.Model(wrapped("llama").hf, tokenizer, "tiny")


def tokens(model: assay.Model, align: str, pairs: PromptPairs = UNEQUAL) -> tuple[tuple[int, ...], tuple[int, ...]]:
    (row,) = encode(model, pairs, METRICS["logit-diff"], align=align)
    assert row.positions == (len(row.clean) - 1,)
    return row.clean, row.corrupted


def test_unequal_lengths_are_refused_unless_asked() -> None:
    for model in (model_with(), model_with(pad_token="w8")):
        with pytest.raises(DataError, match=r"4 and 3 tokens.*--align skip, pad or last-k"):
            tokens(model, "reject")
    with pytest.raises(OptionError, match=r"no alignment 'left'. Choose one of reject, skip, pad, last-k"):
        tokens(model_with(), "left")


def test_pad_fills_up_in_front_behind_the_begin_of_text() -> None:
    assert tokens(model_with(pad_token="w8"), "pad") == ((9, 1, 2, 3), (8, 9, 4, 5))
    assert tokens(model_with(pad_token="w8", bos_token="w9"), "pad") == ((9, 1, 2, 3), (9, 8, 4, 5))
    with pytest.raises(DataError, match="no token for --align pad"):
        tokens(model_with(), "pad")
    same = PromptPairs((PromptPair("w9 w8 w1", "w9 w1", " w6", " w7"),))
    with pytest.raises(DataError, match="--align pad leaves no difference"):
        tokens(model_with(pad_token="w8", bos_token="w9"), "pad", same)


def test_last_k_keeps_the_end_and_the_begin_of_text() -> None:
    assert tokens(model_with(), "last-k") == ((1, 2, 3), (9, 4, 5))
    assert tokens(model_with(bos_token="w9"), "last-k") == ((9, 2, 3), (9, 4, 5))
    same = PromptPairs((PromptPair("w1 w2 w3", "w2 w3", " w6", " w7"),))
    with pytest.raises(DataError, match="leaves no difference between clean and corrupted; use --align pad"):
        tokens(model_with(), "last-k", same)


def test_equal_lengths_stay_as_they_are() -> None:
    equal = PromptPairs((PromptPair("w9 w1", "w9 w2", " w6", " w7"),))
    for align in ("reject", "pad", "last-k"):
        assert tokens(model_with(pad_token="w8", bos_token="w9"), align, equal) == ((9, 1), (9, 2))


def test_aligned_prompts_are_measured_as_if_written_so() -> None:
    model = model_with(pad_token="w8")
    written = PromptPairs((PromptPair("w9 w1 w2 w3", "w8 w9 w4 w5", " w6", " w7"),), metric="logit-diff")
    aligned = assay.activation_patching(model, UNEQUAL, align="pad", force=True)
    plain = assay.activation_patching(model, written, force=True)
    np.testing.assert_array_equal(aligned.values, plain.values)
    assert (aligned.configuration["align"], plain.configuration["align"]) == ("pad", "reject")
    means = assay.mean_ablation(model, UNEQUAL, reference=UNEQUAL, mean="all-positions", align="pad", force=True)
    assert np.isfinite(means.values).all()


MIXED = [
    {"clean": "w9 w1 w2 w3", "corrupted": "w9 w4 w5", "answer": " w6", "wrong_answer": " w7"},
    {"clean": "w9 w1 w2", "corrupted": "w9 w4 w2", "answer": " w6", "wrong_answer": " w7"},
    {"clean": "w9 w1", "corrupted": "w9 w4 w5", "answer": " w6", "wrong_answer": " w7"},
    {"clean": "w3 w1 w5 w6", "corrupted": "w3 w2 w5 w6", "answer": " w6", "wrong_answer": " w7"},
]


def test_skip_measures_the_pairs_of_equal_length_and_counts_the_others(tmp_path: Path) -> None:
    model = model_with()
    scores = assay.activation_patching(model, MIXED, align="skip", force=True)
    plain = assay.activation_patching(model, [MIXED[1], MIXED[3]], force=True)
    np.testing.assert_array_equal(scores.values, plain.values)
    assert [pair.clean for pair in scores.pairs] == [MIXED[1]["clean"], MIXED[3]["clean"]]
    assert scores.pairs.options["dropped"] == {"clean and corrupted differ in token length": 2}
    assert scores.configuration["align"] == "skip"
    assert scores.configuration["task"]["dropped"] == scores.pairs.options["dropped"]
    with pytest.raises(DataError, match=r"None of the 2 pairs can be used.*--align pad"):
        assay.activation_patching(model, [MIXED[0], MIXED[2]], align="skip", force=True)
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join(map(json.dumps, MIXED)))
    one = assay.read_pairs(path, model, n=1, align="skip")
    assert (one[0].clean, len(one), sum(one.options["dropped"].values())) == (MIXED[1]["clean"], 1, 1)
    assert len(assay.read_pairs(path, model, n=9, align="skip")) == 2
    with pytest.raises(OptionError, match="Token lengths depend on the model"):
        assay.read_pairs(path, n=1, align="skip")


def test_skip_leaves_reference_prompts_out_too() -> None:
    model = model_with()
    equal = [MIXED[1], MIXED[1] | {"corrupted": "w9 w8 w2"}]
    found = assay.resample_ablation(model, equal, reference=[*MIXED, *equal], align="skip", force=True)
    plain = assay.resample_ablation(model, equal, reference=[MIXED[1], MIXED[3], *equal], force=True)
    np.testing.assert_array_equal(found.values, plain.values)


def test_skip_counts_the_tokens_of_rendered_prompts() -> None:
    model = model_with()
    model.tokenizer.chat_template = "{{ messages[0].content }}{% if 'w4' in messages[0].content %} w1{% endif %}"
    left = equal_lengths(model, as_pairs(MIXED), chat=True)
    assert [pair.clean for pair in left] == [MIXED[0]["clean"], MIXED[3]["clean"]]
    scores = assay.activation_patching(model, MIXED, align="skip", chat=True, force=True)
    assert [pair.corrupted for pair in scores.pairs] == ["w9 w4 w5 w1", "w3 w2 w5 w6"]
    with pytest.raises(OptionError, match="--align pad would cut into a chat template"):
        assay.activation_patching(model, MIXED, align="pad", chat=True, force=True)


CAPITALS = PromptPairs(
    (
        PromptPair(
            "What is the capital of France? Answer in one word. <b>🙂</b> שלום",
            "What is the capital of Italy? Answer in one word. <b>🙂</b> שלום",
            "Paris",
            "Rome",
        ),
    )
)


@pytest.mark.xdist_group("real models")
def test_chat_renders_prompts_as_the_template_says(smollm2: assay.Model) -> None:
    rendered = as_chat(smollm2, CAPITALS)
    tokenizer = smollm2.tokenizer
    for pair, given in zip(rendered, CAPITALS, strict=True):
        assert given.clean in pair.clean
        assert pair.clean.endswith("<|im_start|>assistant\n")
        assert (pair.answer, pair.wrong_answer) == (given.answer, given.wrong_answer)
        message = [{"role": "user", "content": given.clean}]
        expected = tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"]
        assert prompt_ids(tokenizer, pair.clean) == list(expected)
    scores = assay.attribution_patching(smollm2, CAPITALS, chat=True, sites="mlps", force=True)
    assert scores.pairs == rendered
    assert scores.configuration["chat"] is True
    assert scores.baseline.difference > 0


def test_begin_of_text_is_not_doubled_by_a_template() -> None:
    for template in ("{{ bos_token }} {{ messages[0].content }} w3", "{{ messages[0].content }} w3"):
        model = model_with(bos_token="w9")
        model.tokenizer.chat_template = template
        pairs = as_chat(model, PromptPairs((PromptPair("w1 w2", "w1 w4", " w6", " w7"),), metric="logit-diff"))
        ids = prompt_ids(model.tokenizer, pairs[0].clean)
        assert ids.count(9) == template.count("bos_token")
        assert ids[-3:] == [1, 2, 3]


def test_models_that_cannot_chat_are_refused() -> None:
    model = model_with()
    with pytest.raises(OptionError, match="tiny has no chat template"):
        assay.attribution_patching(model, UNEQUAL, chat=True)
    with pytest.raises(OptionError, match="bare has no chat template"):
        as_chat(assay.Model(tiny_model("llama"), None, "bare"), UNEQUAL)
    model.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match="chat template of tiny cannot be rendered: roles must alternate"):
        as_chat(model, PromptPairs((replace(UNEQUAL[0]),)))
