"""Tables of the study, from arrays alone. Errors are relative to exact effects; neurons count by their weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.comparison import EXACT, TOP, parse_method
from assay.reliability import Estimates, bound_estimate, flagged, floor_of, reliability, violation_rate
from assay.studies.draws import draw
from assay.studies.patching_errors.arrays import Components, Measured
from assay.studies.patching_errors.settings import HEADS, SAMPLED, SCALES
from assay.studies.response_tables import passes

ATP, HVP, STAR, LOCAL, TWO_POINT = "attribution-patching", "hvp", "atp-star", "local-curvature", "two-point"
SIZES = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, np.inf)
"""Bins of R."""
THRESHOLDS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
COUNTS = 0.01
"""Effects below this share of the setting's largest have no relative error worth the name."""
NOISE = 1e-4
"""What rounding may do to a value in float32, in the metric's unit: bounds are not held to less."""
LEVELS = (0.9, 0.95)
SCREENED = 10

PAIRS = (
    ("hvp", "integrated-gradients:rule=midpoint:steps=1"),
    ("hvp", "integrated-gradients:rule=left:steps=2"),
    ("hvp", "two-point"),
    ("hvp", "integrated-gradients:rule=midpoint:steps=2"),
    ("hvp", "integrated-gradients:rule=gauss-legendre:steps=2"),
    ("ms-hvp:segments=2", "integrated-gradients:rule=left:steps=5"),
    ("ms-hvp:segments=2", "integrated-gradients:rule=midpoint:steps=2"),
    ("ms-hvp:segments=2", "integrated-gradients:rule=midpoint:steps=5"),
    ("ms-hvp:segments=5", "integrated-gradients:rule=left:steps=10"),
    ("ms-hvp:segments=5", "integrated-gradients:rule=left:steps=20"),
    ("ms-hvp:segments=5", "integrated-gradients:rule=left:steps=35"),
    ("ms-hvp:segments=5", "integrated-gradients:rule=midpoint:steps=5"),
    ("ms-hvp:segments=5", "integrated-gradients:rule=midpoint:steps=10"),
    ("ms-hvp:segments=5", "integrated-gradients:rule=trapezoid:steps=11"),
    ("ms-hvp:segments=10", "integrated-gradients:rule=midpoint:steps=5"),
    ("ms-hvp:segments=10", "integrated-gradients:rule=trapezoid:steps=11"),
)
"""Second order against slopes alone."""


def errors(settings: Sequence[Measured]) -> pd.DataFrame:
    """One row per setting, set of components and method: errors, agreement in rank, cost per component."""
    rows = []
    for each in settings:
        for which, components in (("sample", each.sample), ("followed", each.followed)):
            if components is None:
                continue
            for name in components.estimates:
                if name == EXACT:
                    continue
                method = parse_method(name)
                found = components.compared(name, method, each.layers)
                by_response = method.by_component or name == ATP
                rows.append(
                    {
                        "model": each.setting.model,
                        "task": each.setting.task_name,
                        "site": each.setting.site,
                        "which": which,
                        "method": name,
                        "top": found.top_error,
                        "l1": components.error(name),
                        "overlap": overlap(components.estimates[name], components.truth),
                        "spearman": found.spearman,
                        "signs": found.sign_errors,
                        "forward": passes(method) if by_response else np.nan,
                        "backward": found.backward_passes,
                    }
                )
    return pd.DataFrame(rows)


def overlap(estimate: NDArray[np.float64], exact: NDArray[np.float64], k: int = TOP) -> float:
    """Share of the k largest absolute effects that are among the exact ones' k, prompt by prompt; their mean."""
    tops = [np.argsort(-np.abs(values), axis=0, kind="stable")[:k].T for values in (estimate, exact)]
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(*(top.tolist() for top in tops), strict=True)]))


def improvement(table: pd.DataFrame, figure: str) -> pd.DataFrame:
    """How much of attribution patching's error HVP and MS-HVP take away, setting by setting.

    MS-HVP is held against attribution patching on the components that are followed, the others on the whole sample.
    """
    found: dict[str, pd.Series] = {}
    for which, names in (("sample", (HVP, SAMPLED)), ("followed", tuple(f"ms-hvp:segments={k}" for k in (2, 5, 10)))):
        wide = table[table["which"] == which].pivot_table(
            index=["site", "model", "task"], columns="method", values=figure, sort=False
        )
        found |= {name: 1 - wide[name] / wide[ATP] for name in names}
    return pd.DataFrame(found).reset_index()


