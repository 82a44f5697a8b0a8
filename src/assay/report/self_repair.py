"""Self-repair in the terminal and as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.interactions import SelfRepair
from assay.interactions.result import EFFECTS, THRESHOLDS
from assay.interactions.spread import FEWEST
from assay.report.terminal import KeptMetric, print_baseline

HEADS_SHOWN, ROWS_SHOWN = 10, 5
GRADIENTS = ("gradient", "tempered")
ORDER = "By E12 - E1 - E2 (frozen), so rows whose keys speak against the answer can be among them; they are marked."


def limit(result: SelfRepair, threshold: str) -> str:
    """The threshold in words."""
    if threshold == "absolute":
        unit = result.unit.removesuffix("s") if result.threshold == 1 else result.unit
        return f"above {result.threshold:g} {unit}"
    return f"above {result.relative:.0%} of the prompt's largest"


def answer(result: SelfRepair) -> list[str]:
    """What was found, in a sentence or two for each threshold."""
    return [_found(result, threshold, found) for threshold, found in result.summary().items()]


def _found(result: SelfRepair, threshold: str, found: dict[str, Any]) -> str:
    counts, n = found["rows_per_input"], found["prompts"]
    each = f" ({counts['least']} to {counts['most']} a prompt)" if n > 1 else ""
    text = (
        f"Two or more keys contribute {limit(result, threshold)} in {_counted(found['rows'], 'row')} of attention in "
        f"{_counted(n, 'prompt')}{each}, in {found['heads']} of {result.layers * result.heads} heads."
    )
    if not found["rows"]:
        return text
    rerun = found["rerun"] > 0
    of, rows = (found["true"], found["rerun"]) if rerun else (found["frozen"], found["rows"])
    how = f"rerun, {'drawn at random' if rows < found['rows'] else 'all'}" if rerun else "frozen: none was rerun"
    text += (
        f" Ablating both moves {result.metric} further than the two single effects summed in {of['joint_larger']} of "
        f"{rows} rows ({how})"
    )
    hides = of["interaction_of_sums"]
    if hides is not None and hides > 0:
        text += f"; {_with(hides, of['interaction_interval'])} of the joint effect shows in no single ablation"
    elif hides is not None:
        text += (
            "; summed over rows the single effects come to more than the joint one (hidden: "
            f"{_with(hides, of['interaction_interval'])})"
        )
    if of["joint_negative"]:
        text += f". In {of['joint_negative']} of them E12 is negative: without the keys {result.metric} rises"
    return text + "."


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def restored(result: SelfRepair) -> list[str]:
    """How much of a mostly hidden joint effect the gradient sees, and the tempered one."""
    sentences = []
    for threshold, found in result.summary().items():
        rows = found["mostly_hidden"]
        if rows["rows"]:
            seen, tempered = (_with(rows[name]["share_of_joint"], rows[name]["share_interval"]) for name in GRADIENTS)
            sentences.append(
                f"In {rows['rows']} of {_counted(found['rows'], f'{threshold} row')} single ablations show less than "
                f"half of E12 (frozen). There the gradient of the two scores predicts {seen} of E12, at "
                f"T={result.temperature:g} {tempered}."
            )
    return sentences


def _lines(result: SelfRepair) -> list[tuple[str, str, dict[str, Any]]]:
    """Threshold, readout in words, and what was found, of each readout that has rows."""
    lines = []
    for threshold, found in result.summary().items():
        for name, readout in (("frozen", "frozen"), ("frozen (drawn)", "frozen_of_drawn"), ("rerun", "true")):
            repeated = readout == "frozen_of_drawn" and found["rerun"] == found["rows"]
            if found[readout]["rows"] and not repeated:
                lines.append((threshold, name, found[readout]))
    return lines


def table_of_effects(result: SelfRepair) -> list[list[str]]:
    """A header, and a line for each threshold and readout: what ablations do."""
    return [
        ["keys", "readout", "rows", "E1+E2", "E12", "hidden", "median"],
        *(
            [
                threshold, name, str(of["rows"]), number(of["singles"]), number(of["joint"]),
                _with(of["interaction_of_sums"], of["interaction_interval"]), number(of["interaction_median"], ""),
            ]
            for threshold, name, of in _lines(result)
        ),
    ]  # fmt: skip


def table_of_gradients(result: SelfRepair) -> list[list[str]]:
    """A header, and a line for each threshold and readout: what gradients say of E12."""
    tempered = f"T={result.temperature:g}"

    def rank(of: dict[str, Any]) -> str:
        ends = of["spearman_interval"]
        return number(of["spearman_with_joint"], "") + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")

    return [
        ["keys", "readout", "gradient", tempered, "rho", f"rho {tempered}"],
        *(
            [threshold, name, *(share(of[each]["share_of_joint"]) for each in GRADIENTS),
             *(rank(of[each]) for each in GRADIENTS)]
            for threshold, name, of in _lines(result)
        ),
    ]  # fmt: skip


def meaning(result: SelfRepair) -> str:
    """How to read `table_of_effects` and `table_of_gradients`."""
    return (
        f"E1, E2, E12: what {result.metric} loses, in {result.unit}, if the score of the row's largest key, of its "
        "second, or of both is set to the row's mean; means over rows. frozen: by the true gradient at the head's "
        "output; rerun: by running the model again. hidden: the share of all E12 that no single ablation shows, "
        "(E12 - E1 - E2) / E12 of the sums; median: of the rows' own ratios. gradient, "
        f"T={result.temperature:g}: the share of all E12 that the gradient of the two scores predicts, as it is and "
        "with the softmax at that temperature; rho: how well each ranks rows (Spearman with E12). "
        f"{sureness(len(result.pairs))}"
    )


def sureness(prompts: int) -> str:
    """How sure shares and ranks are, and why some are missing."""
    if prompts < FEWEST:
        brackets = f"{_counted(prompts, 'prompt')}: too few for intervals; other prompts may give other numbers."
    else:
        brackets = (
            f"[ ]: 95 % interval from drawing the prompts again, each with all its rows, where {FEWEST} or more have "
            "any."
        )
    return (
        f"{brackets} n/a: fewer than {FEWEST} rows to rank, or effects that cancel, so no share of their sum is told."
    )


def next_step(result: SelfRepair) -> str:
    """What to do about keys, or heads, that stand in for each other."""
    heads = "" if result.compensation is not None else "; --components zero asks the same of whole heads"
    return (
        "Next: assay score --method gim ranks components by a backward pass that sees such pairs, assay screen tells "
        f"which components matter and how sure that is{heads}."
    )


def print_self_repair(console: Console, result: SelfRepair, top: int = HEADS_SHOWN) -> None:
    """Counts, readouts, heads and the rows that hide most."""
    console.print(f"\n[bold]{escape(question(result))}[/bold]")
    for sentence in answer(result):
        console.print(escape(sentence), highlight=False)
    metric = KeptMetric(result.metric, **result.provenance["metric"])
    print_baseline(console, result.baseline, metric, result.provenance["metric_chosen_because"])
    if len(result.rows):
        for header, *lines in (table_of_effects(result), table_of_gradients(result)):
            _print_table(console, header, lines, left=2)
        console.print(escape(meaning(result)), style="dim", highlight=False)
    for sentence in restored(result):
        console.print(escape(sentence), highlight=False)
    heads = heads_of(result, top)
    if heads:
        console.print("\n[bold]Heads with most such rows[/bold]")
        console.print(escape(heads_meaning(result)), style="dim", highlight=False)
        _print_table(console, ["head", *THRESHOLDS, "E1+E2", "E12"], heads, left=1)
    rows = list(result.worst(min(ROWS_SHOWN, top)).itertuples())
    if rows:
        marks = escape("[[1:first key]], [[2:second key]], [[q:query]]")
        console.print(f"\n[bold]Rows that hide most[/bold] ({marks})")
        console.print(escape(ORDER), style="dim", highlight=False)
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
    console.print(escape(next_step(result)), style="yellow", highlight=False)
    console.print(line, style="dim")


def question(result: SelfRepair) -> str:
    name = result.provenance["model"]["name"]
    return f"Where in {name} do keys stand in for each other, in {result.pairs.behaviour}?"


def heads_of(result: SelfRepair, top: int) -> list[list[str]]:
    """The heads with most rows: name, rows over each threshold, E1 + E2, E12."""
    n = len(result.pairs)
    frame = result.per_head().sort_values(["relative", "absolute"], ascending=False, kind="stable").head(top)
    return [
        [
            f"L{row.layer}H{row.head}",
            f"{n * row.absolute:.0f}",
            f"{n * row.relative:.0f}",
            number(row.singles),
            number(row.joint),
        ]
        for row in frame.itertuples()
        if row.absolute or row.relative
    ]


def heads_meaning(result: SelfRepair) -> str:
    """How to read `heads_of`."""
    prompts = _counted(len(result.pairs), "prompt")
    return (
        f"Rows over each threshold in {prompts}; effects by the frozen gradient, summed over a head's rows, per prompt."
    )


def described(row: Any) -> str:
    """Where a row is and what its ablations do."""
    text = f"L{row.layer}H{row.head}, prompt {row.example}: weights {row.weight_1:.2f}, {row.weight_2:.2f}"
    sure = row.frozen_joint
    for name, readout in (("frozen", "frozen"), ("rerun", "true")):
        one, two, joint = (getattr(row, f"{readout}_{effect}") for effect in EFFECTS)
        if np.isfinite(joint):
            text += f"; {name} E1 {one:+.3g}, E2 {two:+.3g}, E12 {joint:+.3g}"
            sure = joint
    return text + (" (harmful: the metric rises without both)" if sure < 0 else "")


def marked(result: SelfRepair, row: Any) -> str:
    """The prompt with both keys and the query in brackets."""
    return "".join(f"[[{mark}:{token}]]" if mark else token for token, mark in result.text(row))


def compensation_sentence(result: SelfRepair) -> str:
    """What is repaired over all heads with a direct effect."""
    assert result.compensation is not None
    found = result.compensation.summary()
    return (
        f"Over the {found['heads_with_direct_effect']} of {found['heads']} heads with a direct effect (above a tenth "
        f"of the largest; {_counted(found['prompts'], 'prompt')}), "
        f"{_with(found['repaired'], found['repaired_interval'])} of it is repaired when a head is ablated "
        f"({found['ablation']}): "
        f"{share(found['repaired_by_norms'])} by norms, {share(found['repaired_by_components'])} by later components. "
        "A negative share is lost on top: what later components made of the head."
    )


def table_of_compensation(result: SelfRepair, top: int) -> list[list[str]]:
    """The heads of largest direct effect."""
    assert result.compensation is not None
    return [
        [row.component, *(number(getattr(row, name)) for name in ("direct", "by_norms", "by_components", "total")),
         _with(row.share, None if np.isnan(row.share_lower) else [row.share_lower, row.share_upper])]
        for row in result.compensation.top(top).itertuples()
    ]  # fmt: skip


def compensation_meaning(result: SelfRepair) -> str:
    """How to read `table_of_compensation`."""
    assert result.compensation is not None
    n = result.compensation.direct.shape[1]
    few = f"; none with fewer than {FEWEST}" if n < FEWEST else ""
    return (
        f"direct - by norms - by components = total, in {result.unit}, positive: the head helps. repaired: (direct - "
        f"total) / direct, [ ]: its 95 % interval from drawing the prompts again{few}; n/a: a direct effect that is "
        "small, or not told from 0."
    )


COMPENSATION_COLUMNS = ["head", "direct", "by norms", "by components", "total", "repaired"]


def _print_compensation(console: Console, result: SelfRepair, top: int) -> None:
    console.print("\n[bold]Compensation between components[/bold]")
    console.print(escape(compensation_sentence(result)), highlight=False)
    _print_table(console, COMPENSATION_COLUMNS, table_of_compensation(result, top), left=1)
    console.print(escape(compensation_meaning(result)), style="dim", highlight=False)


def _print_table(console: Console, columns: list[str], lines: list[list[str]], left: int) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(escape(name), justify="left" if i < left else "right", no_wrap=i > 0)
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(table)


def number(value: float | None, sign: str = "+") -> str:
    return "n/a" if value is None or np.isnan(value) else f"{value:{sign}.3g}"


def share(value: float | None) -> str:
    return "n/a" if value is None or np.isnan(value) else f"{value:.0%}"


def _with(value: float | None, interval: list[float] | None) -> str:
    """A share with its interval, where it has one."""
    return share(value) + (f" [{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]" if interval else "")


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
