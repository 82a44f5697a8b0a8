"""How well the model does a task unpatched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Baseline:
    """The metric on clean and corrupted prompts, and how often the answer is right. All arrays are (n,)."""

    clean: np.ndarray
    corrupted: np.ndarray
    clean_right: np.ndarray
    """Greedy decoding of the clean prompt gives the whole answer."""
    corrupted_right: np.ndarray

    @property
    def difference(self) -> float:
        """Mean of clean minus corrupted: what a full patch would restore."""
        return float((self.clean - self.corrupted).mean())

    @property
    def difference_stderr(self) -> float:
        return standard_error(self.clean - self.corrupted)

    def summary(self) -> dict[str, Any]:
        """Means over the prompts, for JSON."""
        means = {name: float(values.mean()) for name, values in vars(self).items()}
        return {
            "clean": means.pop("clean"),
            "corrupted": means.pop("corrupted"),
            "difference": self.difference,
            **means,
        }

    @property
    def tells_apart(self) -> bool:
        """Whether clean exceeds corrupted by more than two standard errors (by anything, for one pair)."""
        error = self.difference_stderr
        return self.difference > (2 * error if np.isfinite(error) else 0)


def standard_error(values: np.ndarray) -> float:
    """Of the mean over the last axis; NaN for a single value."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")
