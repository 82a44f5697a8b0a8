"""The study's page: tables and figures of `tables`, in the words of a template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.errors import StoreError
from assay.studies.pages import SHORT, template, write_files
from assay.studies.patching_errors import tables
from assay.studies.patching_errors.arrays import Measured, read_setting, read_sizes
from assay.studies.patching_errors.claims import claims
from assay.studies.patching_errors.settings import HEADS, SAMPLED, SCALES, Setting, Sizes
from assay.studies.patching_errors.tables import ATP, HVP, LOCAL, STAR, TWO_POINT
from assay.studies.patching_errors.wording import KINDS, label
from assay.studies.svg import Line, line_chart

DRAWS = 500
FIGURES = "patching-errors"
"""Folder beside the page."""


def write_page(folder: Path, page: Path, settings: Sequence[Setting] | None = None, draws: int = DRAWS) -> list[Path]:
    """Write the page of a study that was measured, as far as it was.

    Args:
        folder: of the study.
        page: a Markdown file; figures are written into a folder beside it.
        settings: those to show; all of the study's sizes if None.
        draws: of the calibration sample.

    Returns:
        The files written, the page first.

    Raises:
        StoreError: no setting is measured to its end, files are damaged, or the page cannot be written.
    """
    sizes = read_sizes(folder)
    wanted = sizes.settings() if settings is None else settings
    read = {each: read_setting(folder, each, sizes) for each in wanted}
    measured = [each for each in read.values() if each is not None]
    if not any(each.followed for each in measured):
        raise StoreError(f"No setting in {folder} is measured to its end. Run assay study patching-errors first.")
    found = results(measured, draws)
    missing = [each for each, there in read.items() if there is None]
    files = {page.parent / FIGURES / name: svg for name, svg in figures(found).items()}
    files = {page: text(found, sizes, missing, draws)} | files
    write_files(files)
    return list(files)


def results(measured: Sequence[Measured], draws: int) -> dict[str, Any]:
    """All tables by name."""
    errors = tables.errors(measured)
    sites = tables.sites_of(measured)
    return {
        "baselines": tables.baselines(measured),
        "errors": errors,
        "sites": sites,
        "improvement": tables.improvement(errors, "top"),
        "duels": tables.duels(errors),
        "by_curvature": {site: tables.by_curvature(measured, site) for site in sites},
        "scaled": {site: tables.scaled(measured, site) for site in sites},
        "local": tables.local_curvature(measured),
        "bounds": tables.bounds(measured),
        "intervals": tables.intervals(measured, draws),
        "risk": tables.risk_coverage(measured),
        "left_out": {each.setting: each.left_out for each in measured if each.left_out},
    }


def figures(found: dict[str, Any]) -> dict[str, str]:
    """SVG by file name."""
    drawn = {}
    for site in found["sites"]:
        table = found["errors"]
        rows = table[(table["which"] == "followed") & (table["site"] == site)]
        medians = rows.groupby("method")[["l1", "forward"]].median()
        families = {
            "MS-HVP, K = 1, 2, 5, 10": [HVP, *(f"ms-hvp:segments={k}" for k in (2, 5, 10))],
            "IG, left": _rules(medians, "left"),
            "IG, midpoint": _rules(medians, "midpoint"),
            "IG, trapezoid": [TWO_POINT, *_rules(medians, "trapezoid")],
            "IH": [name for name in medians.index if name.startswith("integrated-hessians")],
        }
        lines = [
            Line(name, medians.loc[members, "forward"].tolist(), medians.loc[members, "l1"].tolist())
            for name, members in families.items()
        ]
        flat = [float(medians.loc[ATP, "l1"])] * 2
        lines.append(Line("AtP", [1.0, 60.0], flat, dashed=True))
        drawn[f"cost-{KINDS[site]}.svg"] = line_chart(
            lines,
            x_title="forward passes per component (exact patching: 1)",
            y_title="error / effect, median setting",
            log_x=True,
            log_y=True,
        )
    lines = [
        Line(f"{KINDS[site]}, {name}", found["scaled"][site]["a"].tolist(), found["scaled"][site][column].tolist())
        for site in found["sites"]
        for column, name in (("tangent", "AtP"), ("parabola", "HVP"))
    ]
    drawn["strength.svg"] = line_chart(lines, x_title="strength a of the patch", y_title="error / effect at a")
    lines = []
    for site, part in found["risk"].groupby("site", sort=False):
        medians = part.groupby("threshold")[["flagged", "removed"]].median()
        lines.append(Line(KINDS[site], medians["flagged"].tolist(), (1 - medians["removed"]).tolist()))
    drawn["flags.svg"] = line_chart(
        lines, x_title="share of components flagged (threshold 2 to 0.1)", y_title="share of AtP's error left"
    )
    return drawn


def _rules(medians: pd.DataFrame, rule: str) -> list[str]:
    names = [name for name in medians.index if name.startswith(f"integrated-gradients:rule={rule}:")]
    return sorted(names, key=lambda name: float(medians.loc[name, "forward"]))


def text(found: dict[str, Any], sizes: Sizes, missing: Sequence[Setting], draws: int) -> str:
    """The page in Markdown."""
    return template("patching_errors", label=label).render(
        found=found,
        sizes=sizes,
        missing=missing,
        draws=draws,
        figures=FIGURES,
        kinds=KINDS,
        short=lambda name: SHORT.get(name, name),
        by_setting=lambda site, which, figure, show: by_setting(found["errors"], site, which, figure, show),
        claims=claims(found),
        reasons=_reasons(found["left_out"]),
        coverage_gap=max(0.0, float((found["intervals"]["level"] - found["intervals"]["coverage"]).max())),
        loop0=lambda a: int(np.flatnonzero(np.isclose(SCALES, a))[0]),
        names={"atp": ATP, "hvp": HVP, "local": LOCAL, "sampled": SAMPLED, "star": STAR},
    )


def by_setting(table: pd.DataFrame, site: str, which: str, figure: str, show: Callable[[float], str]) -> str:
    """A Markdown table of one figure: methods by settings."""
    rows = table[(table["site"] == site) & (table["which"] == which)]
    columns = list(dict.fromkeys(zip(rows["model"], rows["task"], strict=True)))
    lines = [
        "| | passes | backward | " + " | ".join(f"{SHORT.get(m, m)}<br>{task}" for m, task in columns) + " |",
        "|---|" + "---:|" * (2 + len(columns)),
    ]
    for name, part in rows.groupby("method", sort=False):
        cells = {(m, task): value for m, task, value in zip(part["model"], part["task"], part[figure], strict=True)}
        passes = part["forward"].iloc[0]
        shared = np.isnan(passes) or name == ATP
        cost = "shared | shared" if shared else f"{passes:.0f} | {part['backward'].median():.0f}"
        values = " | ".join(show(cells[each]) if each in cells else "" for each in columns)
        lines.append(f"| {label(str(name))} | {cost} | {values} |")
    return "\n".join(lines)


def _reasons(left_out: dict[Setting, dict[str, str]]) -> list[str]:
    """Which methods are left out where, and why; a sentence for each reason."""
    where: dict[tuple[str, str], list[str]] = {}
    for setting, reasons in left_out.items():
        for method, reason in reasons.items():
            if setting.site == HEADS and method == LOCAL:
                continue  # it is about neurons
            where.setdefault((method, reason), []).append(
                f"{SHORT.get(setting.model, setting.model)} {setting.task_name}"
            )
    return [
        f"{label(method)} is left out of {', '.join(dict.fromkeys(places))}: {reason}"
        for (method, reason), places in where.items()
    ]
