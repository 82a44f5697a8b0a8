"""What comes back: the effect of every component on every example."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from assay.data.baseline import Baseline
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import DataError, OptionError, StoreError
from assay.shown import Shown
from assay.sites import Component, Position, require_kind
from assay.store import RunFiles, RunFolder, read_run, write_run

KEYS = ["method", "site", "layer", "unit", "source", "destination", "position"]


@dataclass(frozen=True, eq=False)
class Scores(Shown):
    """Effects of C components on n examples.

    ``effect`` = metric(patched) - metric(base), in the metric's unit, signed, never clipped.
    ``importance`` = +effect when clean activations are patched into the corrupted run (denoise), -effect
    when a clean run is damaged (noise, ablations): higher = more important.
    """

    components: Sequence[Component]
    values: np.ndarray
    """(C, n) float64 effects, or what else the method gives, in ``unit``."""
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
    stderr_probes: np.ndarray | None = None
    """(C, n) standard error of each value from the spread of its random probes; None where nothing is drawn."""
    gap: np.ndarray | None = None
    """(C, n) completeness gap: value - exact effect; None where it was not asked for."""
    cost: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    """Everything that determines the numbers."""
    provenance: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    """What was asked for on the command line; empty from Python."""

    @property
    def sign(self) -> int:
        """Importance over effect."""
        return 1 if self.direction == "denoise" or self.unit == "none" or not self.signed else -1

    @property
    def importance(self) -> np.ndarray:
        """(C,) mean over examples, higher = more important."""
        importance: np.ndarray = self.sign * self.values.mean(1)
        return importance

    def to_pandas(self) -> pd.DataFrame:
        """One row per component: keys, mean effect, importance, standard error over prompts, verdict.

        Where there are any, also ``stderr_probes``, the standard error of the mean from the probes alone (part of
        ``stderr_prompts`` already, since each prompt has its own), and ``gap``, the mean completeness gap.
        """
        n = self.values.shape[1]
        error = self.values.std(axis=1, ddof=1) / n**0.5 if n > 1 else np.full(len(self.values), np.nan)
        frame = self._keys()
        frame["mean"] = self.values.mean(1)
        frame["importance"] = self.importance
        frame["stderr_prompts"] = error
        if self.stderr_probes is not None:
            frame["stderr_probes"] = np.sqrt((self.stderr_probes**2).sum(1)) / n
        if self.gap is not None:
            frame["gap"] = self.gap.mean(1)
        for name in ("lower", "upper"):
            frame[name] = frame["mean"] if self.exact else np.nan
        frame["reliability"] = np.nan
        unchecked = "unresolved" if self.estimates_effect else "none"
        frame["verdict"] = "verified" if self.exact else unchecked
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
        columns = ["component", "importance", "stderr_prompts", "verdict", "mean", "site", "layer", "unit", "position"]
        columns[3:3] = [name for name in BESIDE if name in frame]
        if not self.exact:
            columns += ["lower", "upper", "reliability"]
        return frame[[name for name in columns if name == "stderr_prompts" or not frame[name].isna().all()]]

    def save(
        self,
        folder: str | Path | RunFolder,
        *,
        overwrite: bool = False,
        finish: Callable[[Path], object] = lambda _: None,
    ) -> Path:
        """Write a run folder.

        Args:
            folder: where to; or a run folder that is held, whose run these scores finish.
            overwrite: replace a run folder that is there already.
            finish: may add files before the folder gets its name.

        Raises:
            StoreError: the folder exists or cannot be written.
        """
        files = self._files()
        if isinstance(folder, RunFolder):
            return folder.write(files, finish, keep_shards=self._ended_at_a_limit)
        return write_run(folder, files, overwrite, finish)

    @property
    def _ended_at_a_limit(self) -> bool:
        """Whether more could be found out than was allowed to be spent."""
        return False

    def _files(self) -> RunFiles:
        run = {
            "kind": "scores",
            **{name: getattr(self, name) for name in SAVED_FIELDS},
            "task": {"name": self.pairs.task, "metric": self.pairs.metric, "options": self.pairs.options},
            "baseline": self.baseline.summary(),
        }
        tensors = {f"baseline.{name}": np.asarray(array, np.float64) for name, array in vars(self.baseline).items()}
        tensors |= {f"scores.{name}": array for name in BESIDE if (array := getattr(self, name)) is not None}
        return RunFiles(run, self.per_example(), self.to_pandas(), self.pairs.to_records(), tensors)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a run folder that `save` or ``assay score`` wrote.

        Raises:
            StoreError: not such a folder, or a damaged one.
        """
        files = read_run(folder)
        try:
            return cls._from_files(files)
        except (KeyError, TypeError, ValueError, AttributeError, OptionError, DataError) as error:
            raise StoreError(f"The files of {folder} do not fit together: {error}") from error

    @classmethod
    def _from_files(cls, files: RunFiles) -> Self:
        task = files.run["task"]
        pairs = tuple(PromptPair(**prompt) for prompt in files.prompts)
        keys = files.components
        components = tuple(
            Component(int(layer), require_kind(site).name, None if pd.isna(unit) else int(unit), _position(position))
            for site, layer, unit, position in zip(
                keys["site"], keys["layer"], keys["unit"], keys["position"], strict=True
            )
        )
        baseline = {
            name.removeprefix("baseline."): array
            for name, array in files.tensors.items()
            if name.startswith("baseline.")
        }
        beside: dict[str, Any] = {name: files.tensors.get(f"scores.{name}") for name in BESIDE}
        scores = cls(
            components=components,
            values=files.scores["value"].to_numpy(np.float64).reshape(len(components), len(pairs)),
            pairs=PromptPairs(pairs, task["name"], task["metric"], task["options"]),
            baseline=Baseline(**baseline),
            **beside,
            **{name: files.run[name] for name in SAVED_FIELDS},
            **cls._further_fields(files),
        )
        scores._require_consistent(files)
        return scores

    @classmethod
    def _further_fields(cls, files: RunFiles) -> dict[str, Any]:
        """Of what is more than scores."""
        return {}

    def _require_consistent(self, files: RunFiles) -> None:
        """The files must say what this object would write."""
        if not np.isfinite(self.values).all():
            raise ValueError("a value is not finite")
        beside = {name: array for name in BESIDE if (array := getattr(self, name)) is not None}
        if any(array.shape != self.values.shape or not np.isfinite(array).all() for array in beside.values()):
            raise ValueError(f"{' or '.join(beside)} is not one finite number per value")
        if any(array.shape != (len(self.pairs),) for array in vars(self.baseline).values()):
            raise ValueError("the baseline is not one value per prompt")
        if self.direction not in ("denoise", "noise", "ablation"):
            raise ValueError(f"unknown direction {self.direction!r}")
        for name, expected, found in (
            ("scores.parquet", self.per_example(), files.scores),
            ("components.parquet", self.to_pandas(), files.components),
        ):
            labels = [column for column in expected if column in (*KEYS, "example")]
            if list(expected) != list(found) or not expected[labels].astype(str).equals(found[labels].astype(str)):
                raise ValueError(f"{name} has other rows or columns than the run")
        if not np.allclose(files.components["mean"].to_numpy(float), self.values.mean(1), rtol=1e-12, atol=0):
            raise ValueError("components.parquet has other means than scores.parquet")

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
                "position": pd.array([_text(component.position) for component in self.components], dtype="string"),
            },
        )

    def __repr__(self) -> str:
        model = self.provenance.get("model", {}).get("name", "?")
        return (
            f"Scores({self.method}, {model}, {self.pairs.task}: {len(self.components)} components x "
            f"{self.values.shape[1]} examples, {self.direction}, {self.metric} in {self.unit})"
        )


BESIDE = ("stderr_probes", "gap")
"""What some methods give beside each value."""
SAVED_FIELDS = (
    "method", "direction", "metric", "unit", "exact", "estimates_effect", "signed", "cost", "configuration",
    "provenance", "request",
)  # fmt: skip


def _text(position: Position) -> str | None:
    return None if position is None else str(position)


def _position(text: Any) -> Position:
    if pd.isna(text):
        return None
    return int(text) if text.lstrip("-").isdigit() else str(text)


def configuration_hash(configuration: dict[str, Any]) -> str:
    """Eight hexadecimal digits that stand for a configuration."""
    text = json.dumps(configuration, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
