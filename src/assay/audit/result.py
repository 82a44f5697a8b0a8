"""What an audit found of C components: gradient magnitude, its rivals and causal losses, on one or two prompt sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from assay.audit.ranks import CLASSES, UNSETTLED, RankAudit, audit_ranks, ranks_of
from assay.data.baseline import Baseline
from assay.data.pairs import PromptPairs
from assay.shown import Shown
from assay.sites import Component

if TYPE_CHECKING:
    from assay.audit.pruning import Pruning

MAGNITUDE = "G"
CAUSE = "C"
WITHIN, BEYOND = "in distribution", "out of distribution"


@dataclass(frozen=True, eq=False)
class AuditedSet:
    """One set of prompts. Losses and estimates: positive where ablating the component hurts."""

    name: str
    pairs: PromptPairs
    baseline: Baseline
    causal: np.ndarray
    """(C, n) losses."""
    magnitude: np.ndarray
    """(C, b) gradient magnitude of each batch."""
    rivals: dict[str, np.ndarray]
    """(C, m) of the first m examples, by name."""
    seed: int = 0

    @property
    def measures(self) -> dict[str, np.ndarray]:
        """All but the causal one, (C, b or m)."""
        return {MAGNITUDE: self.magnitude, **self.rivals}

    @cached_property
    def audits(self) -> dict[str, RankAudit]:
        """Each measure against cause."""
        return {name: audit_ranks(values, self.causal, seed=self.seed) for name, values in self.measures.items()}

    @property
    def classes(self) -> list[str]:
        """By gradient magnitude, as in the paper."""
        return self.audits[MAGNITUDE].classes


@dataclass(frozen=True, eq=False)
class Audit(Shown):
    """Gradient against cause."""

    components: tuple[Component, ...]
    sets: tuple[AuditedSet, ...]
    """In distribution, and out of it where such prompts were given."""
    ablation: str
    mlp_weights: str
    metric: str
    unit: str
    gradient_metric: str
    """Of the rivals: the metric itself, or ``log-prob`` where that has no gradient."""
    pruning: Pruning | None = None
    cost: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [component.name for component in self.components]

    @property
    def last(self) -> AuditedSet:
        """The set that classes are told of: out of distribution where there is one, as in the paper."""
        return self.sets[-1]

    def members(self, name: str) -> list[str]:
        """Names of the components of a class (``hero``, ``bloat``, ``aligned``, ``unsettled``) on the last set."""
        found = self.last.classes
        return [component for component, of in zip(self.names, found, strict=True) if of == name]

    def to_pandas(self, of: AuditedSet | None = None) -> pd.DataFrame:
        """One row per component, largest loss first: loss, measures, ranks, Delta, class."""
        of = of or self.last
        audit, n = of.audits[MAGNITUDE], of.causal.shape[1]
        frame = pd.DataFrame(
            {
                "component": self.names,
                "layer": [component.layer for component in self.components],
                CAUSE: of.causal.mean(1),
                "stderr": of.causal.std(1, ddof=1) / n**0.5 if n > 1 else np.nan,
                **{name: values.mean(1) for name, values in of.measures.items()},
                "rank_C": ranks_of(of.causal.mean(1)[None])[0],
                "rank_G": ranks_of(of.magnitude.mean(1)[None])[0],
                "delta": audit.delta,
                "delta_lower": audit.delta_lower,
                "delta_upper": audit.delta_upper,
                "class": audit.classes,
                **{f"p_{name}": audit.probabilities[:, i] for i, name in enumerate(CLASSES)},
            }
        )
        return frame.sort_values(CAUSE, ascending=False, kind="stable", ignore_index=True)

    def correlations(self) -> pd.DataFrame:
        """Spearman correlation with the causal losses, one row per set and measure."""
        rows = []
        for of in self.sets:
            for name, audit in of.audits.items():
                counts = {each: audit.classes.count(each) for each in (*CLASSES, UNSETTLED)}
                rows.append(
                    {"set": of.name, "measure": name, "rho": audit.rho, "lower": audit.rho_lower,
                     "upper": audit.rho_upper, **counts}
                )  # fmt: skip
        return pd.DataFrame(rows)

    def layer_profile(self, of: AuditedSet | None = None) -> pd.DataFrame:
        """One row per layer: mean loss, mean magnitude, mean Delta, how many of each class."""
        frame = self.to_pandas(of)
        rows = []
        for layer, members in frame.groupby("layer"):
            counts = {each: int((members["class"] == each).sum()) for each in (*CLASSES, UNSETTLED)}
            means = {name: float(members[name].mean()) for name in (CAUSE, MAGNITUDE, "delta")}
            rows.append({"layer": layer, **means, **counts})
        return pd.DataFrame(rows)

    def save(self, folder: str | Path) -> None:
        """Write a run folder (`assay.audit.folder`).

        Raises:
            StoreError: the folder exists or cannot be written.
        """
        from assay.audit.folder import save_audit

        save_audit(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Audit:
        """Read a folder that `save` or ``assay audit`` wrote.

        Raises:
            StoreError: not such a folder, or a damaged one.
        """
        from assay.audit.folder import load_audit

        return load_audit(folder)

    def summary(self) -> dict[str, Any]:
        """What JSON and page tell first."""
        return {
            "components": len(self.components),
            "heroes": self.members("hero"),
            "bloats": self.members("bloat"),
            "unsettled": len(self.members(UNSETTLED)),
            "sets": {
                of.name: {
                    "examples": of.causal.shape[1],
                    "batches": of.magnitude.shape[1],
                    "clean": float(of.baseline.clean.mean()),
                    "rho": {
                        name: {"value": _or_none(audit.rho), "lower": _or_none(audit.rho_lower),
                               "upper": _or_none(audit.rho_upper)}
                        for name, audit in of.audits.items()
                    },
                }
                for of in self.sets
            },
            "pruning": None if self.pruning is None else self.pruning.summary(),
        }  # fmt: skip


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
