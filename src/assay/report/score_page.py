"""The page of scores, screened or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from assay.reliability import bootstrap_mean
from assay.report import screening, words
from assay.report.charts import Point, Row, bars_chart, intervals_chart, scatter_chart
from assay.report.explored import explored, verdict
from assay.report.html import Figure, data, frame, render, write
from assay.report.layer_map import Block, blocks, largest_of, layer_map
from assay.scores import Scores
from assay.screening import ScreenedScores
from assay.screening.result import SOURCES

COMPONENTS_SHOWN = 50
DRAWN = 20
FLAGGED_SHOWN = 30
MOST_POINTS = 2000


def write_page(scores: Scores, path: str | Path) -> None:
    """Write the page of a run: map, intervals, top components, baseline with prompts, how to reproduce it."""
    write(score_page(scores), path)


def score_page(scores: Scores) -> str:
    """The page as text."""
    drawn = blocks(scores.components)
    top = top_rows(scores, COMPONENTS_SHOWN)
    importance = scores.importance
    largest = np.abs(importance).max()
    cells = [members for block in drawn for row in block.rows.values() for members in row.values()]
    shown = {largest_of(importance, members) for members in cells} | {row["index"] for row in top}
    screened = isinstance(scores, ScreenedScores)
    figures = [*([of_estimates(scores)] if has_estimates(scores) else []), of_intervals(scores, top[:DRAWN])]
    return render(
        "screening.html" if screened else "scores.html",
        figures=figures,
        scores=scores,
        screening=screening,
        verdict=verdict,
        map=layer_map(scores, drawn),
        map_title=map_title(scores, drawn),
        marks=map_marks(scores, max(map(len, cells))),
        facts=facts(scores),
        largest=f"{largest:.3g}",
        quarter=f"{largest / 4:.2g}",
        explored=data(explored(scores, sorted(shown))),
        top=top,
        flagged=flagged_rows(scores) if isinstance(scores, ScreenedScores) else [],
        stages=of_stages(scores) if isinstance(scores, ScreenedScores) else None,
        shares=words.has_shares(scores),
        details={"configuration": scores.configuration, "cost": scores.cost, "provenance": scores.provenance},
        **frame(scores.pairs, scores.baseline),
    )


def facts(scores: Scores) -> list[tuple[str, str]]:
    """The run in a few words, by name."""
    difference = f"{scores.baseline.difference:+.4g} {scores.unit if scores.unit != 'none' else ''}".strip()
    shared = [("baseline difference", difference), ("cost", words.spent(scores.cost))]
    if not isinstance(scores, ScreenedScores):
        return [("method", scores.method), *shared]
    return [("level", f"{scores.level:.0%}"), ("exact runs", f"{scores.runs} of {len(scores.components)}"), *shared]


def map_title(scores: Scores, drawn: list[Block]) -> str:
    """What the map shows, and what share a cell when there are more components than cells."""
    title = f"Importance of each component ({words.scale(scores)})"
    most = max(len(members) for block in drawn for row in block.rows.values() for members in row.values())
    if most > 1:
        title = f"Largest importance among up to {most} components a cell ({words.scale(scores)})"
    where = {component.position for component in scores.components}
    return title if len(where) > 1 or where == {None} else f"{title} @{where.pop()}"


def map_marks(scores: Scores, most: int) -> list[tuple[str, str]]:
    """The key of the map: kind of mark, if any, and what it says."""
    if not isinstance(scores, ScreenedScores):
        return [("", words.verdicts(scores))]
    if most > 1:
        return [("", "hover or choose a cell for the verdict of its largest")]
    found = [("leader", f"top {len(scores.leaders)}")] if len(scores.leaders) else []
    if scores.certified:
        return [*found, ("", "every component verified: patched exactly, or known to change nothing")]
    found.append(("verified", "verified"))
    if "bounded" in scores.verdicts:
        found.append(("", "unmarked: bounded, by an interval"))
    if "unresolved" in scores.verdicts:
        found.append(("unresolved", "unresolved"))
    if scores.flagged.any():
        found.append(("flagged", "flagged: curvature"))
    return found


def top_rows(scores: Scores, count: int) -> list[dict[str, Any]]:
    """The largest components, with their indices."""
    names = {component.name: i for i, component in enumerate(scores.components)}
    rows: list[dict[str, Any]] = scores.top(count).to_dict("records")
    return [{**row, "index": names[row["component"]]} for row in rows]


def of_intervals(scores: Scores, rows: list[dict[str, Any]]) -> Figure:
    """The largest components with interval and spread over prompts."""
    many = scores.values.shape[1] > 1
    found = []
    for row in rows:
        if isinstance(scores, ScreenedScores):
            thick, thin = (row["low"], row["high"]), (row["prompts_low"], row["prompts_high"])
        else:
            spread = bootstrap_mean(scores.sign * scores.values[[row["index"]]], seed=0) if many else None
            thick = (np.nan, np.nan)
            thin = (float(spread.lower[0]), float(spread.upper[0])) if spread else thick
        found.append(Row(row["component"], row["importance"], thick, thin, row["verdict"] == "verified"))
    note = "Filled: measured exactly; open: estimated. Thin line: what other prompts might give (95 %, bootstrap)."
    if isinstance(scores, ScreenedScores) and not scores.certified and scores.expected_outside is not None:
        note += f" Thick line: interval of the effect on these prompts ({scores.level:.0%})."
    return Figure(
        "intervals", f"The {len(rows)} largest", intervals_chart(found, f"importance ({words.scale(scores)})"), note
    )


def has_estimates(scores: Scores) -> bool:
    """Whether some component has both an estimate and something that it is held against."""
    if isinstance(scores, ScreenedScores):
        return bool(np.isfinite(scores.first_order).all(1).any())
    return scores.gap is not None


def of_estimates(scores: Scores) -> Figure:
    """First order against the exact effect or the interval; or a method against what it misses."""
    if isinstance(scores, ScreenedScores):
        estimates = scores.sign * scores.first_order.mean(1)
        ends = np.sort(scores.sign * np.stack([scores.lower, scores.upper]), axis=0)
        chosen = [i for i in range(len(estimates)) if np.isfinite(estimates[i])]
        chosen = sorted(chosen, key=lambda i: (scores.verdicts[i] != "verified", -abs(estimates[i])))[:MOST_POINTS]
        points = [
            Point(
                scores.components[i].name,
                float(estimates[i]),
                float(scores.importance[i]) if scores.verdicts[i] == "verified" else None,
                (float(ends[0, i]), float(ends[1, i])),
                bool(scores.flagged[i]),
            )
            for i in chosen
        ]
        across = f"first-order estimate ({scores.unit})"
        note = (
            "Dots: patched exactly (triangles: flagged). Bars: the interval of those that were not. On the dashed line "
            "the estimate is right."
        )
    else:
        assert scores.gap is not None
        exact = scores.sign * (scores.values - scores.gap).mean(1)
        chosen = np.argsort(-np.abs(scores.importance), kind="stable")[:MOST_POINTS].tolist()
        points = [Point(scores.components[i].name, float(scores.importance[i]), float(exact[i]), None) for i in chosen]
        across, note = f"{scores.method} ({scores.unit})", "On the dashed line the estimate is right."
    return Figure("estimates", "Estimate against exact effect", scatter_chart(points, across, "exact effect"), note)


def flagged_rows(scores: ScreenedScores) -> list[tuple[str, ...]]:
    """What was flagged, largest curvature first, and what became of it."""
    bend = np.abs(scores.quadratic.mean(1))
    order = sorted(np.flatnonzero(scores.flagged).tolist(), key=lambda i: -bend[i])[:FLAGGED_SHOWN]
    signed = "{:+.3g}".format
    return [
        (
            scores.components[i].name,
            signed(scores.sign * scores.first_order[i].mean()),
            signed(scores.sign * scores.quadratic[i].mean()),
            screening.number(scores.reliability[i]),
            SOURCES[scores.source[i]],
            signed(scores.importance[i]),
            verdict(scores.verdicts[i]),
        )
        for i in order
    ]


def of_stages(scores: ScreenedScores) -> Markup:
    """What each stage cost."""
    return bars_chart(
        [(stage.name, stage.forward_equivalents, f"{stage.forward_equivalents:.1f}") for stage in scores.stages],
        "forward-equivalents (one forward pass over all prompts = 1)",
    )
