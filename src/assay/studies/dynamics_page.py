"""The page of an audit along a training: one file that opens offline."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from assay.report.html import Figure
from assay.report.tables import Table, number, plus_minus, write_tables_page
from assay.studies.dynamics_audit import CLASSES
from assay.studies.svg import Line, line_chart

PLACES = {"in": "in distribution", "out": "out of distribution"}
SOURCE = "the audit of gradient against cause, at every checkpoint"


def write_dynamics_page(table: pd.DataFrame, about: dict[str, Any], path: Path) -> None:
    """Write the page of what `assay.studies.dynamics` measured with `audit_at`.

    Args:
        table: one row per checkpoint.
        about: ``training`` and ``measured`` as in ``dynamics.json``, and the ``command`` if there was one.
    """
    setting, seeds = about["training"]["setting"], table["seed"].nunique()
    name = f"{setting['task']}, {setting['layers']} layers x {setting['heads']} heads"
    measured = about["measured"]
    write_tables_page(
        path,
        title=f"When in training on {setting['task']} does the size of a gradient tell what matters?",
        answer=answer(table),
        kicker=f"{name} · {seeds} seed{'s' if seeds > 1 else ''} · {len(table)} checkpoints · {measured['n']} prompts "
        f"in distribution and as many out of it · {measured['ablation']} ablation",
        figures=figures(table),
        tables=[checkpoints(table)],
        provenance={"model": {"name": name}, "method_source": SOURCE, "versions": {"assay": version("assay")}}
        | ({"command": about["command"]} if "command" in about else {}),
        kept="Every number is in dynamics.csv beside this page, and each has a figure of its own.",
        details=about,
    )


def answer(table: pd.DataFrame) -> list[str]:
    """Correlation, accuracy and classes at the last checkpoints, over seeds."""
    last = table.sort_values("step").groupby("seed").tail(1)
    told = [f"{place} {_over_seeds(last[f'rho_{short}_G'])}" for short, place in PLACES.items()]
    right = [f"{place} {_over_seeds(last[f'metric_{short}'], '')}" for short, place in PLACES.items()]
    classes = ", ".join(f"{last[f'{each}_out'].mean():.3g} {each}" for each in CLASSES)
    steps = f"step {last['step'].min()}" if last["step"].nunique() == 1 else "their last steps"
    return [
        f"At {steps} gradient magnitude and causal loss correlate (Spearman) {' and '.join(told)}; the metric is "
        f"{' and '.join(right)}.",
        f"Classes out of distribution there, components a seed: {classes}. ±: standard error over seeds; n/a: "
        "undefined, where no ablation costs anything.",
    ]


def figures(table: pd.DataFrame) -> list[Figure]:
    """Correlation, accuracy and classes over the steps; means over seeds, and where there are several each of them."""
    correlations = [name for name in table.columns if name.startswith("rho_")]
    found = [
        ("rho", "Correlation of gradients with cause", correlations, "Spearman correlation"),
        ("accuracy", "What the model can do", ["accuracy", "metric_in", "metric_out"], "share right, or metric"),
    ]
    found += [
        (f"classes-{short}", f"Classes, {place}", [f"{each}_{short}" for each in CLASSES], "components")
        for short, place in PLACES.items()
    ]
    return [
        Figure(name, title, _chart(table, columns, up), "Means over seeds." if table["seed"].nunique() > 1 else "")
        for name, title, columns, up in found
    ]


def checkpoints(table: pd.DataFrame) -> Table:
    """All of them, in their order."""
    columns = ["accuracy", "metric_in", "metric_out", "rho_in_G", "rho_out_G", "hero_out", "bloat_out"]
    return Table(
        "Every checkpoint",
        ["seed", "step", *(name.replace("_", " ") for name in columns)],
        [
            [str(row["seed"]), str(row["step"]), *(number(row[name], "") for name in columns)]
            for row in table.astype(dict.fromkeys(columns, float)).to_dict("records")
        ],
        left=0,
        note="accuracy: exact matches on held-out examples, as the training counted them. in, out: in and out of "
        "distribution. rho ... G: of gradient magnitude.",
        short="Checkpoints",
    )


def _chart(table: pd.DataFrame, columns: list[str], title: str) -> Markup:
    means = table[["step", *columns]].apply(pd.to_numeric, errors="coerce").groupby("step").mean()
    lines = [Line(name.replace("_", " "), means.index.tolist(), means[name].tolist()) for name in columns]
    drawn = Markup(line_chart(lines, x_title="step", y_title=title, log_x=True))
    return Markup('<div class="scroll">{}</div>').format(drawn)


def _over_seeds(values: pd.Series, sign: str = "+") -> str:
    known = pd.to_numeric(values, errors="coerce").dropna().to_numpy()
    if not len(known):
        return "n/a"
    error = known.std(ddof=1) / len(known) ** 0.5 if len(known) > 1 else np.nan
    return plus_minus(known.mean(), error) if sign else plus_minus(known.mean(), error).lstrip("+")
