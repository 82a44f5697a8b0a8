"""Prompts that a random model tells apart."""

from __future__ import annotations

import assay
from assay.data import PromptPairs
from conftest import ids_of, random_pairs
from oracles import naive
from oracles.test_exact_effects import logit_difference


def told_apart(model: assay.Model, seed: int) -> assay.PromptPairs:
    """Pairs on which the model prefers the answer on the clean prompt."""
    chosen = []
    for pair in random_pairs(60, seed=seed):
        clean, corrupted = (
            logit_difference(naive.logits_of(model.hf, ids_of(x)), pair) for x in (pair.clean, pair.corrupted)
        )
        if clean - corrupted > 0.5:
            chosen.append(pair)
    return PromptPairs(tuple(chosen), metric="logit-diff")
