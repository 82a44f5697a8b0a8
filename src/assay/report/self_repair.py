"""Self-repair in the terminal and as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.interactions import SelfRepair
from assay.interactions.result import THRESHOLDS
from assay.report.terminal import KeptMetric, print_baseline

HEADS_SHOWN, ROWS_SHOWN = 10, 5


def limit(result: SelfRepair, threshold: str) -> str:
    """The threshold in words."""
    if threshold == "absolute":
        return f"above {result.threshold:g} {result.unit}"
    return f"above {result.relative:.0%} of the prompt's largest"


def answer(result: SelfRepair) -> list[str]:
    """What was found, in a sentence for each threshold."""
    sentences = []
    for threshold, found in result.summary().items():
        counts = found["rows_per_input"]
        text = (
            f"Two or more keys contribute {limit(result, threshold)} in {counts['mean']:.3g} rows of attention per "
            f"prompt ({counts['least']} to {counts['most']}), in {found['heads']} of {result.layers * result.heads} "
            "heads"
        )
        if found["rows"]:
            both = share(found["frozen"]["superadditive"])
            text += f"; in {both} of them both together matter more than each summed (frozen)"
        sentences.append(text + ".")
    return sentences


def restored(result: SelfRepair) -> list[str]:
    """How much of a mostly hidden joint effect the gradient sees, and the tempered one."""
    sentences = []
    for threshold, found in result.summary().items():
        rows = found["mostly_hidden"]
        if rows["rows"]:
            seen, tempered = (share(rows[name]["share_of_joint"]) for name in ("gradient", "tempered"))
            sentences.append(
                f"In {rows['rows']} of {found['rows']} {threshold} rows single ablations show less than half of E12 "
                f"(frozen). There the gradient of the two scores predicts {seen} of E12, at T={result.temperature:g} "
                f"{tempered}."
            )
    return sentences


def table_of_readouts(result: SelfRepair) -> list[list[str]]:
    """One line for each threshold and readout."""
    lines = []
    for threshold, found in result.summary().items():
        for name, readout, rows in (
            ("frozen", "frozen", found["rows"]),
            ("frozen (drawn)", "frozen_of_drawn", found["rerun"]),
            ("rerun", "true", found["rerun"]),
        ):
            if readout == "frozen_of_drawn" and found["rerun"] == found["rows"]:
                continue
            of = found[readout]
            lines.append(
                [
                    threshold, name, str(rows), number(of["singles"]), number(of["joint"]),
                    share(of["interaction_of_sums"]), number(of["interaction_median"], ""),
                    *(share(of[each]["share_of_joint"]) for each in ("gradient", "tempered")),
                    *(number(of[each]["spearman_with_joint"], "") for each in ("gradient", "tempered")),
                ]
            )  # fmt: skip
    return lines


def readout_columns(result: SelfRepair) -> list[str]:
    """What `table_of_readouts` holds."""
    tempered = f"T={result.temperature:g}"
    return [
        "keys", "readout", "rows", "E1+E2", "E12", "hidden", "median",
        "gradient", tempered, "rho", f"rho {tempered}",
    ]  # fmt: skip


def meaning(result: SelfRepair) -> str:
    """How to read `table_of_readouts`."""
    return (
        f"E1, E2, E12: what {result.metric} loses, in {result.unit}, if the score of the row's largest key, of its "
        "second, or of both is set to the row's mean; means over rows. frozen: by the true gradient at the head's "
        "output; rerun: by running the model again. hidden: the share of all E12 that no single ablation shows, "
        "(E12 - E1 - E2) / E12 of the sums; median: of the rows' own ratios. gradient, "
        f"T={result.temperature:g}: the share of all E12 that the gradient of the two scores predicts, as it is and "
        "with the softmax at that temperature; rho: how well each ranks rows (Spearman with E12)."
    )


def print_self_repair(console: Console, result: SelfRepair, top: int = HEADS_SHOWN) -> None:
    """Counts, readouts, heads and the rows that hide most."""
    metric = KeptMetric(result.metric, **result.provenance["metric"])
    print_baseline(console, result.baseline, metric, result.provenance["metric_chosen_because"])
    console.print(f"\n[bold]{escape(question(result))}[/bold]")
    for sentence in answer(result):
        console.print(escape(sentence), highlight=False)
    _print_table(console, readout_columns(result), table_of_readouts(result), left=2)
    console.print(escape(meaning(result)), style="dim", highlight=False)
    for sentence in restored(result):
        console.print(escape(sentence), highlight=False)
    heads = heads_of(result, top)
    if heads:
        console.print("\n[bold]Heads with most such rows[/bold] (per prompt; effects by the frozen gradient)")
        _print_table(console, ["head", *THRESHOLDS, "E1+E2", "E12"], heads, left=1)
    rows = list(result.worst(min(ROWS_SHOWN, top)).itertuples())
    if rows:
        marks = escape("[[1:first key]], [[2:second key]], [[q:query]]")
        console.print(f"\n[bold]Rows that hide most[/bold] ({marks})")
    for row in rows:
        console.print(escape(described(row)), highlight=False)
        console.print("  " + escape(marked(result, row)), style="dim", highlight=False)
    if result.compensation is not None:
        _print_compensation(console, result, top)
    spent = result.cost
    line = f"Cost: {spent['forward_equivalents']:.1f} forward-equivalents, {sum(spent['seconds'].values()):.1f} s"
    if result.compensation is not None:
        more = result.compensation.cost
        line += f"; components {more['forward_equivalents']:.1f}, {sum(more['seconds'].values()):.1f} s"
    console.print(line, style="dim")


def question(result: SelfRepair) -> str:
    name = result.provenance["model"]["name"]
    return f"Where in {name} do keys stand in for each other, in {result.pairs.behaviour}?"


def heads_of(result: SelfRepair, top: int) -> list[list[str]]:
    """The heads with most rows: name, rows per prompt over each threshold, E1 + E2, E12."""
    frame = result.per_head().sort_values(["relative", "absolute"], ascending=False, kind="stable").head(top)
    return [
        [
            f"L{row.layer}H{row.head}",
            f"{row.absolute:.3g}",
            f"{row.relative:.3g}",
            number(row.singles),
            number(row.joint),
        ]
        for row in frame.itertuples()
        if row.absolute or row.relative
    ]


def described(row: Any) -> str:
    """Where a row is and what its ablations do."""
    text = f"L{row.layer}H{row.head}, prompt {row.example}: weights {row.weight_1:.2f}, {row.weight_2:.2f}"
    for readout in ("frozen", "true"):
        one, two, joint = (getattr(row, f"{readout}_{name}") for name in ("1", "2", "joint"))
        if np.isfinite(joint):
            text += f"; {readout} E1 {one:+.3g}, E2 {two:+.3g}, E12 {joint:+.3g}"
    return text


def marked(result: SelfRepair, row: Any) -> str:
    """The prompt with both keys and the query in brackets."""
    return "".join(f"[[{mark}:{token}]]" if mark else token for token, mark in result.text(row))


def compensation_sentence(result: SelfRepair) -> str:
    """What is repaired over all heads with a direct effect."""
    assert result.compensation is not None
    found = result.compensation.summary()
    return (
        f"Over the {found['heads_with_direct_effect']} of {found['heads']} heads with a direct effect (above a tenth "
        f"of the largest), {share(found['repaired'])} of it is repaired when a head is ablated ({found['ablation']}): "
        f"{share(found['repaired_by_norms'])} by norms, {share(found['repaired_by_components'])} by later components. "
        "A negative share is lost on top: what later components made of the head."
    )


def table_of_compensation(result: SelfRepair, top: int) -> list[list[str]]:
    """The heads of largest direct effect."""
    assert result.compensation is not None
    return [
        [row.component, *(number(getattr(row, name)) for name in ("direct", "by_norms", "by_components", "total")),
         share(row.share), number(row.stderr_repaired, "")]
        for row in result.compensation.top(top).itertuples()
    ]  # fmt: skip


COMPENSATION_COLUMNS = ["head", "direct", "by norms", "by components", "total", "repaired", "±"]


def _print_compensation(console: Console, result: SelfRepair, top: int) -> None:
    console.print("\n[bold]Compensation between components[/bold]")
    console.print(escape(compensation_sentence(result)), highlight=False)
    _print_table(console, COMPENSATION_COLUMNS, table_of_compensation(result, top), left=1)
    console.print(
        f"direct - by norms - by components = total, in {escape(result.unit)}, positive: the head helps. ±: standard "
        "error of what was repaired.",
        style="dim",
        highlight=False,
    )


def _print_table(console: Console, columns: list[str], lines: list[list[str]], left: int) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(escape(name), justify="left" if i < left else "right", overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(table)


def number(value: float | None, sign: str = "+") -> str:
    return "n/a" if value is None or np.isnan(value) else f"{value:{sign}.3g}"


def share(value: float | None) -> str:
    return "n/a" if value is None or np.isnan(value) else f"{value:.0%}"


def as_json(result: SelfRepair, top: int) -> dict[str, Any]:
    """Summary, heads with any such row, the rows that hide most, compensation."""
    heads = result.per_head()
    worst = result.worst(top)
    texts = [marked(result, row) for row in worst.itertuples()]
    components = result.compensation
    return {
        "metric": result.metric,
        "unit": result.unit,
        "threshold": result.threshold,
        "relative": result.relative,
        "temperature": result.temperature,
        "per_input": {threshold: result.per_input(threshold).tolist() for threshold in THRESHOLDS},
        "summary": result.summary(),
        "heads": json.loads(heads[heads["absolute"] + heads["relative"] > 0].to_json(orient="records")),
        "worst": json.loads(worst.assign(text=texts).to_json(orient="records")),
        "compensation": components
        and {**components.summary(), "heads": json.loads(components.to_pandas().to_json(orient="records"))},
        "cost": result.cost,
        "configuration": result.configuration,
        "provenance": result.provenance,
    }