def duels(table: pd.DataFrame) -> pd.DataFrame:
    """Second order against slopes alone: in how many settings is which closer, and by how much?"""
    followed = table[table["which"] == "followed"]
    rows = []
    for a, b in PAIRS:
        if b not in set(followed["method"]):
            continue
        row: dict[str, object] = {
            "a": a,
            "b": b,
            "a forward": passes(parse_method(a)),
            "b forward": passes(parse_method(b)),
        }
        for site, part in followed.groupby("site", sort=False):
            wide = part.pivot_table(index=["model", "task"], columns="method", values="l1", sort=False)
            row[f"{site} won"] = int((wide[a] < wide[b]).sum())
            row[f"{site} settings"] = len(wide)
            row[f"{site} ratio"] = float((wide[b] / wide[a]).median())
        rows.append(row)
    return pd.DataFrame(rows)


def _followed(settings: Sequence[Measured], site: str) -> list[tuple[Measured, Components]]:
    return [(each, each.followed) for each in settings if each.followed is not None and each.setting.site == site]


def by_curvature(settings: Sequence[Measured], site: str) -> pd.DataFrame:
    """Median relative error of (component, prompt) pairs in bins of R, from exact curvature."""
    methods = (ATP, HVP, *(f"ms-hvp:segments={k}" for k in (2, 5, 10)))
    parts = []
    for _, components in _followed(settings, site):
        truth, first = components.truth, components.estimates[ATP]
        curved = components.estimates[HVP] - first
        counts = np.abs(truth) >= COUNTS * np.abs(truth).max()
        part = {"R": reliability(first, curved, floor_of(first))[counts]}
        for name in methods:
            part[name] = (np.abs(components.estimates[name] - truth)[counts]) / np.abs(truth[counts])
        parts.append(pd.DataFrame(part))
    pairs = pd.concat(parts)
    rows = []
    for low, high in pairwise(SIZES):
        inside = pairs[(pairs["R"] >= low) & (pairs["R"] < high)]
        row: dict[str, object] = {"from": low, "to": high, "pairs": len(inside)}
        row |= {name: float(inside[name].median()) if len(inside) else np.nan for name in methods}
        for name in methods[1:]:
            row[f"{name} worse"] = float((inside[name] > inside[ATP]).mean()) if len(inside) else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def local_curvature(settings: Sequence[Measured]) -> pd.DataFrame:
    """The error that local and network-level curvature predict for the first-order term, against the true one."""
    rows = []
    for each in settings:
        components = each.sample
        if components is None or LOCAL not in components.estimates:
            continue
        first = components.estimates[ATP]
        true = components.truth - first
        counts = np.abs(true) >= COUNTS * np.abs(true).max()
        row: dict[str, object] = {
            "model": each.setting.model,
            "task": each.setting.task_name,
            "pairs": int(counts.sum()),
        }
        for name in (LOCAL, HVP, SAMPLED):
            predicted = components.estimates[name] - first
            with np.errstate(divide="ignore"):
                factor = np.abs(true[counts]) / np.abs(predicted[counts])
            row[f"{name} r"] = float(np.corrcoef(predicted.ravel(), true.ravel())[0, 1])
            row[f"{name} rank"] = float(pd.Series(predicted.ravel()).corr(pd.Series(true.ravel()), method="spearman"))
            for share in (0.25, 0.5, 0.75):
                row[f"{name} factor {share:g}"] = float(np.quantile(factor, share))
        rows.append(row)
    return pd.DataFrame(rows)


def scaled(settings: Sequence[Measured], site: str) -> pd.DataFrame:
    """Error of tangent and parabola at a * delta, over the summed effect there; the median setting."""
    rows = []
    for each, components in _followed(settings, site):
        response, weights = components.response, components.weights
        base = response.base_values.numpy()
        slope, (_, curvature) = response.slope(0).numpy(), response.slope_and_curvature(0)
        for a in SCALES:
            effect = response.value(a).numpy() - base
            total = weights @ np.abs(effect).sum(1)
            tangent = a * slope
            parabola = tangent + a**2 * curvature.numpy() / 2
            row = {"setting": each.setting.folder, "a": a}
            for name, estimate in (("tangent", tangent), ("parabola", parabola)):
                row[name] = float(weights @ np.abs(estimate - effect).sum(1) / total)
            rows.append(row)
    return pd.DataFrame(rows).groupby("a")[["tangent", "parabola"]].median().reset_index()


