"""What the study of heroes and bloats measures: tasks, seeds, language models, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from assay.audit.rivals import RIVALS
from assay.engine.sources import MeanOver

SEQUENCES = ("reverse", "sort")
MODELS = ("gemma-3-270m", "smollm2-135m")
TASKS = ("ioi", "facts")
"""Of the language models."""
WINDOW = (0.20, 0.75)
"""Out of distribution is the first length at which a seed's accuracy lies within (arXiv 2602.01442)."""
MODEL_MEAN: MeanOver = "all-positions"
"""Of language models, whose prompts have many lengths."""
LONGER = (8, 9, 10, 11)
CHEAP = ("|grad.delta|", "grad.delta", "gim")
"""Rivals that take one gradient for all components."""


@dataclass(frozen=True)
class Setting:
    """One model on one task: a trained seed, or a language model."""

    task: str
    model: str = ""
    """A language model's name."""
    seed: int = 0
    """Of a training."""

    @property
    def is_trained(self) -> bool:
        return not self.model

    @property
    def folder(self) -> str:
        """Its name inside the study's folder."""
        return f"{self.task}-seed-{self.seed}" if self.is_trained else f"{self.model.replace('/', '-')}-{self.task}"

    @property
    def title(self) -> str:
        return f"{self.task}, seed {self.seed}" if self.is_trained else f"{self.model}, {self.task}"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    seeds: int = 10
    """Trained models of each sequence task."""
    examples: int = 500
    """In distribution, and as many out of it."""
    length: int = 5
    """Numbers of a prompt in distribution."""
    batches: int = 50
    """That gradient magnitude is averaged over."""
    rivals: tuple[str, ...] = RIVALS
    rival_examples: int = 80
    pruned_examples: int = 200
    dynamic_seeds: tuple[int, ...] = (0, 1)
    """Seeds that are measured along their training."""
    dynamic_examples: int = 200
    points: int | None = 10
    """Checkpoints of each of them; all if None."""
    model_examples: int = 12
    """Of each language model and task."""
    model_references: int = 64
    """Prompts that a language model's means are taken over, those examples among them."""
    model_rivals: tuple[str, ...] = CHEAP
    seed: int = 0

    def settings(self) -> list[Setting]:
        """All of the study's: trained seeds, then language models."""
        trained = [Setting(task, seed=seed) for task in SEQUENCES for seed in range(self.seeds)]
        return trained + [Setting(task, model) for model in MODELS for task in TASKS]

    def seeds_along(self) -> list[int]:
        """Of ``dynamic_seeds``, those that there are."""
        return [seed for seed in self.dynamic_seeds if seed < self.seeds]


DEFAULT = Sizes()
FULL = replace(
    DEFAULT, examples=2500, rival_examples=200, pruned_examples=500, dynamic_examples=500, points=None,
    model_examples=64, model_references=256, model_rivals=RIVALS,
)  # fmt: skip
