"""The prompts of a setting, and whether the model can do the task on them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from assay.circuits import split_pairs
from assay.data import PromptPair, PromptPairs
from assay.data.baseline import standard_error
from assay.data.encoding import prompt_ids, tokenizer_of
from assay.data.readers import PromptSource
from assay.data.readers.choices import LETTERS
from assay.data.tasks import make_pairs
from assay.methods import random_scores
from assay.model import Model
from assay.studies.gim_circuits.settings import CHOICES, TASKS, Setting, Sizes


@dataclass(frozen=True)
class Chosen:
    """Two disjoint sets of pairs, and how well the model does on all of them."""

    scored: PromptPairs
    evaluated: PromptPairs
    clean: float
    """Mean of the metric."""
    clean_stderr: float
    corrupted: float
    difference: float
    """Of both prompts of the pairs that circuits are run on."""
    difference_stderr: float
    right: float | None
    """Of a data set: share of questions whose right letter is more probable than the three others."""
    weights: str
    """Hash of the model's."""
    sha256: str = ""
    """Of a data set's content."""

    @property
    def passes(self) -> bool:
        """It prefers the right answer, tells clean from corrupted, and does not guess among choices."""
        n = len(self.scored) + len(self.evaluated)
        guesses = self.right is not None and self.right - 1 / CHOICES <= 2 * (self.right * (1 - self.right) / n) ** 0.5
        return self.clean > 2 * self.clean_stderr and self.difference > 2 * self.difference_stderr and not guesses

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        return {**asdict(self), "scored": _describe(self.scored), "evaluated": _describe(self.evaluated)}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Self:
        """What `to_dict` gave."""
        return cls(**{**found, "scored": _pairs(found["scored"]), "evaluated": _pairs(found["evaluated"])})


def _describe(pairs: PromptPairs) -> dict[str, Any]:
    return {"task": pairs.task, "metric": pairs.metric, "options": pairs.options, "prompts": pairs.to_records()}


def _pairs(found: dict[str, Any]) -> PromptPairs:
    read = tuple(PromptPair(**prompt) for prompt in found["prompts"])
    return PromptPairs(read, found["task"], found["metric"], found["options"])


def choose(model: Model, setting: Setting, sizes: Sizes, data: PromptSource | None = None) -> Chosen:
    """Draw or read the pairs and run them once.

    Args:
        data: the questions of a data set.

    Raises:
        AssayError: too few pairs, or as `assay.tasks.make_pairs`.
    """
    wanted, sha256 = sizes.scored + sizes.evaluated, ""
    if data is None:
        task, options = TASKS[setting.task]
        pairs = make_pairs(model, task, wanted, sizes.seed, **options)
    else:
        tokenizer, sha256 = tokenizer_of(model), data.sha256
        read = data.pairs(model, sizes.seed)
        short = tuple(pair for pair in read if len(prompt_ids(tokenizer, pair.clean)) <= sizes.longest)
        pairs = replace(read, pairs=short[:wanted])
    scored, evaluated = split_pairs(pairs, sizes.scored)
    of_both = [random_scores(model, part, force=True).baseline for part in (scored, evaluated)]
    clean = np.concatenate([part.clean for part in of_both])
    corrupted = np.concatenate([part.corrupted for part in of_both])
    right = None if data is None else _right(model, pairs)
    return Chosen(
        scored, evaluated, float(clean.mean()), standard_error(clean), float(corrupted.mean()), of_both[1].difference,
        of_both[1].difference_stderr, right, model.weight_hash, sha256,
    )  # fmt: skip


def _right(model: Model, pairs: PromptPairs) -> float:
    """How often the right letter is more probable than each of the others that are listed."""
    right = np.ones(len(pairs), bool)
    for turn in range(1, CHOICES):
        others = [f" {LETTERS[(LETTERS.index(str(pair.answer)[1]) + turn) % CHOICES]}" for pair in pairs]
        against = tuple(replace(pair, wrong_answer=other) for pair, other in zip(pairs, others, strict=True))
        right &= random_scores(model, replace(pairs, pairs=against), force=True).baseline.clean > 0
    return float(right.mean())
