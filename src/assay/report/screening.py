"""A screening in sentences, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.report import words
from assay.report.figures import MAP_MARK, NEGATIVE, POSITIVE, figures, position_of, styled
from assay.report.places import print_folder
from assay.screening import ScreenedScores

LISTED = 20
"""Unsettled components that are named."""
SHOWN = 30
FEW_PROMPTS = 20
"""With fewer the bootstrap of prompts covers less than it says."""
COVERAGE = {4: 0.80, 8: 0.89, 16: 0.92}
"""Of the 95 % bootstrap by prompts, in a simulation of normal values (tests/reliability/test_score.py)."""
INK = "#1b1f24"


def answer(scores: ScreenedScores) -> str:
    """What the list of leaders is worth, in a sentence or two."""
    count, k = len(scores.components), len(scores.leaders)
    if not k:
        return f"No patch of any of the {count} components changes anything: every effect is 0."
    first = scores.components[int(scores.leaders[0])].name
    value = scores.importance[scores.leaders[0]]
    head = f"{first} matters most: {value:+.4g} {scores.unit}."
    if scores.certified:
        return f"{head} The top {k} is certified: the exact effect of each of the {count} components is known."
    last = abs(scores.importance[scores.leaders[-1]])
    if scores.screened:
        return (
            f"{head} Screened top {k} at level {scores.level:.0%}: each of them was patched exactly, and no "
            f"interval of another component reaches the value of the last, {last:.4g}."
        )
    budget = scores.configuration["budget"]
    return (
        f"{head} Stopped by the budget of {budget:g} forward-equivalents: this is no top {scores.configuration['top']} "
        f"yet. {len(scores.unsettled)} components that were not patched may belong to it."
    )


def headline(scores: ScreenedScores) -> str:
    """How much the leaders carry, what that rests on, and what may still be wrong: the answer in a sentence."""
    count, k = len(scores.components), len(scores.leaders)
    size = np.abs(scores.importance)
    if not k or not size.sum():
        return answer(scores)
    share = size[scores.leaders].sum() / size.sum()
    line = f"{k} of {count} components carry {share:.0%} of the summed absolute effect on {scores.metric}; "
    if scores.certified:
        return f"{line}all {count} were measured exactly."
    unverified = len(scores.verdicts) - scores.verdicts.count("verified")
    if scores.screened:
        line += f"top {k} verified with {scores.runs} exact runs"
    else:
        line += (
            f"stopped by the budget after {scores.runs} exact runs, so that {len(scores.unsettled)} that were not "
            f"patched may still belong to the top {scores.configuration['top']}"
        )
    if scores.expected_outside is None:
        return f"{line}; {unverified} have estimates without intervals."
    return (
        f"{line}; at most {scores.outside_bound} of the {unverified} unverified may lie outside their interval "
        "(95% confidence)."
    )


def runs(scores: ScreenedScores) -> str:
    """Exact runs out of how many."""
    count = len(scores.components)
    line = f"{scores.runs} of {count} components were patched exactly ({scores.runs / count:.1%})."
    still = scores.verdicts.count("verified") - scores.runs
    if still:
        line += f" The patch of {still} others changes nothing, so their effect is 0."
    return line


def guarantee(scores: ScreenedScores) -> str | None:
    """What holds for those that were not patched; None if there are none."""
    unverified = len(scores.verdicts) - scores.verdicts.count("verified")
    if not unverified:
        return None
    if scores.expected_outside is None:
        return (
            f"The budget did not reach through calibration: the other {unverified} components have estimates, but no "
            "intervals."
        )
    sample = sum(len(each.sample) for each in scores.calibrations)
    line = (
        f"The other {unverified} have intervals, calibrated on {sample} components drawn at random. The interval of a "
        f"component picked at random holds its exact effect with probability {scores.level:.0%} at least. So on "
        f"average at most {scores.expected_outside:.3g} intervals miss the exact effect; with 95 % confidence, no more "
        f"than {scores.outside_bound} of those not patched do. This is about all intervals together, and no guarantee "
        "for this top list: an interval that misses may hide a member of it."
    )
    if scores.found_outside:
        line += f" Of those patched in the search, {scores.found_outside} lay outside theirs."
    if any(each.widened > each.quantile for each in scores.calibrations):
        line += " More of pilot and search lay outside than the level allows, so the intervals were widened."
    return line


def flags(scores: ScreenedScores) -> str | None:
    """What became of the flagged; None where no curvature was probed."""
    if not scores.probes:
        return None
    patched = sum(scores.verdicts[i] == "verified" for i in np.flatnonzero(scores.flagged))
    total = int(scores.flagged.sum())
    line = f"{total} flagged: their curvature surely exceeds {scores.threshold:g} of the first-order term."
    if total:
        line += f" {patched} of them were patched"
        if patched == total:
            line += "."
        elif scores.expected_outside is None:
            line += "; the others are listed as open."
        else:
            line += "; the others' intervals stay below the top list or are listed as open."
    corrected = int((scores.source >= 4).sum())
    if corrected:
        line += f" {corrected} carry an estimate by {scores.configuration['fix']} instead of the first-order one."
    if scores.bound_violations is not None:
        line += f" {scores.bound_violations:.0%} of the error bounds estimated on the way were exceeded."
    return line


def unsettled(scores: ScreenedScores) -> str | None:
    """The components that may still belong to the top, largest reach first."""
    if scores.screened:
        return None
    reach = np.fmax(np.abs(scores.lower), np.abs(scores.upper))[scores.unsettled]
    size = np.abs(scores.importance[scores.unsettled])
    order = scores.unsettled[np.argsort(-np.where(np.isnan(reach), size, reach), kind="stable")]
    names = ", ".join(scores.components[i].name for i in order[:LISTED])
    more = f" and {len(order) - LISTED} more" if len(order) > LISTED else ""
    return f"Open: {names}{more}. The same command with a larger --budget goes on from here."


def meaning(scores: ScreenedScores) -> str:
    """What the numbers of the table are."""
    return (
        f"{words.DIRECTIONS[scores.direction]} Importance is in {scores.unit} of {scores.metric}, mean over "
        f"{len(scores.pairs)} prompt pair{'s' if len(scores.pairs) > 1 else ''}."
    )


def legend(scores: ScreenedScores) -> list[tuple[str, str]]:
    """What each column of the table is, for terminal and page."""
    reliability = (
        "size of the curvature against the first-order term: half the second derivative over the first, both absolute "
        "and summed over prompts. Near 0 the response begins straight; at 1 the next term is as large as the estimate. "
        "n/a: no first-order term to speak of"
    )
    if not scores.probes:
        reliability = "not known, since no curvature was probed"
    flag = f"; !: flagged (surely above {scores.threshold:g})" if scores.flagged.any() else ""
    prompts = "what the value, taken as it is, might be on other prompts of the kind (bootstrap)"
    if 1 < (n := len(scores.pairs)) < FEW_PROMPTS:
        covered = ", ".join(f"{share:.0%} with {few}" for few, share in COVERAGE.items())
        prompts += (
            f"; {n} prompts are few, and with few it covers less than 95 % (of simulated normal values, {covered})"
        )
    found = [
        ("importance", "exact where verified, else the estimate that is named behind the verdict"),
        (
            "interval",
            "where the exact mean effect on these prompts should lie; the interval of a component picked at random "
            f"holds it with probability {scores.level:.0%} at least",
        ),
        ("R", reliability + flag),
        (
            "verdict",
            "verified: patched exactly, or known to change nothing. bounded: an estimate with an interval. unresolved: "
            "no interval, or a first-order term too small to say anything",
        ),
        ("other prompts (95 %)", prompts),
    ]
    return [(column, text) for column, text in found if column not in needless(scores)]


def needless(scores: ScreenedScores) -> set[str]:
    """Columns that would say nothing: of intervals and curvature where every component was patched or has neither."""
    empty = {
        "interval": scores.certified or scores.expected_outside is None,
        "R": bool(np.isnan(scores.reliability).all()),
    }
    return {column for column, nothing in empty.items() if nothing}


def sentences(scores: ScreenedScores) -> list[str]:
    """All but the answer, for terminal and page."""
    found = (runs(scores), guarantee(scores), flags(scores), *scores.notes)
    return [sentence for sentence in found if sentence]


def print_screening(
    console: Console,
    scores: ScreenedScores,
    top: int | None = None,
    folder: Path | None = None,
    beneath: Callable[[], object] = lambda: None,
) -> None:
    """Question, headline, what ``beneath`` prints, answer, what it rests on, leaders, cost, where it is kept."""
    console.print(f"\n[bold]{escape(words.question(scores))}[/bold]")
    first, more = headline(scores), answer(scores)
    console.print(escape(first), highlight=False)
    beneath()
    if more != first:
        console.print(escape(more))
    for sentence in sentences(scores):
        console.print(escape(sentence), highlight=False)
    for warning in filter(None, (unsettled(scores), *words.cautions(scores))):
        console.print(escape(warning), style="yellow")
    console.print(escape(meaning(scores)), style="dim")
    table = Table(box=None, pad_edge=False)
    columns = ("#", "component", "importance", "interval", "R", "verdict", "other prompts (95 %)")
    left_out = needless(scores)
    for name in (column for column in columns if column not in left_out):
        table.add_column(name, justify="left" if name in ("component", "verdict") else "right")
    for rank, row in enumerate(scores.top(top or max(1, len(scores.leaders))).itertuples(), 1):
        known = row.verdict == "verified"
        cells = (
            str(rank),
            escape(row.component),
            f"{row.importance:+.4g}",
            "exact" if known else interval(row.low, row.high),
            number(row.reliability) + ("!" if row.flagged else ""),
            row.verdict if known else f"{row.verdict} ({row.source})",
            interval(row.prompts_low, row.prompts_high),
        )
        table.add_row(*(cell for column, cell in zip(columns, cells, strict=True) if column not in left_out))
    console.print(table)
    for column, text in legend(scores):
        console.print(escape(f"{column}: {text}"), style="dim", highlight=False)
    stages = Table(title="Cost", title_justify="left", box=None, pad_edge=False)
    for name in ("stage", "exact runs", "forward-equivalents", "s"):
        stages.add_column(name, justify="left" if name == "stage" else "right")
    for stage in scores.stages:
        runs_made = str(stage.runs) if stage.runs else ""
        stages.add_row(escape(stage.name), runs_made, f"{stage.forward_equivalents:.1f}", f"{stage.seconds:.1f}")
    spent = scores.cost["forward_equivalents"], sum(scores.cost["seconds"].values())
    budget = scores.configuration["budget"]
    of = f" of a budget of {budget:g}" if budget is not None else ""
    stages.add_row("all", str(scores.runs), f"{spent[0]:.1f}{of}", f"{spent[1]:.1f}")
    console.print(stages)
    console.print(f"Time: {words.time(scores.cost)}.", style="dim")
    if folder is not None:
        print_folder(console, folder)


def number(value: float) -> str:
    return "n/a" if np.isnan(value) else f"{value:.2g}"


def interval(low: float, high: float) -> str:
    return "n/a" if np.isnan(low) or np.isnan(high) else f"{low:+.3g} to {high:+.3g}"


def screening_figures(scores: ScreenedScores) -> list[tuple[str, str, go.Figure]]:
    """The maps of all scores with verdicts marked, and the largest components with their intervals."""
    found = figures(scores)
    for site, _, figure in found:
        if isinstance(figure.data[0], go.Heatmap):
            _mark(figure, scores, [i for i, c in enumerate(scores.components) if c.site == site])
    return [*found, ("intervals", f"The {min(SHOWN, len(scores.components))} largest, with intervals", _forest(scores))]


def _mark(figure: go.Figure, scores: ScreenedScores, members: Sequence[int]) -> None:
    """A dot where the effect is known exactly, a cross where nothing is, a triangle where curvature is flagged."""
    marks = {
        "verified": ("circle", [i for i in members if scores.verdicts[i] == "verified"]),
        "unresolved": ("x-thin", [i for i in members if scores.verdicts[i] == "unresolved"]),
        "flagged": ("triangle-up-open", [i for i in members if scores.flagged[i]]),
    }
    for name, (symbol, marked) in marks.items():
        if marked:
            figure.add_scatter(
                name=name,
                x=[position_of(scores.components[i]) for i in marked],
                y=[scores.components[i].layer for i in marked],
                mode="markers",
                marker={"symbol": symbol, "size": 5 if name == "verified" else 9, "color": INK, "line": MAP_MARK},
                hoverinfo="skip",
            )
    figure.update_layout(legend={"orientation": "h", "y": -0.12}, showlegend=True)
    figure.data[0].showlegend = False


def _forest(scores: ScreenedScores) -> go.Figure:
    top = scores.top(SHOWN).iloc[::-1]
    known = top["verdict"] == "verified"
    low, high = (top["importance"] - top["low"]).fillna(0), (top["high"] - top["importance"]).fillna(0)
    figure = go.Figure()
    positive = top["importance"] >= 0
    # Error bars take one colour for a trace, so each sign has its own.
    for color, mine in ((POSITIVE, positive), (NEGATIVE, ~positive)):
        if not mine.any():
            continue
        figure.add_scatter(
            x=top["importance"][mine],
            y=top["component"][mine],
            mode="markers",
            marker={
                "color": color,
                "symbol": ["circle" if exact else "circle-open" for exact in known[mine]],
                "size": 9,
            },
            error_x={
                "symmetric": False,
                "array": high[mine],
                "arrayminus": low[mine],
                "color": color,
                "thickness": 1.5,
                "width": 3,
            },
            text=top["verdict"][mine],
            hovertemplate="%{y}: %{x:+.4g}, %{text}<extra></extra>",
            showlegend=False,
        )
    figure.update_yaxes(categoryorder="array", categoryarray=top["component"])
    figure.update_xaxes(title_text=f"importance ({scores.unit}); filled: verified, open: estimate with interval")
    return styled(figure, height=max(260, 90 + 18 * len(top)))
