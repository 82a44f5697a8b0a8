"""What comes back: the effect of every component on every example."""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.data.baseline import Baseline
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import OptionError
from assay.sites import Component
from assay.store import RunFiles, read_run, write_run

KEYS = ["method", "site", "layer", "unit", "source", "destination", "position"]


@dataclass(frozen=True)
class Scores:
    """Effects of C components on n examples.

    ``effect`` = metric(patched) - metric(base), in the metric's unit, signed, never clipped.
    ``importance`` = +effect when clean activations are patched into the corrupted run (denoise), -effect
    when a clean run is damaged (noise, ablations): higher = more important.
    """

    components: Sequence[Component]
    values: np.ndarray
    """(C, n) float64 effects; for methods with ``estimates_effect`` False, scores of no unit."""
    pairs: PromptPairs
    method: str
    direction: str
    metric: str
    unit: str
    exact: bool
    """Every value was measured by intervention."""
    estimates_effect: bool
    signed: bool
    baseline: Baseline
    cost: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    """Everything that determines the numbers; the same configuration gives the same run."""
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def sign(self) -> int:
        """Importance over effect."""
        return 1 if self.direction == "denoise" or not self.estimates_effect else -1

    @property
    def importance(self) -> np.ndarray:
        """(C,) mean over examples, higher = more important."""
        importance: np.ndarray = self.sign * self.values.mean(1)
        return importance

    def to_pandas(self) -> pd.DataFrame:
        """One row per component: keys, mean effect, importance, standard error over prompts, verdict."""
        n = self.values.shape[1]
        error = self.values.std(axis=1, ddof=1) / n**0.5 if n > 1 else np.full(len(self.values), np.nan)
        frame = self._keys()
        frame["mean"] = self.values.mean(1)
        frame["importance"] = self.importance
        frame["stderr_prompts"] = error
        for name in ("lower", "upper"):
            frame[name] = frame["mean"] if self.exact else np.nan
        frame["reliability"] = np.nan
        frame["verdict"] = "verified" if self.exact else "unresolved"
        return frame

    def per_example(self) -> pd.DataFrame:
        """One row per component and example."""
        n = self.values.shape[1]
        frame = self._keys().loc[lambda keys: keys.index.repeat(n)].reset_index(drop=True)
        frame["example"] = np.tile(np.arange(n), len(self.components))
        frame["value"] = self.values.reshape(-1)
        return frame

    def top(self, k: int = 20) -> pd.DataFrame:
        """The ``k`` components of largest absolute mean importance, ties in the order of the components.

        Raises:
            OptionError: k below 1.
        """
        if k < 1:
            raise OptionError(f"The number of components to show must be at least 1, not {k}.")
        order = np.argsort(-np.abs(self.importance), kind="stable")[:k]
        frame = self.to_pandas().iloc[order].reset_index(drop=True)
        frame.insert(0, "component", [self.components[i].name for i in order])
        return frame

    def save(self, folder: str | Path, finish: Callable[[Path], object] = lambda _: None) -> Path:
        """Write a run folder; ``finish`` may add files to it before it gets its name.

        Raises:
            StoreError: the folder exists or cannot be written.
        """
        run = {
            "kind": "scores",
            **{name: getattr(self, name) for name in SAVED_FIELDS},
            "task": {"name": self.pairs.task, "metric": self.pairs.metric, "options": self.pairs.options},
            "baseline": {
                "clean": float(self.baseline.clean.mean()),
                "corrupted": float(self.baseline.corrupted.mean()),
                "difference": self.baseline.difference,
                "clean_right": float(self.baseline.clean_right.mean()),
                "corrupted_right": float(self.baseline.corrupted_right.mean()),
            },
        }
        tensors = {f"baseline.{name}": np.asarray(array, np.float64) for name, array in vars(self.baseline).items()}
        files = RunFiles(run, self.per_example(), self.to_pandas(), self.pairs.to_records(), tensors)
        return write_run(folder, files, finish)

    @classmethod
    def load(cls, folder: str | Path) -> Scores:
        """Read a run folder that `save` or ``assay score`` wrote.

        Raises:
            StoreError: not such a folder, or a damaged one.
        """
        files = read_run(folder)
        task = files.run["task"]
        pairs = tuple(PromptPair(**prompt) for prompt in files.prompts)
        keys = files.components
        return cls(
            components=[
                Component(int(layer), site, None if pd.isna(unit) else int(unit))
                for site, layer, unit in zip(keys["site"], keys["layer"], keys["unit"], strict=True)
            ],
            values=files.scores["value"].to_numpy(np.float64).reshape(len(keys), len(pairs)),
            pairs=PromptPairs(pairs, task["name"], task["metric"], task["options"]),
            baseline=Baseline(**{name.removeprefix("baseline."): array for name, array in files.tensors.items()}),
            **{name: files.run[name] for name in SAVED_FIELDS},
        )

    def _keys(self) -> pd.DataFrame:
        count = len(self.components)
        return pd.DataFrame(
            {
                "method": self.method,
                "site": [component.site for component in self.components],
                "layer": pd.array([component.layer for component in self.components], dtype="Int64"),
                "unit": pd.array([component.unit for component in self.components], dtype="Int64"),
                "source": pd.array([None] * count, dtype="string"),
                "destination": pd.array([None] * count, dtype="string"),
                "position": pd.array([None] * count, dtype="Int64"),
            },
        )

    def __repr__(self) -> str:
        model = self.provenance.get("model", {}).get("name", "?")
        return (
            f"Scores({self.method}, {model}, {self.pairs.task}: {len(self.components)} components x "
            f"{self.values.shape[1]} examples, {self.direction}, {self.metric} in {self.unit})"
        )

    def _repr_html_(self) -> str:
        shown = ["component", "importance", "mean", "stderr_prompts", "verdict"]
        table: str = self.top(20)[shown].to_html(index=False, float_format="{:+.4g}".format)
        return f"<p>{html.escape(repr(self))}</p>{table}"


SAVED_FIELDS = (
    "method", "direction", "metric", "unit", "exact", "estimates_effect", "signed", "cost", "configuration",
    "provenance",
)  # fmt: skip


def configuration_hash(configuration: dict[str, Any]) -> str:
    """Eight hexadecimal digits that stand for a configuration."""
    text = json.dumps(configuration, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
