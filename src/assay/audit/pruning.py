"""Pruning: ablate components together, least important first, in the order of each measure of importance.

A measure that knows what matters keeps the metric high for long. And the paper's table: what heroes and bloats lose one
by one, and all together (Ye, arXiv 2602.01442).

Axes: C components, S sizes, n examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
import pandas as pd

from assay.audit.result import CAUSE, Audit
from assay.engine.sources import MeanOver
from assay.errors import OptionError
from assay.interactions.joint_ablation import GroupEffect, ablated_runs, group_ablation, spread
from assay.methods.method import AnyPairs, CommonOptions
from assay.methods.registry import METHODS
from assay.model import Model
from assay.sites import Selection

PRUNED_EXAMPLES = 500
MOST_SIZES = 20
RANDOM = "random"
TABLED = ("hero", "bloat")


@dataclass(frozen=True, eq=False)
class PrunedSet:
    """One set of prompts."""

    name: str
    clean: np.ndarray
    """(n,) metric with nothing ablated."""
    values: dict[str, np.ndarray]
    """By measure, (S, n) metric with the least important ``sizes`` components ablated."""
    groups: dict[str, GroupEffect]
    """By class, of those with two members or more."""


@dataclass(frozen=True, eq=False)
class Pruning:
    """The metric as components go."""

    sizes: tuple[int, ...]
    orders: dict[str, tuple[str, ...]]
    """By measure, the names of the components, least important first."""
    sets: tuple[PrunedSet, ...]
    cost: dict[str, Any] = field(default_factory=dict)

    def to_pandas(self) -> pd.DataFrame:
        """One row per set, measure and size: how many are ablated, the metric's mean and its standard error."""
        rows = [
            {"set": of.name, "measure": measure, "ablated": size, **spread(values)}
            for of in self.sets
            for measure, table in of.values.items()
            for size, values in zip(self.sizes, table, strict=True)
        ]
        return pd.DataFrame(rows)

    def kept(self) -> pd.DataFrame:
        """One row per set and measure: the metric, averaged over all sizes of pruning."""
        rows = []
        for of in self.sets:
            for measure, table in of.values.items():
                rows.append({"set": of.name, "measure": measure, **spread(table.mean(0))})
        return pd.DataFrame(rows)

    def table(self) -> pd.DataFrame:
        """The paper's table: one row per set and class."""
        rows = []
        for of in self.sets:
            for name, group in of.groups.items():
                rows.append(
                    {
                        "set": of.name,
                        "class": name,
                        "components": len(group.names),
                        "mean_single": spread(group.single.mean(0))["mean"],
                        "joint": spread(group.joint)["mean"],
                        "joint_over_mean_single": str(group.over_mean_single),
                        "joint_over_sum_of_singles": str(group.over_sum_of_singles),
                    }
                )
        return pd.DataFrame(rows)

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "sizes": list(self.sizes),
            "orders": {name: list(order) for name, order in self.orders.items()},
            "kept": self.kept().to_dict("records"),
            "groups": {of.name: {name: group.summary() for name, group in of.groups.items()} for of in self.sets},
        }


def prune(
    model: Model,
    audit: Audit,
    *,
    examples: int = PRUNED_EXAMPLES,
    mean: MeanOver | None = None,
    reference: AnyPairs | None = None,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
    **options: Unpack[CommonOptions],
) -> Pruning:
    """Ablate the components of an audit together, in the order of each of its measures on its last set.

    Besides the audit's measures there are the order of the causal losses themselves, and a random one. An order that
    is made on the very examples that it is tried on flatters causal losses a little; gradients never see the metric.

    Args:
        audit: tells orders, classes, ablation and prompts.
        examples: of each set, the first so many.
        mean, reference, seed, force, progress: as in `assay.measure`.
        options: ``metric, memory, align, chat``, as in `assay.measure`.

    Raises:
        OptionError: an audit of fewer than two components.
        AssayError: as `assay.measure`.
    """
    count = len(audit.components)
    if count < 2:
        raise OptionError("There is nothing to prune in an audit of one component.")
    measures = {**{name: values.mean(1) for name, values in audit.last.measures.items()}}
    measures[CAUSE] = audit.last.causal.mean(1)
    measures[RANDOM] = np.random.default_rng(seed).permutation(count).astype(float)
    orders = {name: np.argsort(values, kind="stable").tolist() for name, values in measures.items()}
    sizes = tuple(sorted({round(share * count) for share in np.linspace(0, 1, min(count, MOST_SIZES) + 1)}))
    classes = {name: [i for i, of in enumerate(audit.last.classes) if of == name] for name in TABLED}
    classes = {name: members for name, members in classes.items() if len(members) > 1}

    wanted: dict[frozenset[int], None] = {frozenset([number]): None for number in range(count)}
    wanted.update((frozenset(order[:size]), None) for order in orders.values() for size in sizes if size)
    wanted.update((frozenset(members), None) for members in classes.values())
    groups = list(wanted)
    place = {group: number for number, group in enumerate(groups)}

    sets, costs = [], {}
    method = group_ablation(audit.ablation, "pruning")
    for of in audit.sets:
        others = (reference or of.pairs) if METHODS[f"{audit.ablation}-ablation"].uses_reference else None
        with ablated_runs(
            method, model, of.pairs[:examples], sites=Selection(audit.components), mean=mean, reference=others,
            seed=seed, force=force, progress=progress, **options,
        ) as runs:  # fmt: skip
            losses = runs.losses([sorted(group) for group in groups])
            clean = runs.baseline.clean
            costs[of.name] = runs.cost.summary(runs.run.layer_tokens)
        nothing = np.zeros_like(clean)
        values = {
            name: np.stack([clean - (losses[place[frozenset(order[:size])]] if size else nothing) for size in sizes])
            for name, order in orders.items()
        }
        effects = {
            name: GroupEffect(
                tuple(audit.names[i] for i in members),
                losses[[place[frozenset([i])] for i in members]],
                losses[place[frozenset(members)]],
                seed=seed,
            )
            for name, members in classes.items()
        }
        sets.append(PrunedSet(of.name, clean, values, effects))
    named = {name: tuple(audit.names[i] for i in order) for name, order in orders.items()}
    return Pruning(sizes, named, tuple(sets), costs)
