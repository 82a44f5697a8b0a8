"""Sets of answers: every metric against softmax and sums written out in float64, effects against the hook loop."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import assay
from assay.data import METRICS, Metric, PromptPair, PromptPairs
from assay.data.encoding import encode
from assay.data.pairs import members
from assay.engine.batches import make_batches
from assay.engine.response import Response
from assay.errors import DataError
from assay.sites import select
from conftest import ids_of, random_pairs, wrapped
from families import VOCABULARY
from oracles import naive

SIZES = [(3, 2), (1, 4), (5, 1), (1, 1), (7, 7)]
WITH_SETS = ["log-prob", "log-prob-diff", "prob-diff", "exact-match"]


def pairs_with_sets(n: int = 5, seed: int = 0) -> PromptPairs:
    """Sets of many sizes, single answers among them, so that rows of one batch are filled up."""
    draw = random.Random(seed)
    pairs = []
    for number, pair in enumerate(random_pairs(n, lengths=(6, 9))):
        right, wrong = SIZES[number % len(SIZES)]
        tokens = [f" w{token}" for token in draw.sample(range(1, VOCABULARY), right + wrong)]
        pairs.append(replace(pair, answer=tokens[:right], wrong_answer=tokens[right:]))
    return PromptPairs(tuple(pairs))


def total(probabilities: torch.Tensor, answer: str | tuple[str, ...]) -> float:
    return sum(probabilities[ids_of(text)[0]].item() for text in members(answer))


def written_out(metric: str, logits: torch.Tensor, pair: PromptPair) -> float:
    """The metric from logits (T, V) of the whole prompt."""
    probabilities = logits[-1].double().exp() / logits[-1].double().exp().sum()
    right, wrong = total(probabilities, pair.answer), total(probabilities, pair.wrong_answer)
    likeliest = max(range(len(probabilities)), key=lambda token: probabilities[token])
    return {
        "log-prob": np.log(right),
        "log-prob-diff": np.log(right) - np.log(wrong),
        "prob-diff": right - wrong,
        "exact-match": float(f" w{likeliest}" in members(pair.answer)),
    }[metric]


@pytest.mark.parametrize(
    ("family", "metric"),
    [(family, metric) for family in ("llama", "gemma2", "gpt2") for metric in WITH_SETS if metric != "exact-match"]
    + [("llama", "exact-match"), ("gpt2", "exact-match")],
)
def test_metrics_and_effects_equal_the_naive_loop(family: str, metric: str) -> None:
    model, pairs = wrapped(family), pairs_with_sets()
    if metric == "exact-match":  # some of the answers are what greedy decoding gives
        likeliest = [naive.logits_of(model.hf, ids_of(pair.corrupted))[-1].argmax().item() for pair in pairs]
        pairs = PromptPairs(
            tuple(
                replace(pair, answer=[" w1", f" w{token}"]) if number % 2 and token != 1 else pair
                for number, (pair, token) in enumerate(zip(pairs, likeliest, strict=True))
            )
        )
    scores = assay.activation_patching(model, pairs, metric=metric, force=True)
    for side in ("clean", "corrupted"):
        logits = [naive.logits_of(model.hf, ids_of(getattr(pair, side))) for pair in pairs]
        expected = [written_out(metric, found, pair) for found, pair in zip(logits, pairs, strict=True)]
        np.testing.assert_allclose(getattr(scores.baseline, side), expected, rtol=0, atol=1e-11)
        right = [written_out("exact-match", found, pair) for found, pair in zip(logits, pairs, strict=True)]
        assert getattr(scores.baseline, f"{side}_right").tolist() == right
    assert np.abs(scores.values).max() > 1e-2, "the test would prove nothing"
    for place, found in zip(naive.places(model.hf), scores.values, strict=True):
        for pair, effect in zip(pairs, found, strict=True):
            clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
            new = naive.activation(model.hf, family, clean, place)
            patched = written_out(metric, naive.patched_logits(model.hf, family, corrupted, place, new), pair)
            base = written_out(metric, naive.logits_of(model.hf, corrupted), pair)
            assert effect == pytest.approx(patched - base, abs=1e-9)


@pytest.mark.parametrize("metric", ["log-prob", "log-prob-diff", "prob-diff"])
def test_slopes_equal_central_differences(metric: str) -> None:
    model, pairs, step, largest = wrapped("gemma3"), pairs_with_sets(), 1e-5, 0.0
    for batch in make_batches(model, encode(model, pairs, METRICS[metric]), "denoise", 1 << 30):
        response = Response(model, batch, METRICS[metric], select(model, "heads,mlps"))
        expected = (response.value(step) - response.value(-step)) / (2 * step)
        largest = max(largest, expected.abs().max().item())
        torch.testing.assert_close(response.slope(0), expected, rtol=1e-6, atol=1e-8)
    assert largest > 1e-2, "the test would prove nothing"


def test_a_set_divided_adds_up() -> None:
    """Probabilities of the parts add up to the whole's, unpatched and under every patch."""
    model, (pair, *_) = wrapped("llama"), random_pairs(1)
    whole = replace(pair, answer=[" w3", " w4", " w5", " w6"])
    parts = [replace(pair, answer=[" w3", " w6"]), replace(pair, answer=[" w5", " w4"])]

    def patched(metric: str, *of: PromptPair) -> np.ndarray:
        """(C, n) values of the metric under each patch."""
        scores = assay.activation_patching(model, list(of), metric=metric, force=True)
        return scores.baseline.corrupted + scores.values

    first, second, both = np.exp(patched("log-prob", *parts, whole)).T
    assert min(np.ptp(first), np.ptp(second)) > 1e-3, "the test would prove nothing"
    np.testing.assert_allclose(both, first + second, rtol=0, atol=1e-12)
    against = patched("prob-diff", replace(parts[0], wrong_answer=parts[1].answer))[:, 0]
    np.testing.assert_allclose(against, first - second, rtol=0, atol=1e-12)
    ratio = patched("log-prob-diff", replace(parts[0], wrong_answer=parts[1].answer))[:, 0]
    np.testing.assert_allclose(ratio, np.log(first / second), rtol=0, atol=1e-11)


