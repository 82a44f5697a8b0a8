"""What the study of token attributions measures: models, tasks, methods, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.data.readers.yes_no import TASKS as DATA_SETS
from assay.tokens.faithfulness import STEPS
from assay.tokens.methods import METHODS as ALL

MODELS = ("smollm2-135m", "gemma-3-270m")
METHODS = tuple(name for name, method in ALL.items() if not method.needs_ungated and name != "random")
"""DeepLIFT is not defined for the gated MLPs of both models."""
GIM, PARTS = "gim", ("gim-without-temperature", "gim-without-norm", "gim-without-product")
TASKS: dict[str, dict[str, Any]] = {"ioi": {}, "facts": {}, "agreement": {}, "sentiment": {"kind": "words"}}
"""With their options."""
LONG = ("sentiment", *DATA_SETS)
"""Their prompts have so many tokens that curves over counts would take most of the time: shares alone."""


@dataclass(frozen=True)
class Setting:
    """One model on one task; what is explained is the answer's logit, or its difference to the wrong answer's."""

    model: str
    task: str
    contrast: bool = False

    @property
    def curves(self) -> tuple[str, ...]:
        """What k runs over."""
        return STEPS[1:] if self.task in LONG else STEPS

    @property
    def is_data_set(self) -> bool:
        """Read from a file or the hub."""
        return self.task in DATA_SETS

    @property
    def task_name(self) -> str:
        return f"{self.task}, contrast" if self.contrast else self.task

    @property
    def folder(self) -> str:
        """Its name inside the study's folder."""
        return f"{self.model.replace('/', '-')}-{self.task}{'-contrast' if self.contrast else ''}"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    texts: int = 8
    """Explained, of each task of few tokens."""
    long_texts: int = 6
    """The same of ``sentiment`` and of data sets."""
    scanned: int = 2
    """How many times as many are looked at for right answers; of data sets, ``scanned_rows``."""
    scanned_rows: int = 40
    longest: int = 128
    """Tokens that a text of a data set may have."""
    steps: int = 30
    """Of integrated gradients."""
    draws: int = 5
    """Random orders of a text."""
    seed: int = 0
    baseline: str = "space"
    contrasts: tuple[str, ...] = ("ioi", "facts")
    """Tasks that are measured with a contrast too."""

    def texts_of(self, setting: Setting) -> int:
        return self.long_texts if setting.task in LONG else self.texts

    def settings(self, data: Sequence[str] = ()) -> list[Setting]:
        """All of the study's, cheap ones first.

        Args:
            data: names of data sets that are there to be read.
        """
        kinds = [(task, contrast) for task in TASKS for contrast in (False, True)[: 1 + (task in self.contrasts)]]
        kinds += [(task, False) for task in DATA_SETS if task in data]
        return [Setting(model, task, contrast) for task, contrast in kinds for model in MODELS]


DEFAULT = Sizes()
FULL = replace(DEFAULT, texts=48, long_texts=32, scanned_rows=400, longest=512, steps=100, contrasts=tuple(TASKS))