def bounds(settings: Sequence[Measured]) -> pd.DataFrame:
    """How often the error of the first-order term exceeds the bound that MS-HVP's grid estimates."""
    rows = []
    for each in settings:
        components = each.followed
        if components is None:
            continue
        error = components.truth - components.estimates[ATP]
        row: dict[str, object] = {
            "model": each.setting.model,
            "task": each.setting.task_name,
            "site": each.setting.site,
        }
        for k in (2, 5, 10):
            second = [components.response.curvature(i / k).numpy() for i in range(k)]
            bound = bound_estimate(second, smooth=True)
            row[f"violated {k}"] = violation_rate(bound, error, NOISE)
            large = np.abs(error) > COUNTS * np.abs(error).max()
            row[f"bound / error {k}"] = float(np.median(bound[large] / np.abs(error[large])))
        rows.append(row)
    return pd.DataFrame(rows)


def intervals(settings: Sequence[Measured], draws: int) -> pd.DataFrame:
    """Coverage and savings of calibrated intervals over draws of the calibration sample.

    Neurons of the sample are a population of their own here: all of them were patched.
    """
    rows = []
    for each in settings:
        if each.sample is None:
            continue
        truth = each.sample.truth
        estimates = Estimates(
            [each.setting.site] * len(truth), each.first, each.quadratic, each.quadratic_stderr, far_end=each.far_end
        )
        for level in LEVELS:
            found = draw(estimates, truth, min(SCREENED, len(truth)), level, range(draws))
            sampled = bool(found.coverage)
            rows.append(
                {
                    "model": each.setting.model,
                    "task": each.setting.task_name,
                    "site": each.setting.site,
                    "level": level,
                    "coverage": np.mean(found.coverage) if sampled else np.nan,
                    "width": np.median(found.width) if sampled else np.nan,
                    "narrower": np.median(found.constant) / np.median(found.width) if sampled else np.nan,
                    "recall": np.mean(found.recall),
                    "runs": np.mean(found.runs),
                    "components": len(truth),
                    "broken": np.mean(found.broken),
                }
            )
    return pd.DataFrame(rows)


def risk_coverage(settings: Sequence[Measured]) -> pd.DataFrame:
    """What the flag's threshold does: share flagged, and the error left if all flagged are patched exactly."""
    rows = []
    for each in settings:
        sample = each.sample
        if sample is None:
            continue
        wrong = np.abs(each.first - sample.truth).sum(1)
        everything = sample.weights @ wrong
        for threshold in THRESHOLDS:
            found = flagged(each.first, each.quadratic, each.quadratic_stderr, threshold)
            rows.append(
                {
                    "model": each.setting.model,
                    "task": each.setting.task_name,
                    "site": each.setting.site,
                    "threshold": threshold,
                    "flagged": float(sample.weights @ found / sample.weights.sum()),
                    "left": float(sample.weights @ (wrong * ~found) / sample.total),
                    "removed": float(1 - sample.weights @ (wrong * ~found) / everything) if everything else np.nan,
                }
            )
    return pd.DataFrame(rows)


def baselines(settings: Sequence[Measured]) -> pd.DataFrame:
    """What each setting is: components, and how well the model does the task."""
    rows = []
    for each in settings:
        base = each.baseline
        rows.append(
            {
                "model": each.setting.model,
                "task": each.setting.task_name,
                "site": each.setting.site,
                "metric": each.metric,
                "clean": base.clean.mean(),
                "corrupted": base.corrupted.mean(),
                "right": base.clean_right.mean(),
                "passes": base.tells_apart,
                "population": each.population,
                "studied": 0 if each.sample is None else len(each.sample.truth),
                "followed": 0 if each.followed is None else len(each.followed.truth),
                "pairs": len(base.clean),
            }
        )
    return pd.DataFrame(rows)


def sites_of(settings: Sequence[Measured]) -> list[str]:
    """Kinds of components that were measured, heads first."""
    found = {each.setting.site for each in settings if each.followed is not None}
    return sorted(found, key=lambda site: site != HEADS)
