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

from assay.report.words import KIND_WORDS
from assay.scores import Scores
from assay.screening import ScreenedScores
from assay.sites import KINDS, Component

MOST_ROWS = 32
"""Of one kind of site; more share rows."""
WIDTH = 700
LEFT, TOP, GAP = 88, 6, 8
MARK_ON = 0.55
"""Of colour, from which marks are light on dark."""


@dataclass(frozen=True)
class Block:
    """One kind of site: rows of cells, each the indices of the components in it, by layer."""

    name: str
    rows: dict[str, dict[int, list[int]]]


def blocks(components: Sequence[Component]) -> list[Block]:
    """How the components are laid out."""
    found = []
    for site in dict.fromkeys(component.site for component in components):
        mine = [i for i, component in enumerate(components) if component.site == site]
        numbers = [_row(components[i]) for i in mine]
        width = max(1, ceil((max(numbers) + 1) / MOST_ROWS))
        rows: dict[str, dict[int, list[int]]] = {}
        for i, number in sorted(zip(mine, numbers, strict=True), key=lambda pair: pair[1]):
            first = number // width * width
            label = "" if number < 0 else str(first) if width == 1 else f"{first}–{first + width - 1}"
            rows.setdefault(label, {}).setdefault(components[i].layer, []).append(i)
        found.append(Block(KINDS[site].unit_name if components[mine[0]].unit is not None else site, rows))
    return found


def layer_map(scores: Scores, drawn: Sequence[Block]) -> Markup:
    """The map as SVG; ``data-c`` of a cell is the index of its largest component."""
    size = np.abs(scores.importance)
    top = float(size.max()) or 1.0
    layers = [component.layer for component in scores.components]
    first, count = min(layers), 1 + max(layers) - min(layers)
    rows = sum(len(block.rows) for block in drawn)
    across = min(64.0, (WIDTH - LEFT) / count)
    down = max(9.0, min(28.0, across, 300 / rows))
    width = max(LEFT + across * count + 4, 260)
    parts, y, number = [], float(TOP), 0
    marks = Marks(scores)
    for block in drawn:
        named = len(block.rows) > 1
        words = KIND_WORDS.get(block.name, block.name)
        if named:
            middle = y + down * len(block.rows) / 2
            parts.append(
                Markup('<text class="strong" transform="translate(14 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>')
                .format(middle, words)
            )  # fmt: skip
        every = ceil(13 / down)
        for place, (label, cells) in enumerate(block.rows.items()):
            text = label if named else words.removesuffix("s") if words != "MLPs" else "MLP"
            if place % every == 0:
                parts.append(
                    Markup('<text{} x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                        Markup("" if named else ' class="strong"'), LEFT - 8, y + down / 2 + 4, text
                    )
                )
            for layer in range(first, first + count):
                x = LEFT + across * (layer - first)
                members = cells.get(layer)
                box = Markup('x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"').format(x, y, across, down)
                if not members:
                    parts.append(Markup('<rect class="cell none" {}/>').format(box))
                    continue
                best = max(members, key=lambda i: size[i])
                strength = float(np.sqrt(size[best] / top))
                sign = "positive" if scores.importance[best] >= 0 else "negative"
                parts.append(
                    Markup(
                        '<rect class="cell {}" {} fill-opacity="{:.3f}" data-c="{}" data-x="{}" data-y="{}" '
                        'role="button" aria-label="{}"/>'
                    ).format(sign, box, strength, best, layer - first, number, label_of(scores, best, len(members)))
                )
                if len(members) == 1:
                    parts.append(marks.draw(best, x, y, across, down, strength > MARK_ON))
            y, number = y + down, number + 1
        y += GAP
    every = ceil(22 / across)
    for layer in range(first, first + count, every):
        parts.append(
            Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(
                LEFT + across * (layer - first + 0.5), y + 8, layer
            )
        )
    parts.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">layer</text>').format(LEFT - 8, y + 8))
    height = y + 14
    return Markup(
        '<svg viewBox="0 0 {0:.0f} {1:.0f}" style="max-width: {2:.0f}px; min-width: {3:.0f}px" role="group" '
        'aria-label="Map of components by layer">{4}</svg>'
    ).format(width, height, 1.25 * width, min(width, LEFT + 13 * count), Markup("").join(parts))


def label_of(scores: Scores, index: int, members: int) -> str:
    """What a screen reader says of a cell."""
    name = scores.components[index].name
    value = f"{name}, importance {scores.importance[index]:+.3g}"
    if isinstance(scores, ScreenedScores):
        value += f", {scores.verdicts[index]}{', flagged' if scores.flagged[index] else ''}"
    return value if members == 1 else f"largest of {members}: {value}"


class Marks:
    """A dot where the effect is known exactly, a cross where nothing is sure, a corner where curvature is flagged, a
    frame around the leaders."""

    def __init__(self, scores: Scores) -> None:
        self.screened = scores if isinstance(scores, ScreenedScores) else None
        self.leaders = set(self.screened.leaders.tolist()) if self.screened else set()

    def draw(self, i: int, x: float, y: float, across: float, down: float, light: bool) -> Markup:
        """The marks of component ``i`` in its cell."""
        if self.screened is None:
            return Markup("")
        on, found = " on" if light else "", Markup("")
        middle, centre = x + across / 2, y + down / 2
        r = min(across, down) * 0.13 + 0.8
        if i in self.leaders:
            found += Markup('<rect class="mark{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1.5"/>').format(
                on, x + 2.4, y + 2.4, across - 4.8, down - 4.8
            )  # fmt: skip
        if self.screened.verdicts[i] == "verified" and not self.screened.certified:
            found += Markup('<circle class="mark dot{}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>').format(
                on, middle, centre, r
            )
        if self.screened.verdicts[i] == "unresolved":
            found += Markup('<path class="mark{}" d="M{:.1f} {:.1f}l{s:.1f} {s:.1f}m0 -{s:.1f}l-{s:.1f} {s:.1f}"/>').format(
                on, middle - r, centre - r, s=2 * r
            )  # fmt: skip
        if self.screened.flagged[i]:
            found += Markup('<path class="mark corner{}" d="M{:.1f} {:.1f}h-{s:.1f}l{s:.1f} {s:.1f}z"/>').format(
                on, x + across - 2, y + 2, s=2.6 * r
            )
        return found


def _row(component: Component) -> int:
    """The number of a component's row within its kind; -1 where a layer has one of them."""
    if component.unit is not None:
        return component.unit
    return component.position if isinstance(component.position, int) else -1
