"""Tables of the study, each from what is stored: correlations, roles, groups, pruning, and all of them over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from scipy.stats import t as student

from assay.audit import Audit, audit_ranks
from assay.audit.ranks import CLASSES, SHARE, UNSETTLED
from assay.audit.result import CAUSE, MAGNITUDE
from assay.errors import StoreError
from assay.interactions.joint_ablation import GroupEffect
from assay.studies.dynamics import DESCRIPTION
from assay.studies.folder import read_json
from assay.studies.heroes.measuring import (
    AUDIT,
    GROUPS,
    LOG_PROB,
    STUDY,
    WHAT,
    Chosen,
    along_folder,
    is_finished,
    read_chosen,
)
from assay.studies.heroes.settings import Setting, Sizes

OF_SETTING = ("task", "model", "seed")
DRAWS = 10_000


@dataclass(frozen=True)
class Measured:
    """One finished setting."""

    setting: Setting
    chosen: Chosen
    audit: Audit
    members: dict[str, dict[str, list[int]]]
    """By set and name of a group, the numbers of its components."""
    arrays: dict[str, NDArray[np.float64]]
    """What `assay.studies.heroes.measuring` keeps of groups."""

    @property
    def label(self) -> dict[str, Any]:
        return {name: getattr(self.setting, name) for name in OF_SETTING}

    def causes(self, number: int) -> dict[str, NDArray[np.float64]]:
        """(C, n) causal losses of a set by metric: the audit's, and the log-probability where that has no gradient."""
        found = {self.audit.metric: self.audit.sets[number].causal}
        name = f"{number}.{LOG_PROB}"
        return {**found, LOG_PROB: self.arrays[name]} if name in self.arrays else found


def read_sizes(folder: Path) -> Sizes:
    """The sizes of a study.

    Raises:
        StoreError: the folder holds none, or a damaged one.
    """
    content = read_json(folder / STUDY, WHAT)
    tuples = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
    try:
        return Sizes(**{**content, **tuples})
    except TypeError as error:
        raise StoreError(f"{folder / STUDY} is damaged: {error}") from error


