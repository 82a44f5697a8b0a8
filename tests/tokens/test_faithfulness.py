"""Comprehensiveness and sufficiency against naive loops; a planted order; what guards the numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import assay
from assay.engine.cost import CostMeter
from assay.errors import DataError, OptionError
from assay.report.faithfulness import faithfulness_tables
from assay.tokens.baselines import Baseline
from assay.tokens.faithfulness import KEYS, MOST, PERCENT_FIRST, PERCENT_LAST, Faithfulness, counts_of, curves_of
from assay.tokens.methods import Inputs, Setting, inputs_of, replaced_values
from assay.tokens.questions import ask
from conftest import words, wrapped
from families import VOCABULARY
from oracles.naive import activation, hooked, logits_of
from oracles.test_first_order import linear_model

TEXT, TARGET, AGAINST, BASELINE = [7, 31, 12, 44, 5, 19, 3, 28, 40, 2], 23, 40, 9


def prepared(model: assay.Model, against: int | None = AGAINST) -> tuple[Setting, Inputs]:
    contrast = None if against is None else f" w{against}"
    (asked,) = ask(model, [assay.Question(words(TEXT), f" w{TARGET}", contrast)])
    inputs = inputs_of(model, 0, asked, Baseline(model, f"w{BASELINE}").of(asked))
    return Setting(model, 1 << 30, seed=0, steps=50, cost=CostMeter()), inputs


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_curves_are_those_of_a_naive_loop(family: str) -> None:
    model = wrapped(family)
    hf = model.hf
    text = activation(hf, family, TEXT, ("embeddings", 0, None))
    baseline = activation(hf, family, [BASELINE] * len(TEXT), ("embeddings", 0, None))

    def measures(replaced: list[int]) -> tuple[float, float]:
        at = text.clone()
        at[replaced] = baseline[replaced]
        with hooked(hf, family, ("embeddings", 0, None), lambda _: at.unsqueeze(0)):
            logits = logits_of(hf, TEXT)[-1]
        probabilities = logits.softmax(-1)
        return float(logits[TARGET] - logits[AGAINST]), float(probabilities[TARGET] - probabilities[AGAINST])

    setting, inputs = prepared(model)
    scores = np.random.default_rng(3).standard_normal(len(TEXT))
    found = curves_of(setting, inputs, {"mine": scores, "reversed": -scores}, draws=3)
    whole = measures([])
    np.testing.assert_allclose(found.full, whole, rtol=0, atol=1e-11)
    inner = range(1, len(TEXT) - 1)
    for row, values in enumerate((scores, -scores)):
        order = sorted(inner, key=lambda position, values=values: -values[position])
        n = len(order)
        expected = []
        for measure, steps, unit in KEYS:
            drops = []
            if steps == "counts":
                for k in range(1, n + 1):
                    drops.append(order[:k] if measure == "comprehensiveness" else order[k:])
            elif measure == "comprehensiveness":
                for percent in (1, 5, 10, 20, 50):
                    drops.append(order[: math.ceil(percent * n / 100)])
            else:
                for percent in (50, 80, 90, 95, 99):
                    replaced = math.floor(percent * n / 100)
                    drops.append(order[n - replaced :])
            which = 0 if unit == "metric" else 1
            expected.append(np.mean([whole[which] - measures(replaced)[which] for replaced in drops]))
        np.testing.assert_allclose(found.methods[row], expected, rtol=0, atol=1e-11)
    assert found.random.std(0).min() > 0


def test_each_distinct_set_of_tokens_is_run_once() -> None:
    setting, inputs = prepared(wrapped("llama"))
    scores = np.arange(len(TEXT), dtype=float)
    curves_of(setting, inputs, {"a": scores, "b": scores, "c": 2 * scores}, draws=2)
    runs = setting.cost.layer_tokens_forward / (len(TEXT) * setting.model.n_layers)
    n = len(TEXT) - 2
    assert runs <= 3 * (2 * n)  # one order and two random ones, both ends of each; nothing and everything are shared


def test_counts() -> None:
    counts = counts_of(70)
    assert counts["comprehensiveness", "counts"] == list(range(1, MOST + 1))
    assert counts["sufficiency", "counts"] == list(range(69, 19, -1))
    assert counts["comprehensiveness", "shares"] == [math.ceil(p * 70 / 100) for p in PERCENT_FIRST]
    assert counts["sufficiency", "shares"] == [math.floor(p * 70 / 100) for p in PERCENT_LAST]
    few = counts_of(3)
    assert min(few["comprehensiveness", "shares"]) == 1
    assert max(few["sufficiency", "shares"]) == 2


def test_on_a_linear_model_the_true_order_is_first_and_the_reversed_one_last() -> None:
    model = linear_model()
    setting, inputs = prepared(model)
    single = np.eye(len(TEXT), dtype=bool)
    values = replaced_values(setting, inputs, np.vstack([np.zeros(len(TEXT), bool), single]))[0]
    truth = values[0] - values[1:]
    orders = {"truth": truth, "reversed": -truth}
    draw = np.random.default_rng(0)
    orders |= {f"random {i}": draw.standard_normal(len(TEXT)) for i in range(30)}
    found = curves_of(setting, inputs, orders)
    for column, (measure, steps, unit) in enumerate(KEYS):
        if unit == "metric" and steps == "counts":
            ranked = np.argsort(found.methods[:, column] * (1 if measure == "comprehensiveness" else -1))
            assert ranked[-1] == 0
            assert ranked[0] == 1
    everything = assay.explain(
        model, words(TEXT), f" w{TARGET}", f" w{AGAINST}",
        "gradient-x-input,integrated-gradients,leave-one-out", baseline=f"w{BASELINE}",
    )  # fmt: skip
    for scores in everything.scores.values():
        np.testing.assert_allclose(scores, truth, rtol=0, atol=1e-10)


def faithfulness(values: np.ndarray, full: np.ndarray, spread: float = 0.1) -> Faithfulness:
    methods, n = values.shape[0], values.shape[-1]
    names = (*(f"m{i}" for i in range(methods - 1)), "random")
    return Faithfulness(names, "logits", KEYS, values, np.full((len(KEYS), n), spread), full)


def test_shares_refuse_a_denominator_near_zero() -> None:
    values = np.ones((2, len(KEYS), 3))
    full = np.array([[4.0, 0.19, -5.0], [0.5, 0.5, 0.21]])
    found = faithfulness(values, full)
    for key, (_, _, unit) in enumerate(KEYS):
        row = found.shares[0, key]
        np.testing.assert_allclose(row, [0.25, np.nan, np.nan] if unit == "metric" else [2, 2, 1 / 0.21])
    summary = found.summary()
    assert set(summary["texts_of_share"]) == {1, 3}
    nothing = faithfulness(values, np.zeros((2, 3))).summary()
    assert nothing["share"].isna().all()
    assert (nothing["mean"] == 1).all()


def test_equal_methods_are_told_apart_in_one_of_twenty_comparisons_at_most() -> None:
    """With as few texts as the studies have; values of each method are skewed, as drops are."""
    draw = np.random.default_rng(0)
    for n in (6, 8, 16):
        decided = []
        for _ in range(40):
            values = draw.lognormal(size=(8, len(KEYS), n))
            differences = faithfulness(values, np.ones((2, n))).differences()
            decided.append(((differences["lower"] > 0) | (differences["upper"] < 0)).mean())
        assert 0.01 < np.mean(decided) < 0.055, n
    for n in (1, 5):
        few = faithfulness(draw.normal(size=(2, len(KEYS), n)), np.ones((2, n)))
        assert few.differences()[["lower", "upper"]].isna().all(axis=None)
        assert few.summary()[["lower", "upper"]].isna().all(axis=None)


def test_the_interval_is_paired() -> None:
    draw = np.random.default_rng(0)
    common = 10 * draw.standard_normal((1, len(KEYS), 40))
    values = np.concatenate([common + 1 + 0.01 * draw.standard_normal(common.shape), common])
    found = faithfulness(values, np.ones((2, 40)))
    differences = found.differences()
    assert len(differences) == len(KEYS)
    assert ((differences["lower"] > 0.9) & (differences["upper"] < 1.1)).all()
    summary = found.summary()
    assert (summary["upper"] - summary["lower"]).min() > 1, "texts differ much, methods little"
    alone = faithfulness(values[..., :1], np.ones((2, 1))).differences()
    assert alone[["lower", "upper"]].isna().all(axis=None)


def test_it_is_measured_kept_and_read(tmp_path: object) -> None:
    model = wrapped("qwen2")
    draw = np.random.default_rng(0)
    questions = [assay.Question(words(draw.integers(1, VOCABULARY, 8 + i).tolist()), f" w{5 + i}") for i in range(4)]
    methods = "leave-one-out,gradient-x-input,random"
    found = assay.explain_all(model, questions, methods, baseline="mean", faithfulness=True)
    assert found.faithfulness is not None
    assert found.faithfulness.methods == ("leave-one-out", "gradient-x-input", "random")
    best = found.faithfulness.summary().query(
        "measure == 'comprehensiveness' and unit == 'logits' and steps == 'counts'"
    )
    assert best["mean"].iloc[0] > best["mean"].iloc[2]
    found.save(tmp_path / "run")
    again = assay.Explanations.load(tmp_path / "run")
    np.testing.assert_array_equal(again.faithfulness.values, found.faithfulness.values)
    assert again.items[2].tokens == found.items[2].tokens
    for method in found.methods:
        np.testing.assert_array_equal(again[2].scores[method], found[2].scores[method])
    alone = assay.explain_all(model, questions[2:3], methods, baseline="mean", faithfulness=True)
    np.testing.assert_allclose(alone[0].scores["leave-one-out"], found[2].scores["leave-one-out"], atol=1e-11)


def test_curves_that_are_not_wanted_are_not_run(tmp_path: object) -> None:
    setting, inputs = prepared(wrapped("llama"))
    scores = {"mine": np.random.default_rng(3).standard_normal(len(TEXT))}
    both = curves_of(setting, inputs, scores)
    before = setting.cost.layer_tokens_forward
    shares = curves_of(setting, inputs, scores, curves=["shares"])
    assert setting.cost.layer_tokens_forward - before < before / 2
    assert shares.keys == tuple(key for key in KEYS if key[1] == "shares")
    kept = [column for column, key in enumerate(KEYS) if key in shares.keys]
    np.testing.assert_allclose(shares.methods, both.methods[:, kept], rtol=0, atol=1e-11)
    np.testing.assert_allclose(shares.random, both.random[:, kept], rtol=0, atol=1e-11)

    question = assay.Question(words(TEXT), f" w{TARGET}")
    options = {"baseline": "mean", "faithfulness": True, "curves": ["shares"]}
    found = assay.explain_all(setting.model, [question], "leave-one-out", **options)
    found.save(tmp_path / "run")
    again = assay.Explanations.load(tmp_path / "run").faithfulness
    assert again.keys == shares.keys
    assert set(again.summary()["steps"]) == {"shares"}
    assert [len(table) for table in faithfulness_tables(again, 0)] == [1 + 2 * 2] * 2
    with pytest.raises(OptionError, match="one or both of counts and shares"):
        assay.explain_all(setting.model, [question], "leave-one-out", curves=["share"])


def test_a_value_that_is_not_finite_is_refused() -> None:
    setting, inputs = prepared(wrapped("llama", torch.float32))
    curves_of(setting, inputs, {"any": np.arange(len(TEXT), dtype=float)}, 2)
    row, text, baseline = inputs.rows[0]
    broken = baseline.clone()
    broken[4] = torch.nan
    inputs = replace(inputs, rows=((row, text, broken),))
    with pytest.raises(DataError, match=r"^text 1: a value with tokens replaced of .* is not finite\."):
        curves_of(setting, inputs, {"any": np.arange(len(TEXT), dtype=float)}, 2)


def test_what_cannot_be_measured_is_refused() -> None:
    model = wrapped("llama")

    def measured(*questions: assay.Question, draws: int = 5) -> object:
        return assay.explain_all(model, questions, "leave-one-out", baseline="mean", faithfulness=True, draws=draws)

    with pytest.raises(DataError, match="1 of 3 tokens may be replaced"):
        measured(assay.Question("w1 w2 w3", " w4"))
    with pytest.raises(DataError, match=r"1 by logit \(text 1\); 1 by log-prob \(text 2\)"):
        measured(assay.Question("w1 w2 w3 w4", " w4"), assay.Question("w1 w2 w3 w4", " w4 w5"))
    with pytest.raises(OptionError, match="at least 2"):
        measured(assay.Question("w1 w2 w3 w4", " w4"), draws=1)
