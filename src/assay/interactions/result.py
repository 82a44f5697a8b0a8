"""What comes back of self-repair: one line for each row of attention in which two keys matter together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.data.baseline import Baseline
from assay.data.pairs import PromptPairs
from assay.interactions.compensation import Compensation
from assay.interactions.spread import ratio, spearman, spearman_interval
from assay.shown import Shown

EFFECTS = ("1", "2", "joint")
"""Ablated: the key of largest contribution, the second, both."""
READOUTS = ("frozen", "true")
THRESHOLDS = ("absolute", "relative")
SMALL = 0.01
"""Joint effects below this share of what the two keys contribute have no interaction: it would divide by nearly 0."""
MOSTLY = 0.5
"""Rows of a larger interaction: single ablations show less than half of the joint effect."""
INTEGERS = ("example", "sequence", "layer", "head", "query", "key_1", "key_2", "keys_absolute", "keys_relative")
COLUMNS = (
    *INTEGERS,
    *(f"{name}_{key}" for name in ("weight", "score", "contribution") for key in (1, 2)),
    "contribution_all",
    *(f"frozen_{name}" for name in EFFECTS),
    "gradient",
    "tempered",
    *(f"true_{name}" for name in EFFECTS),
    "drawn",
)


@dataclass(frozen=True)
class Sequences:
    """The token sequences that were run: one for an example, or one for each of its two answers."""

    examples: tuple[int, ...]
    tokens: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class SelfRepair(Shown):
    """Rows of attention in which two or more keys matter; effects are what the metric loses, in its unit.

    ``rows`` has a line for each, with `COLUMNS`: where it is (``example, sequence, layer, head, query``), its two
    largest keys with weight, score and contribution, ``contribution_all`` (the head's at this query), how many keys
    exceed each threshold, E1, E2 and E12 by the ``frozen`` gradient and ``true`` (NaN where not rerun), what the
    ``gradient`` of the two scores and the ``tempered`` one say of E12, and whether the row was ``drawn`` for a rerun.
    """

    rows: pd.DataFrame
    sequences: Sequences
    layers: int
    heads: int
    threshold: float
    relative: float
    temperature: float
    pairs: PromptPairs
    metric: str
    unit: str
    baseline: Baseline
    cost: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    compensation: Compensation | None = None
    """Of heads as wholes, where that was asked for."""

    def over(self, threshold: str) -> pd.DataFrame:
        """The rows with two or more keys above the ``absolute`` or the ``relative`` threshold."""
        return self.rows[self.rows[f"keys_{threshold}"] >= 2]

    def per_input(self, threshold: str) -> np.ndarray:
        """(n,) how many such rows each example has."""
        counts: np.ndarray = np.bincount(self.over(threshold)["example"], minlength=len(self.pairs))
        return counts

    def per_head(self) -> pd.DataFrame:
        """One line per layer and head: rows per input over each threshold; E12, E1 + E2 (frozen) summed over the
        relative ones and averaged over inputs."""
        n = len(self.pairs)
        frame = pd.DataFrame(
            {
                "layer": np.repeat(np.arange(self.layers), self.heads),
                "head": np.tile(np.arange(self.heads), self.layers),
            }
        )

        def summed(rows: pd.DataFrame, values: pd.Series | float) -> np.ndarray:
            totals: np.ndarray = np.zeros(self.layers * self.heads)
            np.add.at(totals, (rows["layer"] * self.heads + rows["head"]).to_numpy(int), values)
            return totals / n

        for threshold in THRESHOLDS:
            frame[threshold] = summed(self.over(threshold), 1.0)
        rows = self.over("relative")
        frame["joint"] = summed(rows, rows["frozen_joint"])
        frame["singles"] = summed(rows, rows["frozen_1"] + rows["frozen_2"])
        return frame

    def worst(self, k: int = 10) -> pd.DataFrame:
        """The rows whose single ablations hide most: largest E12 - E1 - E2 by the frozen gradient."""
        order = np.argsort(-hidden(self.rows, "frozen").to_numpy(), kind="stable")[:k]
        return self.rows.iloc[order]

    def text(self, row: Any) -> list[tuple[str, str]]:
        """The prompt of one of `rows` up to its query, token by token, with marks: 1 and 2 its keys, q its query."""
        tokens = self.sequences.tokens[int(row.sequence)][: int(row.query) + 1]
        places = {"1": int(row.key_1), "2": int(row.key_2), "q": int(row.query)}
        return [(token, "".join(mark for mark in places if places[mark] == i)) for i, token in enumerate(tokens)]

    def save(self, folder: str | Path) -> None:
        """Write a run folder (`assay.interactions.folder`).

        Raises:
            StoreError: the folder exists or cannot be written.
        """
        from assay.interactions.folder import save_self_repair

        save_self_repair(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> SelfRepair:
        """Read a folder that `save` or ``assay self-repair`` wrote.

        Raises:
            StoreError: not such a folder, or a damaged one.
        """
        from assay.interactions.folder import load_self_repair

        return load_self_repair(folder)

    def summary(self) -> dict[str, Any]:
        """Counts, interactions, and how much of the joint effect gradients see, for both thresholds.

        Intervals are of 95 %, from drawing prompts again (`assay.interactions.spread`).
        """
        return {threshold: self._summary(threshold) for threshold in THRESHOLDS}

    def _summary(self, threshold: str) -> dict[str, Any]:
        rows, counts = self.over(threshold), self.per_input(threshold)
        drawn, n = rows[rows["drawn"]], len(self.pairs)
        return {
            "prompts": n,
            "prompts_with_rows": int((counts > 0).sum()),
            "rows": len(rows),
            "rows_per_input": {
                "mean": float(counts.mean()),
                "standard_deviation": float(counts.std(ddof=1)) if len(counts) > 1 else None,
                "least": int(counts.min()),
                "most": int(counts.max()),
            },
            "heads": int((rows["layer"] * self.heads + rows["head"]).nunique()),
            "rerun": len(drawn),
            "frozen": _readout(rows, "frozen", n),
            "true": _readout(drawn, "true", n),
            "frozen_of_drawn": _readout(drawn, "frozen", n),
            "mostly_hidden": _readout(rows[interaction(rows, "frozen") > MOSTLY], "frozen", n),
            "frozen_and_true_joint_spearman": spearman(_array(drawn["frozen_joint"]), _array(drawn["true_joint"])),
        }


def hidden(rows: pd.DataFrame, readout: str) -> pd.Series:
    """E12 - E1 - E2."""
    return rows[f"{readout}_joint"] - rows[f"{readout}_1"] - rows[f"{readout}_2"]


def interaction(rows: pd.DataFrame, readout: str) -> pd.Series:
    """(E12 - E1 - E2) / E12; NaN where E12 is nearly 0."""
    joint = rows[f"{readout}_joint"]
    enough = joint.abs() >= SMALL * (rows["contribution_1"] + rows["contribution_2"])
    return (hidden(rows, readout) / joint.where(enough)).astype(float)


def _readout(rows: pd.DataFrame, readout: str, n: int) -> dict[str, Any]:
    """Means over rows, counts, and ratios of sums with 95 % intervals over the n prompts; None: nothing to say."""
    ratios, examples = interaction(rows, readout), rows["example"].to_numpy(np.int64)
    joint, lost = _array(rows[f"{readout}_joint"]), _array(hidden(rows, readout))
    of_sums, interval = ratio(lost, joint, examples, n)
    found: dict[str, Any] = {
        "rows": len(rows),
        "joint": float(joint.mean()) if len(rows) else None,
        "singles": float((joint - lost).mean()) if len(rows) else None,
        "joint_larger": int((np.abs(joint) > np.abs(joint - lost)).sum()),
        "joint_negative": int((joint < 0).sum()),
        "interaction_median": None if ratios.isna().all() else float(ratios.median()),
        "interaction_undefined": int(ratios.isna().sum()),
        "interaction_of_sums": of_sums,
        "interaction_interval": interval,
    }
    for name in ("gradient", "tempered"):
        predicted = _array(rows[name])
        of_joint, interval = ratio(predicted, joint, examples, n)
        found[name] = {
            "share_of_joint": of_joint,
            "share_interval": interval,
            "spearman_with_joint": spearman(predicted, joint),
            "spearman_interval": spearman_interval(predicted, joint, examples, n),
        }
    return found


def _array(values: pd.Series) -> np.ndarray:
    array: np.ndarray = values.to_numpy(np.float64)
    return array
