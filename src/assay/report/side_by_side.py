"""Several runs beside each other: what was asked, what came out, and where they disagree.

Two runs of one shape (two methods, two checkpoints, two sets of prompts) are compared component by component; runs of
models of different shapes by how deep their importance lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.stats import spearmanr

from assay.errors import OptionError
from assay.report import screening, words
from assay.report.figures import INK_SOFT, NEGATIVE, POSITIVE, styled
from assay.report.tables import Figure, Table, number, plus_minus, write_tables_page
from assay.scores import Scores
from assay.screening import ScreenedScores
from assay.store.differences import differences

TOP = 10
CHANGED = 20
MOST_DEPTHS = 10
DRAWS = 1000
SEVERAL_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by every common kind of colour blindness (Okabe and Ito)."""


@dataclass(frozen=True)
class Side:
    """One of the runs."""

    name: str
    scores: Scores

    @property
    def of(self) -> str:
        """Model and method."""
        return f"{self.scores.provenance['model']['name']}, {self.scores.method}"

    @property
    def shape(self) -> tuple[int, ...]:
        model = self.scores.provenance["model"]
        return model["layers"], model["heads"]

    @property
    def answer(self) -> str:
        scores = self.scores
        return screening.answer(scores) if isinstance(scores, ScreenedScores) else words.answer(scores)

    def frame(self) -> pd.DataFrame:
        """Importance and its standard error over prompts, by component."""
        table = self.scores.to_pandas()
        names = [component.name for component in self.scores.components]
        return pd.DataFrame({"importance": table.importance, "error": table.stderr_prompts}).set_axis(names)


def sides_of(runs: Sequence[tuple[str, Scores]]) -> list[Side]:
    """Runs to be shown, with names that tell them apart.

    Raises:
        OptionError: fewer than two, or kinds of sites that no two of them share.
    """
    if len(runs) < 2:
        raise OptionError("Side by side are two runs or more.")
    names = [name for name, _ in runs]
    short = [Path(name).name for name in names]
    sides = [
        Side(s if short.count(s) == 1 else n, scores) for n, s, (_, scores) in zip(names, short, runs, strict=True)
    ]
    kinds = [{component.site for component in side.scores.components} for side in sides]
    for side, mine in zip(sides, kinds, strict=True):
        if not any(mine & other for other in kinds if other is not mine):
            raise OptionError(
                f"{side.name} scores {', '.join(sorted(mine))}, which no other of these runs does. There is nothing to "
                "compare."
            )
    return sides


def cautions(sides: Sequence[Side]) -> list[str]:
    """What keeps numbers from meaning the same."""
    found = []
    for what, of in (
        ("metrics", lambda side: f"{side.scores.metric} ({side.scores.unit})"),
        ("directions", lambda side: side.scores.direction),
    ):
        values = list(dict.fromkeys(map(of, sides)))
        if len(values) > 1:
            found.append(f"These runs have different {what} ({', '.join(values)}): compare ranks, not sizes.")
    if len({side.scores.configuration.get("prompts_sha256") for side in sides}) > 1:
        found.append("The prompts are not the same, so differences are those of prompts as well.")
    return found


def headline(sides: Sequence[Side]) -> list[str]:
    """How far the first two agree, then what each of all says."""
    said = []
    for one, other in combinations(sides[:3], 2):
        joined = _joined(one, other)
        if joined is None:
            said.append(f"{one.name} and {other.name} are of different shapes; they are compared by depth.")
            continue
        rho, low, high = rank_agreement(joined)
        shared = len(_top(joined, "a") & _top(joined, "b"))
        k = min(TOP, len(joined))
        interval = f" [{low:.3g}, {high:.3g}]" if np.isfinite(low) else ""
        said.append(
            f"{one.name} and {other.name} share {shared} of their {k} largest components of {len(joined)}; Spearman's "
            f"rho of importance is {number(rho, '')}{interval}."
        )
    return said


def tables(sides: Sequence[Side]) -> list[Table]:
    """All that is told in lines."""
    found = [
        Table("What each says", ["run", "model, method", "answer"], [[s.name, s.of, s.answer] for s in sides], left=3)
    ]
    first = sides[0]
    lines = []
    for other in sides[1:]:
        for line in differences(first.scores.configuration, other.scores.configuration):
            entry, _, said = line.strip().partition(": ")
            there, _, now = said.rpartition(", ")
            lines.append([other.name, entry, there.removesuffix(" there"), now.removesuffix(" now")])
    found.append(
        Table(
            f"What was asked otherwise than in {first.name}",
            ["run", "entry", f"in {first.name}", "in this run"],
            lines,
            4,
        )
    )
    columns = ["runs", "shared components", "Spearman's rho", "Pearson", f"of the {TOP} largest", "opposite signs"]
    agreement = list(filter(None, (_agreement(one, other) for one, other in combinations(sides, 2))))
    note = "In brackets: 95 % of redraws of the components. Opposite signs: among the largest of either."
    found.append(Table("Agreement", columns, agreement, note=note))
    joined = _joined(sides[0], sides[1])
    if joined is not None:
        change = (joined.b - joined.a).abs().sort_values(ascending=False, kind="stable").index[:CHANGED]
        rows = [
            [name, plus_minus(joined.a[name], joined.ea[name]), plus_minus(joined.b[name], joined.eb[name]),
             number(joined.b[name] - joined.a[name])]
            for name in change
        ]  # fmt: skip
        found.append(
            Table(f"What changed most from {sides[0].name} to {sides[1].name}",
                  ["component", sides[0].name, sides[1].name, "change"], rows,
                  note="Importance ± standard error over prompts.")
        )  # fmt: skip
    return found


