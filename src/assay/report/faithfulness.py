"""Faithfulness of token attributions: tables, and how to read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.reliability.sign_flips import FEWEST
from assay.tokens import Explanations, Faithfulness
from assay.tokens.faithfulness import MOST, NOISES, PERCENT_FIRST, RANDOM, STEPS, replaced_positions

FEW_TEXTS = 10
"""Below so many, means over texts are taken with a caution."""


def faithfulness_tables(found: Faithfulness, seed: int) -> list[list[list[str]]]:
    """For logits, or what else is explained, and for the probability: a header, and one row for each method, measure
    and kind of steps."""
    summary, differences = found.summary(seed), found.differences(seed)
    kinds = list(dict.fromkeys((measure, steps) for measure, steps, _ in found.keys))
    tables = []
    for unit in (found.metric_unit, "probability"):
        rows = [["method", "measure", "k over", unit, "minus random"]]
        for measure, steps in kinds:
            at = {"measure": measure, "steps": steps, "unit": unit}
            for method in found.methods:
                (mean,) = _rows(summary, method=method, **at)
                if method == RANDOM:
                    beside = f"± {mean['spread']:.2g}"
                else:
                    (less,) = _rows(differences, first=method, second=RANDOM, **at)
                    beside = f"{less['mean']:+.2g}"
                    if less["lower"] == less["lower"]:
                        beside += f" [{less['lower']:+.2g}, {less['upper']:+.2g}]"
                rows.append([method, measure, steps, f"{mean['mean']:+.3g}", beside])
        tables.append(rows)
    return tables


def _rows(frame: Any, **values: str) -> list[dict[str, Any]]:
    for name, value in values.items():
        frame = frame[frame[name] == value]
    records: list[dict[str, Any]] = frame.to_dict("records")
    return records


def faithfulness_meaning(found: Explanations, measured: Faithfulness) -> str:
    """How to read the tables."""
    n = measured.full.shape[-1]
    usable = (~np.isnan(measured.shares[0])).sum(1)
    few = "" if usable.min() == n else (
        f" Shares of the text's own value (in Python) are given for {usable.min()} to {usable.max()} of {n} texts: "
        f"elsewhere that value is negative, or within {NOISES:g} standard deviations of random orders from 0."
    )  # fmt: skip
    interval = f"[ ]: its 95 % interval by sign flips over {n} texts"
    if n < FEWEST:
        interval = f"fewer than {FEWEST} texts have no 95 % interval"
    parts = sorted(len(replaced_positions(item.fixed)) for item in found)
    most, kinds = _range([min(MOST, count) for count in parts]), {steps for _, steps, _ in measured.keys}
    over = {"counts": f"counts: 1 to {most}", "shares": f"shares: {', '.join(map(str, PERCENT_FIRST))} %, at least one"}
    return (
        f"{_range(parts)} of {_range(sorted(len(item.tokens) for item in found))} tokens take part: the first, the "
        "last and special ones are never replaced. Comprehensiveness: the mean drop when the first k of them are "
        "replaced (higher is better). Sufficiency: the mean drop when all of them but the first k are (lower is "
        "better). k over "
        f"{'; over '.join(over[steps] for steps in STEPS if steps in kinds)}. minus random: the difference to random "
        f"orders; {interval}. ±: standard deviation between random orders of one text.{few}"
    )


def _range(ordered: list[int]) -> str:
    """``8`` or ``5-12``."""
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]}-{ordered[-1]}"


def faithfulness_caution(measured: Faithfulness) -> str | None:
    """A warning where texts are few."""
    n = measured.full.shape[-1]
    if n >= FEW_TEXTS:
        return None
    if n == 1:
        return "Faithfulness is of one text: which method is better on others cannot be told from it."
    return f"Faithfulness is of {n} texts only: another {n} may order the methods otherwise."


def print_faithfulness(console: Console, found: Explanations, measured: Faithfulness) -> None:
    """One line for each method, measure and kind of steps."""
    for header, *rows in faithfulness_tables(measured, found.configuration["seed"]):
        table = Table(title=f"Faithfulness, {header[3]}", title_justify="left", box=None, pad_edge=False)
        for number, name in enumerate(header):
            table.add_column(
                name, justify="left" if number < 3 else "right", no_wrap=number != 1, overflow="fold", max_width=23
            )
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if (warning := faithfulness_caution(measured)) is not None:
        console.print(escape(warning), style="yellow", highlight=False)
    console.print(escape(faithfulness_meaning(found, measured)), style="dim", highlight=False)