@pytest.mark.parametrize("metric", WITH_SETS)
def test_the_order_of_members_changes_no_bit(metric: str) -> None:
    model, pairs = wrapped("llama"), pairs_with_sets()
    turned = PromptPairs(
        tuple(
            replace(pair, answer=members(pair.answer)[::-1], wrong_answer=sorted(members(pair.wrong_answer)))
            for pair in pairs
        )
    )
    for method in ("activation-patching", *(["attribution-patching"] if METRICS[metric].differentiable else [])):
        first, second = (assay.measure(method, model, each, metric=metric, force=True) for each in (pairs, turned))
        assert (first.values == second.values).all()


def test_a_list_of_one_is_the_answer_itself() -> None:
    model, pairs = wrapped("llama"), random_pairs(3)
    listed = [{**record, "answer": [record["answer"]]} for record in pairs.to_records()]
    first, second = (assay.activation_patching(model, list(each), force=True) for each in (pairs, listed))
    assert first.metric == second.metric == "logit-diff"
    assert (first.values == second.values).all()
    assert first.configuration == second.configuration


def test_a_metric_of_ones_own_reads_sets_if_it_says_so() -> None:
    model, pairs = wrapped("llama"), pairs_with_sets()

    def first_only(logits: torch.Tensor, targets: object) -> torch.Tensor:
        return logits.gather(-1, targets.tokens.unsqueeze(-1)).squeeze(-1).sum(-1)

    def all_members(logits: torch.Tensor, targets: object) -> torch.Tensor:
        found = logits.softmax(-1).gather(-1, targets.answers.clamp(min=0))
        return (found * (targets.answers >= 0)).sum((-1, -2)).log()

    mine = Metric("mine", "logits", "", "answer", "vocabulary", True, first_only)
    with pytest.raises(DataError, match=r"answer is a set of 3 strings, and mine takes no sets"):
        assay.activation_patching(model, pairs, metric=mine, force=True)
    mine = Metric("mine", "nats", "", "answer", "vocabulary", True, all_members, takes_sets=True)
    found = assay.attribution_patching(model, pairs, metric=mine, force=True)
    expected = assay.attribution_patching(model, pairs, metric="log-prob", force=True)
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=1e-11)


def test_sets_survive_the_run_folder(tmp_path) -> None:
    model, pairs = wrapped("llama"), pairs_with_sets()
    scores = assay.activation_patching(model, pairs, force=True)
    assert scores.metric == "log-prob-diff"
    scores.save(tmp_path / "run")
    again = assay.Scores.load(tmp_path / "run")
    assert again.pairs == scores.pairs
    assert (again.values == scores.values).all()
    once_more = assay.activation_patching(model, assay.read_pairs(tmp_path / "run" / "prompts.jsonl"), force=True)
    assert (once_more.values == scores.values).all()
    assert once_more.configuration["prompts_sha256"] == scores.configuration["prompts_sha256"]
    other = PromptPairs((replace(pairs[0], answer=members(pairs[0].answer)[:2]), *pairs[1:]))
    changed = assay.activation_patching(model, other, force=True)
    assert changed.configuration["prompts_sha256"] != scores.configuration["prompts_sha256"]