def figures(sides: Sequence[Side]) -> list[Figure]:
    """One against the other, and importance by depth."""
    found = []
    joined = _joined(sides[0], sides[1])
    if joined is not None:
        found.append(Figure("scatter", f"{sides[1].name} against {sides[0].name}", _scatter(joined, sides)))
    found.append(Figure("depth", "Share of the summed absolute importance, by depth", _depth(sides)))
    return found


def write_side_by_side(sides: Sequence[Side], path: Path) -> None:
    """Write the page: one file that opens offline."""
    first = sides[0].scores
    write_tables_page(
        path,
        title=f"{len(sides)} runs side by side: " + ", ".join(side.name for side in sides),
        answer=[*headline(sides), *cautions(sides)],
        tables=tables(sides),
        figures=figures(sides),
        provenance={**first.provenance, "command": "assay report " + " ".join(side.name for side in sides)},
        details={side.name: {"configuration": side.scores.configuration, "cost": side.scores.cost} for side in sides},
    )


def _agreement(one: Side, other: Side) -> list[str] | None:
    joined = _joined(one, other)
    if joined is None:
        return None
    rho, low, high = rank_agreement(joined)
    tops = _top(joined, "a"), _top(joined, "b")
    either = list(tops[0] | tops[1])
    opposite = int((np.sign(joined.a[either]) != np.sign(joined.b[either])).sum())
    return [
        f"{one.name}, {other.name}",
        str(len(joined)),
        f"{number(rho, '')} [{number(low, '')}, {number(high, '')}]",
        number(float(np.corrcoef(joined.a, joined.b)[0, 1]), ""),
        f"{len(tops[0] & tops[1])} of {min(TOP, len(joined))}",
        f"{opposite} of {len(either)}",
    ]


def rank_agreement(joined: pd.DataFrame) -> tuple[float, float, float]:
    """Spearman's rho, and the percentiles 2.5 and 97.5 of it over redraws of the components (seed 0)."""
    if len(joined) < 3 or joined.a.nunique() == 1 or joined.b.nunique() == 1:
        return float("nan"), float("nan"), float("nan")
    draws = np.random.default_rng(0).integers(len(joined), size=(DRAWS, len(joined)))
    a, b = (joined[name].rank().to_numpy() for name in "ab")
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = [values[draws] - values[draws].mean(1, keepdims=True) for values in (a, b)]
        rho = (centred[0] * centred[1]).sum(1) / np.sqrt((centred[0] ** 2).sum(1) * (centred[1] ** 2).sum(1))
    low, high = np.nanpercentile(rho, [2.5, 97.5])
    return float(spearmanr(joined.a, joined.b).statistic), float(low), float(high)


def _joined(one: Side, other: Side) -> pd.DataFrame | None:
    """Importance of both by component; None where a name does not mean the same place."""
    if one.shape != other.shape:
        return None
    a, b = one.frame(), other.frame()
    shared = [name for name in a.index if name in set(b.index)]
    if not shared:
        return None
    a, b = a.loc[shared], b.loc[shared]
    return pd.DataFrame({"a": a.importance, "b": b.importance, "ea": a.error, "eb": b.error})


def _top(joined: pd.DataFrame, column: str) -> set[str]:
    return set(joined[column].abs().sort_values(ascending=False, kind="stable").index[:TOP])


def _scatter(joined: pd.DataFrame, sides: Sequence[Side]) -> go.Figure:
    figure = go.Figure()
    limits = [float(min(joined.a.min(), joined.b.min())), float(max(joined.a.max(), joined.b.max()))]
    figure.add_scatter(
        x=limits, y=limits, mode="lines", line={"color": INK_SOFT, "dash": "dot", "width": 1}, hoverinfo="skip"
    )
    agree = np.sign(joined.a) == np.sign(joined.b)
    for chosen, colour, symbol in ((agree, NEGATIVE, "circle"), (~agree, POSITIVE, "diamond-open")):
        part = joined[chosen]
        figure.add_scatter(
            x=part.a, y=part.b, mode="markers", text=list(part.index),
            marker={"color": colour, "symbol": symbol, "size": 7},
            hovertemplate="%{text}<br>%{x:+.4g}, %{y:+.4g}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text=f"importance in {sides[0].name}")
    figure.update_yaxes(title_text=f"importance in {sides[1].name}")
    return styled(figure.update_layout(showlegend=False), height=420)


def _depth(sides: Sequence[Side]) -> go.Figure:
    figure = go.Figure()
    depths = min(MOST_DEPTHS, *(side.shape[0] for side in sides))
    for number_of, side in enumerate(sides):
        layers = np.array([component.layer for component in side.scores.components])
        size = np.abs(side.scores.importance)
        bins = layers * depths // side.shape[0]
        shares = np.bincount(bins, size, depths) / (size.sum() or 1.0)
        figure.add_scatter(
            x=(np.arange(depths) + 0.5) / depths, y=shares, name=side.name, mode="lines+markers",
            line={"color": SEVERAL_COLOURS[number_of % len(SEVERAL_COLOURS)]},
            hovertemplate="depth %{x:.2f}: %{y:.1%}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text="depth: 0 first layer, 1 last", range=[0, 1])
    figure.update_yaxes(title_text="share", tickformat=".0%", rangemode="tozero")
    return styled(figure.update_layout(legend={"orientation": "h", "y": -0.25}), height=420)
