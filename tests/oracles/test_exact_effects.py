"""Exact effects equal a naive hook loop: every family, heads and MLPs, both directions, ragged lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import assay
from assay.data import PromptPair, PromptPairs
from assay.errors import OptionError
from conftest import ids_of, random_pairs, wrapped
from families import TINY
from oracles import naive

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def logit_difference(logits: torch.Tensor, pair: PromptPair) -> float:
    (answer,), (wrong,) = ids_of(pair.answer), ids_of(pair.wrong_answer)
    return (logits[-1, answer] - logits[-1, wrong]).item()


def naive_effects(model: assay.Model, family: str, pairs: PromptPairs, direction: str) -> np.ndarray:
    """(C, n) by the oracle."""
    hf = model.hf
    effects = []
    for place in naive.places(hf):
        row = []
        for pair in pairs:
            clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
            base, source = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
            if direction == "zero":
                new = torch.zeros_like(naive.activation(hf, family, base, place))
            else:
                new = naive.activation(hf, family, source, place)
            patched = naive.patched_logits(hf, family, base, place, new)
            row.append(logit_difference(patched, pair) - logit_difference(naive.logits_of(hf, base), pair))
        effects.append(row)
    return np.array(effects)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("direction", ["denoise", "noise", "zero"])
@pytest.mark.parametrize("family", TINY)
def test_exact_effects_equal_naive_loop(family: str, direction: str, dtype: torch.dtype) -> None:
    model = wrapped(family, dtype)
    pairs = random_pairs()
    if direction == "zero":
        scores = assay.zero_ablation(model, pairs, force=True)
    else:
        scores = assay.activation_patching(model, pairs, direction=direction, force=True)
    expected = naive_effects(model, family, pairs, direction)
    assert np.abs(expected).max() > 0.1, "the test would prove nothing"
    assert (np.abs(expected) > 10 * TOLERANCE[dtype]).mean() > 0.9
    np.testing.assert_allclose(scores.values, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("family", TINY)
def test_not_skipping_changes_nothing(family: str) -> None:
    model, pairs = wrapped(family), random_pairs()
    skipping = assay.activation_patching(model, pairs, force=True)
    whole = assay.activation_patching(model, pairs, force=True, skip=False)
    spent, spent_skipping = (scores.cost["layer_tokens_forward"] for scores in (whole, skipping))
    assert spent > spent_skipping or (model.family.counts_positions and spent == spent_skipping)
    np.testing.assert_allclose(skipping.values, whole.values, rtol=0, atol=1e-11)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("over", ["position", "all-positions"])
def test_mean_ablation_equals_naive_loop(family: str, over: str) -> None:
    model = wrapped(family)
    reference = random_pairs(40, seed=1, lengths=(7,))
    pairs = random_pairs(3, seed=2, lengths=(7,))
    scores = assay.mean_ablation(model, pairs, mean=over, reference=reference, force=True)
    for place, found in zip(naive.places(model.hf), scores.values, strict=True):
        runs = [naive.activation(model.hf, family, ids_of(pair.corrupted), place) for pair in reference]
        stacked = torch.stack(runs)
        mean = stacked.mean(0) if over == "position" else stacked.mean((0, 1)).expand_as(stacked[0])
        for pair, value in zip(pairs, found, strict=True):
            ids = ids_of(pair.clean)
            base = logit_difference(naive.logits_of(model.hf, ids), pair)
            patched = logit_difference(naive.patched_logits(model.hf, family, ids, place, mean), pair)
            assert value == pytest.approx(patched - base, abs=1e-9)


@pytest.mark.parametrize("metric", ["log-prob", "log-prob-diff", "prob-diff", "exact-match"])
def test_multi_token_metrics_equal_naive_loop(metric: str) -> None:
    """Two- and three-token answers, teacher-forced on runs of their own."""
    model = wrapped("llama")
    base = random_pairs(3)
    pairs = PromptPairs(
        tuple(
            PromptPair(pair.clean, pair.corrupted, pair.answer + " w5", pair.wrong_answer + " w7 w9") for pair in base
        )
    )
    scores = assay.activation_patching(model, pairs, metric=metric, force=True)

    def value(prompt: str, source: str | None, pair: PromptPair, place: naive.Place) -> float:
        total = 0.0
        for sign, answer in ((1, pair.answer), (-1, pair.wrong_answer)):
            if sign < 0 and metric in ("log-prob", "exact-match"):
                continue
            tokens = ids_of(answer)
            ids = ids_of(prompt) + tokens[:-1]
            if source is None:
                logits = naive.logits_of(model.hf, ids)
            else:
                new = naive.activation(model.hf, "llama", ids_of(source) + tokens[:-1], place)
                logits = naive.patched_logits(model.hf, "llama", ids, place, new)
            logits = logits[len(ids_of(prompt)) - 1 :]
            log_prob = sum(logits.log_softmax(-1)[i, token].item() for i, token in enumerate(tokens))
            if metric == "exact-match":
                return float(logits.argmax(-1).tolist() == tokens)
            total += sign * (np.exp(log_prob) if metric == "prob-diff" else log_prob)
        return total

    for place, found in zip(naive.places(model.hf), scores.values, strict=True):
        for pair, effect in zip(pairs, found, strict=True):
            patched = value(pair.corrupted, pair.clean, pair, place)
            assert effect == pytest.approx(patched - value(pair.corrupted, None, pair, place), abs=1e-9)


def test_exact_match_is_what_greedy_decoding_gives(sorter: assay.Model) -> None:
    pairs = assay.tasks.sort(sorter, n=24, length=10)
    scores = assay.activation_patching(sorter, pairs, metric="exact-match", sites="mlps")
    for pair, right in zip(pairs, scores.baseline.clean_right, strict=True):
        ids = sorter.tokenizer(pair.clean, return_tensors="pt")["input_ids"]
        written = sorter.hf.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=11, do_sample=False, use_cache=False
        )
        answer = sorter.tokenizer(pair.answer)["input_ids"]
        assert (written[0, ids.shape[1] :].tolist() == answer) == bool(right)


@pytest.mark.parametrize("direction", ["denoise", "noise", "zero"])
def test_divergence_from_the_clean_run_equals_naive_loop(direction: str) -> None:
    model, base_pairs = wrapped("gemma2"), random_pairs(3)
    pairs = PromptPairs(tuple(PromptPair(p.clean, p.corrupted, p.answer + " w5") for p in base_pairs))
    method = "zero-ablation" if direction == "zero" else "activation-patching"
    options = {} if direction == "zero" else {"direction": direction}
    scores = assay.measure(method, model, pairs, metric="kl", force=True, **options)
    if direction == "denoise":
        estimate = assay.attribution_patching(model, pairs, metric="kl", force=True)
        pairs = estimate.pairs
    for place, found in zip(naive.places(model.hf), scores.values, strict=True):
        for pair, effect in zip(pairs, found, strict=True):
            forced = ids_of(pair.answer)[:-1]
            clean, corrupted = ids_of(pair.clean) + forced, ids_of(pair.corrupted) + forced
            start = len(ids_of(pair.clean)) - 1
            base, source = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
            new = naive.activation(model.hf, "gemma2", source, place)
            new = torch.zeros_like(new) if direction == "zero" else new
            reference = naive.logits_of(model.hf, clean)[start:].softmax(-1)

            def value(logits: torch.Tensor, start=start, reference=reference) -> float:
                return -(reference * (reference.log() - logits[start:].log_softmax(-1))).sum().item()

            patched = value(naive.patched_logits(model.hf, "gemma2", base, place, new))
            assert effect == pytest.approx(patched - value(naive.logits_of(model.hf, base)), abs=1e-9)
            if direction == "denoise":
                here = naive.activation(model.hf, "gemma2", base, place)
                ends = [
                    value(naive.patched_logits(model.hf, "gemma2", base, place, here + a * (new - here)))
                    for a in (1e-5, -1e-5)
                ]
                slope = estimate.values[naive.places(model.hf).index(place), pairs.pairs.index(pair)]
                assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-7)
    assert (scores.baseline.clean == 0).all() or np.abs(scores.baseline.clean).max() < 1e-12
    if direction != "denoise":
        assert (scores.importance >= -1e-12).all()
        with pytest.raises(OptionError, match="flat at the clean run"):
            assay.attribution_patching(model, pairs, metric="kl", direction="noise", force=True)