def read_setting(folder: Path, setting: Setting) -> Measured | None:
    """None if it is not finished.

    Raises:
        StoreError: damaged.
    """
    place = folder / setting.folder
    if not is_finished(place):
        return None
    chosen, path = read_chosen(place), place / f"{GROUPS}.safetensors"
    if chosen is None:
        raise StoreError(f"{place} is damaged: it has no record of what was chosen.")
    members: Any = read_json(place / f"{GROUPS}.json", WHAT)
    try:
        return Measured(setting, chosen, Audit.load(place / AUDIT), members, load_file(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError(f"{path} is damaged: {error}") from error


def read_along(folder: Path, task: str, seed: int) -> pd.DataFrame | None:
    """The audit along a training, as `assay.studies.dynamics` keeps it; None if it is not finished."""
    place = along_folder(folder, task, seed)
    table = place / "dynamics.csv"
    if not (place / DESCRIPTION).is_file() or not table.is_file():
        return None
    return pd.read_csv(table)


def correlations(measured: Sequence[Measured]) -> pd.DataFrame:
    """One row for each setting, set, measure and cause: Spearman's rho with its interval, and how many of each class.

    ``cause``: the metric that causal losses are of.
    """
    rows = []
    for each in measured:
        for number, of in enumerate(each.audit.sets):
            for cause, losses in each.causes(number).items():
                for name, values in of.measures.items():
                    found = of.audits[name] if losses is of.causal else audit_ranks(values, losses, seed=of.seed)
                    counts = {what: found.classes.count(what) for what in (*CLASSES, UNSETTLED)}
                    by_delta = {
                        "hero_by_delta": int((found.delta <= -SHARE * len(losses)).sum()),
                        "bloat_by_delta": int((found.delta >= SHARE * len(losses)).sum()),
                    }
                    ends = {"rho": found.rho, "lower": found.rho_lower, "upper": found.rho_upper}
                    of_set = {"set": of.name, "measure": name, "cause": cause}
                    rows.append({**each.label, **of_set, **ends, **counts, **by_delta})
    return pd.DataFrame(rows)


def roles(measured: Sequence[Measured]) -> pd.DataFrame:
    """One row for each setting, set and component: loss, G, Delta, class; ``by_delta`` is the class by Delta alone."""
    frames = []
    for each in measured:
        limit = SHARE * len(each.audit.components)
        for of in each.audit.sets:
            frame = each.audit.to_pandas(of)[["component", "layer", CAUSE, MAGNITUDE, "delta", "class"]]
            delta = frame["delta"]
            frame["by_delta"] = np.select([delta <= -limit, delta >= limit], ["hero", "bloat"], "aligned")
            frames.append(frame.assign(**each.label, set=of.name))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def group_effects(measured: Sequence[Measured]) -> pd.DataFrame:
    """One row for each setting, set and group: mean single and joint loss, and both ratios with their intervals."""
    rows = []
    for each in measured:
        for number, of in enumerate(each.audit.sets):
            for name, members in each.members[of.name].items():
                names = tuple(each.audit.names[i] for i in members)
                group = GroupEffect(names, of.causal[members], each.arrays[f"{number}.{name}"], seed=of.seed)
                ratios: dict[str, float | None] = {}
                for what, found in (("mean", group.over_mean_single), ("sum", group.over_sum_of_singles)):
                    ends = {f"over_{what}": found.value, f"over_{what}_lower": found.lower}
                    ratios |= {**ends, f"over_{what}_upper": found.upper}
                rows.append(
                    {
                        **each.label, "set": of.name, "group": name, "components": len(members),
                        "clean": float(of.baseline.clean.mean()), "single": float(group.single.mean()),
                        "joint": float(group.joint.mean()), **ratios,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def pruned(measured: Sequence[Measured]) -> pd.DataFrame:
    """One row for each setting, set, measure and size: the metric with so many components ablated."""
    frames = [each.audit.pruning.to_pandas().assign(**each.label) for each in measured if each.audit.pruning]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


# Over seeds


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval; NaN where there are too few."""

    value: float
    lower: float
    upper: float
    seeds: int

    @property
    def is_above(self) -> bool:
        return self.lower > 0

    @property
    def is_below(self) -> bool:
        return self.upper < 0


def over_seeds(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Mean and t interval over seeds; undefined values are left out."""
    there = np.asarray(values, float)
    there = there[np.isfinite(there)]
    n = len(there)
    if n < 2:
        return Estimate(float(there.mean()) if n else np.nan, np.nan, np.nan, n)
    margin = float(student.ppf(0.975, n - 1) * there.std(ddof=1) / n**0.5)
    return Estimate(float(there.mean()), float(there.mean()) - margin, float(there.mean()) + margin, n)


def ratio_over_seeds(above: NDArray[np.float64], below: NDArray[np.float64], seed: int = 0) -> Estimate:
    """Ratio of two means over seeds, with the interval of redrawn seeds; NaN where ``below`` is within noise of 0."""
    n = len(above)
    if n < 2:
        return Estimate(np.nan, np.nan, np.nan, n)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS)
    low = weights @ below
    if below.mean() == 0 or (np.sign(low) != np.sign(below.mean())).mean() > 0.001:
        return Estimate(np.nan, np.nan, np.nan, n)
    same = np.sign(low) == np.sign(below.mean())
    lower, upper = np.quantile((weights @ above)[same] / low[same], [0.025, 0.975])
    return Estimate(float(above.mean() / below.mean()), float(lower), float(upper), n)


def trained(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of trained seeds."""
    return table[table["model"] == ""]


def rho(table: pd.DataFrame, task: str, of_set: str, measure: str, cause: str) -> pd.Series:
    """Of each seed, by seed."""
    rows = trained(table).query("task == @task and set == @of_set and measure == @measure and cause == @cause")
    found: pd.Series = rows.set_index("seed")["rho"]
    return found


@dataclass(frozen=True)
class Shortfall:
    """How far a weight-gradient norm falls short of cause, and what makes up for it. Of the same seeds."""

    task: str
    set: str
    norm: Estimate
    """rho of G."""
    delta: Estimate
    """rho of |grad . delta|."""
    gained: Estimate
    """By the second over the first, seed by seed."""
    gained_by_metric: Estimate
    """By |grad . delta| once cause is the log-probability, whose gradient it takes."""
    share: Estimate
    """``gained`` of what G lacks to 1."""

    @property
    def both(self) -> float:
        """What |grad . delta| against the log-probability reaches."""
        return self.delta.value + self.gained_by_metric.value


def shortfall(table: pd.DataFrame, task: str, of_set: str, metric: str) -> Shortfall:
    """Of `correlations`."""
    g = rho(table, task, of_set, MAGNITUDE, metric)
    d = rho(table, task, of_set, "|grad.delta|", metric).reindex(g.index)
    by_log_prob = rho(table, task, of_set, "|grad.delta|", LOG_PROB).reindex(g.index)
    there = (g.notna() & d.notna()).to_numpy()
    gained, lacking = (d - g).to_numpy()[there], (1 - g).to_numpy()[there]
    return Shortfall(
        task, of_set, over_seeds(g.to_numpy()), over_seeds(d.to_numpy()), over_seeds(gained),
        over_seeds((by_log_prob - d).to_numpy()), ratio_over_seeds(gained, lacking),
    )  # fmt: skip


def stability(table: pd.DataFrame, task: str, of_set: str) -> dict[str, Any]:
    """Do components of one place have one role in all seeds? By Delta alone.

    ``agreement``: how often two seeds give a component the same class; ``kappa``: Fleiss' kappa, 0 for chance. Heads
    of a layer have no order that seeds share, so of them this says how far the layer tells the class.
    """
    rows = trained(table).query("task == @task and set == @of_set")
    if rows["seed"].nunique() < 2:
        return {"seeds": rows["seed"].nunique(), "agreement": None, "kappa": None}
    counts = pd.crosstab(rows["component"], rows["by_delta"]).to_numpy(float)
    n = counts.sum(1)[0]
    agreement = float(((counts**2).sum(1) - n).mean() / (n * (n - 1)))
    chance = float(((counts.sum(0) / counts.sum()) ** 2).sum())
    kappa = (agreement - chance) / (1 - chance) if chance < 1 else None
    return {"seeds": int(n), "agreement": agreement, "kappa": kappa}
