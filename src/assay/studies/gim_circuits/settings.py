"""What the study of circuits measures: models, tasks, methods, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.circuits.faithfulness import SIZES

MODELS = ("gemma-3-270m", "smollm2-135m")
GIM, RANDOM = "gim", "random"
PARTS = ("gim-without-temperature", "gim-without-norm", "gim-without-product")
RULES = (GIM, *PARTS)
"""Backward rules of `eap`, by the names that these methods have here."""
ENSEMBLES = {"parallel": ("eap", "eap-ig-inputs", GIM), "hybrid": ("eap", "eap-ig-inputs", GIM, "edge-masks")}
"""Mean of signed ranks, over these."""
METHODS = ("eap", "eap-ig-inputs", *RULES, "edge-masks", *ENSEMBLES, RANDOM)
ONE_RANKING = ("edge-masks", RANDOM)
"""Signed and absolute ranking are one, or as good as each other: such methods are run by one."""
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ioi": ("ioi", {}),
    "ioi, swap": ("ioi", {"corruption": "swap"}),
    "arithmetic, plus": ("arithmetic", {"operation": "plus"}),
    "arithmetic, minus": ("arithmetic", {"operation": "minus"}),
    "induction": ("induction", {}),
    "copy-colours": ("copy-colours", {}),
    "facts": ("facts", {}),
    "agreement": ("agreement", {}),
    "greater-than": ("greater-than", {}),
}
"""Our name of a task, the maker's and its options."""
SINGLE_STEP = ("facts", "agreement", "greater-than")
"""One thing that the prompt names is completed. In all other tasks something has to be found in the prompt first, and
is then used."""
CHOICES = 4
"""Of a data set's questions."""


@dataclass(frozen=True)
class Setting:
    """One model on one task, or on a data set of questions with four choices."""

    model: str
    task: str

    @property
    def is_data_set(self) -> bool:
        return self.task not in TASKS

    @property
    def multi_step(self) -> bool:
        return self.task not in SINGLE_STEP

    @property
    def folder(self) -> str:
        """Its name inside the study's folder."""
        return f"{self.model.replace('/', '-')}-{self.task.replace(', ', '-')}"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    scored: int = 8
    """Prompt pairs that scores are made on."""
    evaluated: int = 8
    """Others, that circuits are run on."""
    longest: int = 64
    """Tokens that a question of a data set may have."""
    steps: int = 5
    """Gradients of eap-ig-inputs."""
    mask_steps: int = 40
    """Of edge-masks."""
    shares: tuple[float, ...] = (0.002, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
    """Sizes of circuits."""
    tasks: tuple[str, ...] = ("ioi", "arithmetic, plus", "arithmetic, minus", "copy-colours", "facts", "agreement")
    seed: int = 0

    def settings(self, data: Sequence[str] = ()) -> list[Setting]:
        """All of the study's, a model at a time.

        Args:
            data: names of data sets that are there to be read.
        """
        return [Setting(model, task) for model in MODELS for task in (*self.tasks, *data)]


DEFAULT = Sizes()
FULL = replace(DEFAULT, scored=32, evaluated=32, longest=128, mask_steps=100, shares=SIZES, tasks=tuple(TASKS))
