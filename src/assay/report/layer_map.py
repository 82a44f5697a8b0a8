"""The map of a run: layers from left to right, heads, neurons or positions below each other; as SVG.

A cell that stands for several components (bins of neurons, a head at each position) is coloured by the largest of
them. Colour grows with the square root of the importance, since a few components usually exceed all others by far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from markupsafe import Markup

from assay.report.svg import element, path, text
from assay.scores import Scores
from assay.screening import ScreenedScores
from assay.sites import Component

MOST_ROWS, BINS = 64, 32
"""Of one kind of site with a row each; and how many rows more share."""
NAMES = {"mlps": "MLP", "attention": "attention", "q": "queries", "k": "keys", "v": "values"}
WIDTH = 700
LEFT, TOP, GAP, CAPTION = 88, 2, 8, 18
WIDEST, LOWEST, HIGHEST, ALL_HIGH = 64, 9, 28, 300
"""Of cells; and what all rows should have room in."""
MARK_ON = 0.55
"""Of colour, from which marks are light on dark."""


@dataclass(frozen=True)
class Block:
    """One kind of site: rows of cells, each the indices of the components in it, by layer."""

    name: str
    rows: dict[str, dict[int, list[int]]]


@dataclass(frozen=True)
class Box:
    """A cell's place."""

    x: float
    y: float
    width: float
    height: float


def blocks(components: Sequence[Component]) -> list[Block]:
    """How the components are laid out."""
    found = []
    for site in dict.fromkeys(component.site for component in components):
        mine = [i for i, component in enumerate(components) if component.site == site]
        numbers = [_row(components[i]) for i in mine]
        count = 1 + max(numbers)
        width = ceil(count / BINS) if count > MOST_ROWS else 1
        rows: dict[str, dict[int, list[int]]] = {}
        for i, number in sorted(zip(mine, numbers, strict=True), key=lambda pair: pair[1]):
            first = number // width * width
            label = "" if number < 0 else str(first) if width == 1 else f"{first}–{first + width - 1}"
            rows.setdefault(label, {}).setdefault(components[i].layer, []).append(i)
        name = NAMES.get(site, site)
        found.append(
            Block(name if components[mine[0]].unit is not None or len(rows) == 1 else f"{name} by position", rows)
        )
    return found


def largest_of(importance: np.ndarray, members: Sequence[int]) -> int:
    """The component that a cell shows."""
    return members[int(np.abs(importance[members]).argmax())]


def layer_map(scores: Scores, drawn: Sequence[Block]) -> Markup:
    """The map as SVG; ``data-c`` of a cell is the index of the component that it shows."""
    layers = [component.layer for component in scores.components]
    first, count = min(layers), 1 + max(layers) - min(layers)
    across = min(WIDEST, (WIDTH - LEFT) / count)
    down = max(LOWEST, min(HIGHEST, across, ALL_HIGH / sum(len(block.rows) for block in drawn)))
    parts, y, number = [], float(TOP), 0
    cells = _Cells(scores)
    for block in drawn:
        alone = len(block.rows) == 1
        if not alone:
            parts.append(text(LEFT, y + 12, block.name, "start", class_="strong"))
            y += CAPTION
        for place, (label, row) in enumerate(block.rows.items()):
            if alone:
                parts.append(text(LEFT - 8, y + down / 2 + 4, block.name, "end", class_="strong"))
            elif place % ceil(13 / down) == 0:
                parts.append(text(LEFT - 8, y + down / 2 + 4, label, "end"))
            for column in range(count):
                box = Box(LEFT + across * column, y, across, down)
                parts.append(cells.draw(row.get(first + column, ()), box, column, number))
            y, number = y + down, number + 1
        y += GAP
    for column in range(0, count, ceil(22 / across)):
        parts.append(text(LEFT + across * (column + 0.5), y + 8, str(first + column), "middle"))
    parts.append(text(LEFT - 8, y + 8, "layer", "end"))
    width, height = max(LEFT + across * count + 4, 260), y + 14
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        style=f"max-width: {1.25 * width:.0f}px; min-width: {min(width, LEFT + 13 * count):.0f}px",
        role="group",
        aria_label="Map of components by layer",
    )


class _Cells:
    """Draws cells with their marks: a dot where the effect is known exactly, a cross where nothing is sure, a corner
    where curvature is flagged, a frame around the leaders."""

    def __init__(self, scores: Scores) -> None:
        self.scores, self.importance = scores, scores.importance
        self.top = float(np.abs(self.importance).max()) or 1.0
        self.screened = scores if isinstance(scores, ScreenedScores) else None
        self.leaders = set(self.screened.leaders.tolist()) if self.screened else set()

    def draw(self, members: Sequence[int], box: Box, column: int, row: int) -> Markup:
        place = {"x": box.x, "y": box.y, "width": box.width, "height": box.height, "rx": 2}
        if not members:
            return element("rect", class_="cell none", **place)
        shown = largest_of(self.importance, members)
        strength = float(np.sqrt(abs(self.importance[shown]) / self.top))
        cell = element(
            "rect",
            class_=f"cell {'positive' if self.importance[shown] >= 0 else 'negative'}",
            fill_opacity=strength,
            data_c=shown,
            data_x=column,
            data_y=row,
            role="button",
            aria_label=self.label(shown, len(members)),
            **place,
        )
        return cell + self.marks(shown, box, strength > MARK_ON) if len(members) == 1 else cell

    def label(self, shown: int, members: int) -> str:
        """What a screen reader says of a cell."""
        said = f"{self.scores.components[shown].name}, importance {self.importance[shown]:+.3g}"
        if self.screened:
            said += f", {self.screened.verdicts[shown]}{', flagged' if self.screened.flagged[shown] else ''}"
        return said if members == 1 else f"largest of {members}: {said}"

    def marks(self, shown: int, box: Box, light: bool) -> Markup:
        found, scores = Markup(""), self.screened
        if scores is None:
            return found
        on = " on" if light else ""
        x, y, r = box.x + box.width / 2, box.y + box.height / 2, min(box.width, box.height) * 0.13 + 0.8
        if shown in self.leaders:
            width, height = max(1.0, box.width - 4.8), max(1.0, box.height - 4.8)
            found += element(
                "rect", class_=f"mark{on}", x=box.x + 2.4, y=box.y + 2.4, width=width, height=height, rx=1.5
            )
        if scores.verdicts[shown] == "verified" and not scores.certified:
            found += element("circle", class_=f"mark dot{on}", cx=x, cy=y, r=r)
        if scores.verdicts[shown] == "unresolved":
            cross = ("M", x - r, y - r, "L", x + r, y + r, "M", x + r, y - r, "L", x - r, y + r)
            found += path(*cross, class_=f"mark{on}")
        if scores.flagged[shown]:
            corner = ("M", box.x + box.width - 2, box.y + 2, "h", -2.6 * r, "l", 2.6 * r, 2.6 * r, "z")
            found += path(*corner, class_=f"mark corner{on}")
        return found


def _row(component: Component) -> int:
    """The number of a component's row within its kind; -1 where a layer has one of them."""
    if component.unit is not None:
        return component.unit
    return component.position if isinstance(component.position, int) else -1
