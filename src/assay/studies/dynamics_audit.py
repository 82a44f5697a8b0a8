"""The audit of gradient against cause as a measurement along a training; see `assay.studies.dynamics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.audit import Audit, audit_gradients
from assay.data.tasks import make_pairs
from assay.interactions.joint_ablation import GroupEffect, ablated_runs, group_ablation
from assay.model import Model
from assay.sites import Selection
from assay.studies.dynamics import Measure
from assay.training import Checkpoint

CLASSES = ("hero", "bloat", "aligned", "unsettled")


def audit_at(
    task: str, within: dict[str, Any], beyond: dict[str, Any] | None, *, n: int, seed: int = 0, **choices: Any
) -> Measure:
    """Spearman correlations, classes, accuracy and redundancy of each model, as numbers.

    Args:
        task: of the training.
        within, beyond: options of the task for prompts in and out of distribution, such as ``{"length": 5}``.
        n: prompts of each.
        choices: of `assay.audit.audit_gradients`, such as ``ablation`` and ``rivals``.
    """

    def measure(model: Model, checkpoint: Checkpoint) -> dict[str, float | None]:
        pairs = make_pairs(model, task, n, seed, **within)
        # Another seed: a short sequence of one length must not be the beginning of a long one of the other.
        other = seed + 1 if beyond is not None and "length" in beyond else seed
        ood = None if beyond is None else make_pairs(model, task, n, other, **beyond)
        found = audit_gradients(model, pairs, ood=ood, seed=seed, force=True, **choices)
        numbers: dict[str, float | None] = {}
        for of in found.sets:
            place = of.name.split(" ")[0]  # in, out
            numbers[f"metric_{place}"] = float(of.baseline.clean.mean())
            for name, ranks in of.audits.items():
                numbers[f"rho_{place}_{name}"] = None if np.isnan(ranks.rho) else float(ranks.rho)
            for each in CLASSES:
                numbers[f"{each}_{place}"] = float(of.classes.count(each))
        group = found.members("bloat")
        numbers["redundancy_of_bloats"] = _redundancy(model, found, group, choices.get("ablation", "mean"), seed)
        return numbers

    return measure


def _redundancy(model: Model, found: Audit, group: Sequence[str], ablation: str, seed: int) -> float | None:
    """Joint loss over the sum of single losses; None for fewer than two components, or singles within noise."""
    if len(group) < 2:
        return None
    members = [found.names.index(name) for name in group]
    with ablated_runs(
        group_ablation(ablation), model, found.last.pairs, metric=found.metric, sites=Selection(found.components),
        seed=seed, force=True,
    ) as runs:  # fmt: skip
        *single, joint = runs.losses([*([member] for member in members), members])
    return GroupEffect(tuple(group), np.stack(single), joint, seed=seed).over_sum_of_singles.value
