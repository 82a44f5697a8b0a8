"""Interactions of components: what two of them lose together beyond what each loses alone.

Exactly, every pair by a run of its own; and by second derivatives, the whole matrix from one product with the Hessian
for each component. The joint response f(a) sets component c to current + a_c (source - current), so that a = 1 is the
ablation itself (`assay.engine.joint`); to second order a group loses

    sum_i f_i + 1/2 sum_ij f_ij,    f_i = df/da_i and f_ij = d2f/da_i da_j at a = 0.

f_ij is delta_i' H delta_j and, where i feeds j, what i moves through j, which ablating both does not lose twice.

Axes: C components, P pairs, n examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from assay.data.baseline import Baseline
from assay.data.metrics import Metric, as_metric
from assay.data.pairs import PromptPairs
from assay.engine.sources import MeanOver
from assay.errors import OptionError
from assay.interactions.joint_ablation import (
    AblatedRuns,
    GroupEffect,
    ablated_runs,
    can_differentiate,
    group_ablation,
    spread,
)
from assay.interactions.redundancy import hidden_share, redundant_groups
from assay.methods.method import DEFAULT_SITES, AnyPairs, CommonOptions
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.shown import Shown
from assay.sites import AnySites, Component, Selection, component_named, select

SOURCE = "joint ablation as in Ye, arXiv 2602.01442; second order as in Zhang & Wang, arXiv 2606.09899"
MOST_PAIRS = 50_000


@dataclass(frozen=True, eq=False)
class Interactions(Shown):
    """Losses of C components alone and two by two; positive: the ablation hurts."""

    components: tuple[Component, ...]
    ablation: str
    metric: str
    unit: str
    single: np.ndarray
    """(C, n)"""
    couples: np.ndarray
    """(P, 2) numbers of the components that were ablated together, the lower one first."""
    joint: np.ndarray
    """(P, n)"""
    pairs: PromptPairs
    baseline: Baseline
    slope: np.ndarray | None = None
    """(C, n) first derivatives of the loss; None where the metric has none."""
    second: np.ndarray | None = None
    """(C, C) second derivatives, means over examples."""
    second_stderr: np.ndarray | None = None
    """(C, C) their standard errors; NaN for one example."""
    group: GroupEffect | None = None
    cost: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [component.name for component in self.components]

    @property
    def interaction(self) -> np.ndarray:
        """(P, n) joint loss less both single ones: above 0 where two stand in for each other."""
        first, second = self.couples.T
        found: np.ndarray = self.joint - self.single[first] - self.single[second]
        return found

    @property
    def is_complete(self) -> bool:
        """Whether every pair was run."""
        count = len(self.components)
        return len(self.couples) == count * (count - 1) // 2

    def matrix(self) -> np.ndarray:
        """(C, C) mean interaction: by second order where it was not measured (NaN without), 0 on the diagonal."""
        count = len(self.components)
        found = np.full((count, count), np.nan) if self.second is None else self.second.copy()
        first, second = self.couples.T
        found[first, second] = found[second, first] = self.interaction.mean(1)
        np.fill_diagonal(found, 0)
        return found

    def to_pandas(self) -> pd.DataFrame:
        """One row per pair that was run, largest absolute interaction first.

        ``hidden``: the share of the joint loss that no single ablation shows, 0 where the interaction is within noise.
        """
        first, second = self.couples.T
        interaction, n = self.interaction, self.single.shape[1]
        error = interaction.std(1, ddof=1) / n**0.5 if n > 1 else np.full(len(interaction), np.nan)
        names = np.array(self.names)
        frame = pd.DataFrame(
            {
                "first": names[first],
                "second": names[second],
                "single_first": self.single.mean(1)[first],
                "single_second": self.single.mean(1)[second],
                "joint": self.joint.mean(1),
                "interaction": interaction.mean(1),
                "stderr": error,
                "hidden": self._shares(),
                "second_order": np.nan if self.second is None else self.second[first, second],
            }
        )
        return frame.sort_values("interaction", key=abs, ascending=False, kind="stable", ignore_index=True)

    def per_component(self) -> pd.DataFrame:
        """One row per component: its loss, and what first and second order say of it."""
        n = self.single.shape[1]
        frame = pd.DataFrame({"component": self.names, "single": self.single.mean(1)})
        frame["stderr"] = self.single.std(1, ddof=1) / n**0.5 if n > 1 else np.nan
        if self.slope is not None and self.second is not None:
            frame["first_order"] = self.slope.mean(1)
            frame["second_order"] = frame["first_order"] + self.second.diagonal() / 2
        return frame

    def _shares(self) -> np.ndarray:
        interaction, n = self.interaction, self.single.shape[1]
        error = interaction.std(1, ddof=1) / n**0.5 if n > 1 else np.full(len(interaction), np.nan)
        return hidden_share(self.joint.mean(1), interaction.mean(1), error, n)

    def redundant(self) -> list[tuple[str, ...]]:
        """Groups that stand in for each other, by the pairs that were run; see `redundant_groups`."""
        groups = redundant_groups(len(self.components), self.couples, self._shares())
        return [tuple(self.names[number] for number in group) for group in groups]

    def agreement(self) -> dict[str, Any] | None:
        """Second order against the pairs that were run: correlations, and of the singles; None without either."""
        if self.second is None or len(self.couples) < 3:
            return None
        exact, predicted = self.interaction.mean(1), self.second[self.couples[:, 0], self.couples[:, 1]]
        sizeable = np.abs(exact) >= np.quantile(np.abs(exact), 0.5)
        return {
            "pairs": len(exact),
            "pearson": _correlation(exact, predicted),
            "spearman": _correlation(rankdata(exact), rankdata(predicted)),
            "same_sign_of_larger_half": float((np.sign(exact) == np.sign(predicted))[sizeable].mean()),
        }

    def save(self, folder: str | Path) -> None:
        """Write a run folder (`assay.interactions.pairs_folder`).

        Raises:
            StoreError: the folder exists or cannot be written.
        """
        from assay.interactions.pairs_folder import save_interactions

        save_interactions(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Interactions:
        """Read a folder that `save` or ``assay interactions`` wrote.

        Raises:
            StoreError: not such a folder, or a damaged one.
        """
        from assay.interactions.pairs_folder import load_interactions

        return load_interactions(folder)

    def summary(self) -> dict[str, Any]:
        """What JSON and page tell first."""
        return {
            "components": len(self.components),
            "pairs_run": len(self.couples),
            "every_pair_run": self.is_complete,
            "redundant_groups": [list(group) for group in self.redundant()],
            "agreement": self.agreement(),
            "group": None if self.group is None else self.group.summary(),
            "clean": spread(self.baseline.clean),
        }


def measure_interactions(
    model: Model,
    pairs: AnyPairs,
    *,
    group: str | Sequence[str] | None = None,
    sites: AnySites = DEFAULT_SITES,
    ablation: str = "mean",
    exact: int | None = None,
    second_order: bool | None = None,
    mean: MeanOver | None = None,
    reference: AnyPairs | None = None,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
    jobs: Jobs = None,
    **options: Unpack[CommonOptions],
) -> Interactions:
    """Ablate components alone, two by two, and a group of them together, in the clean run.

    Args:
        group: components to ablate all together, as names (``["L1H0", "L2 MLP"]``) or ``layer:1``. Then pairs are those
            of the group; else of all sites.
        sites: heads and MLPs, such as ``heads[2:4],mlps``.
        ablation: ``mean``, ``zero`` or ``resample``: what components are set to.
        exact: run only so many pairs, those of largest second derivative; all if None.
        second_order: take second derivatives (one product with a Hessian for each component); where the metric allows
            it if None.
        mean, reference, seed, force, progress, jobs: as in `assay.measure`; second derivatives are taken here.
        options: ``metric, memory, align, chat``, as in `assay.measure`.

    Raises:
        OptionError: an unknown ablation or name, a group of one, or more pairs than can be run.
        AssayError: as `assay.measure`.
    """
    group_ablation(ablation)
    if exact is not None and exact < 0:
        raise OptionError(f"The number of pairs to run must be at least 0, not {exact}.")
    chosen = group_of(model, group, sites) if group is not None else sites
    takes = second_order if second_order is not None else _can_differentiate(model, pairs, options.get("metric"))
    if exact is not None and not takes:
        raise OptionError("Which pairs are the largest is told by second derivatives, which this metric does not have.")
    method = group_ablation(ablation, "interactions", second_order=takes)
    with ablated_runs(
        method, model, pairs, sites=chosen, mean=mean, reference=reference, seed=seed, force=force,
        progress=progress, jobs=jobs, **options,
    ) as runs:  # fmt: skip
        return _measured(runs, ablation, exact, takes, is_group=group is not None, seed=seed)


def _measured(
    runs: AblatedRuns, ablation: str, exact: int | None, takes: bool, *, is_group: bool, seed: int
) -> Interactions:
    count, n = len(runs.components), len(runs.run.pairs)
    slope = second = error = None
    if takes:
        slope, whole = runs.derivatives()
        second = whole.mean(2)
        error = whole.std(2, ddof=1) / n**0.5 if n > 1 else np.full_like(second, np.nan)
    couples = np.array(list(combinations(range(count), 2)), np.int64).reshape(-1, 2)
    if exact is not None:
        assert second is not None
        order = np.argsort(-np.abs(second[couples[:, 0], couples[:, 1]]), kind="stable")[:exact]
        couples = couples[np.sort(order)]
    if len(couples) > MOST_PAIRS:
        raise OptionError(
            f"{count} components have {len(couples)} pairs; at most {MOST_PAIRS} are run. Name fewer (--sites, "
            "--group), or run only the largest (--exact 500)."
        )
    groups: list[tuple[int, ...]] = [(number,) for number in range(count)]
    groups += [(first, last) for first, last in couples.tolist()]
    whole_group = tuple(range(count))
    if is_group and whole_group not in groups:
        groups.append(whole_group)
    losses = runs.losses(groups)
    effect = None
    if is_group:
        effect = GroupEffect(
            tuple(component.name for component in runs.components),
            losses[:count],
            losses[groups.index(whole_group)],
            None if slope is None else float(slope.mean(1).sum()),
            None if slope is None or second is None else float(slope.mean(1).sum() + second.sum() / 2),
            seed,
        )
    setting = runs.run.setting
    return Interactions(
        components=runs.components,
        ablation=ablation,
        metric=setting.metric.name,
        unit=setting.metric.unit,
        single=losses[:count],
        couples=couples,
        joint=losses[count : count + len(couples)],
        pairs=runs.run.pairs,
        baseline=runs.baseline,
        slope=slope,
        second=second,
        second_stderr=error,
        group=effect,
        cost=runs.cost.summary(runs.run.layer_tokens),
        configuration={**runs.run.configuration, "exact": exact, "second_order": takes, "is_group": is_group},
        provenance=runs.run.provenance(SOURCE),
    )


def group_of(model: Model, group: str | Sequence[str], sites: AnySites = DEFAULT_SITES) -> Selection:
    """The components that a group names.

    Args:
        group: ``layer:1`` (of ``sites``), names separated by commas, or a list of names.

    Raises:
        OptionError: nothing of that name, one twice, or fewer than two.
    """
    if isinstance(group, str) and group.startswith("layer:"):
        number = group.removeprefix("layer:")
        if not (number.isascii() and number.isdigit()) or int(number) >= model.n_layers:
            raise OptionError(f"--group {group}: {model.name} has layers 0 to {model.n_layers - 1}.")
        everything = select(model, sites if isinstance(sites, (str, Selection)) else ",".join(sites))
        found = [component for component in everything if component.layer == int(number)]
    else:
        names = [name.strip() for name in group.split(",")] if isinstance(group, str) else list(group)
        found = [component_named(model, name) for name in names]
    if len(found) < 2 or len(set(found)) != len(found):
        raise OptionError(f"A group is two components or more, each named once; {group!r} names {len(found)}.")
    return Selection(found)


def _can_differentiate(model: Model, pairs: AnyPairs, metric: str | Metric | None) -> bool:
    """Whether second derivatives can be had; prompts of one's own get a metric that has some."""
    if metric is not None:
        return can_differentiate(model, as_metric(metric))
    named = pairs.metric if isinstance(pairs, PromptPairs) else None
    return can_differentiate(model, as_metric(named or "log-prob"))


def _correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    if one.std() == 0 or other.std() == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])
