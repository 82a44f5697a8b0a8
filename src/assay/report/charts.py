"""Charts of score pages as SVG: values with their intervals, estimates against exact effects, cost by stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from assay.report.scales import ticks
from assay.report.svg import element, path, text, upright

WIDTH = 560


@dataclass(frozen=True)
class Row:
    """A value with up to two intervals; ends that are not finite are left out."""

    name: str
    value: float
    thick: tuple[float, float]
    thin: tuple[float, float]
    exact: bool


@dataclass(frozen=True)
class Point:
    """An estimate, and the exact effect or the interval that it should lie in."""

    name: str
    estimate: float
    exact: float | None
    interval: tuple[float, float] | None
    flagged: bool = False


def intervals_chart(rows: Sequence[Row], title: str) -> Markup:
    """Values below each other: a filled dot where known exactly, an open one where estimated."""
    left, right, top, pitch = 92, 16, 8, 20
    bottom = top + pitch * len(rows)
    ends = [end for row in rows for end in (row.value, *row.thick, *row.thin) if math.isfinite(end)]
    axis = Axis([0.0, *ends], left, WIDTH - right)
    parts = [axis.across(top, bottom, title)]
    for i, row in enumerate(rows):
        y, sign = top + pitch * (i + 0.5), sign_of(row.value)
        parts.append(text(left - 8, y + 4, row.name, "end", class_="strong"))
        for (low, high), width, opacity in ((row.thin, 1.5, 0.55), (row.thick, 4, 1)):
            if high > low:
                line = ("M", axis.place(low), y, "H", axis.place(high))
                parts.append(path(*line, class_=sign, stroke_width=width, stroke_opacity=opacity))
        dot = sign if row.exact else f"{sign} open"
        parts.append(element("circle", class_=dot, cx=axis.place(row.value), cy=y, r=4.2, stroke_width=2))
    return _chart(bottom + 42, parts, "Values with their intervals")


def scatter_chart(points: Sequence[Point], across: str, up: str) -> Markup:
    """Estimates against exact effects (triangles: flagged) and intervals; on the dashed line they agree."""
    left, right, top, height = 62, 16, 10, 380
    bottom = height - 46
    x = Axis([0.0, *(point.estimate for point in points)], left, WIDTH - right)
    ends = [end for point in points for end in ((point.exact,) if point.exact is not None else point.interval or ())]
    y = Axis([0.0, *(end for end in ends if math.isfinite(end))], bottom, top)
    parts = [x.across(top, bottom, across), y.up(left, WIDTH - right, up)]
    low, high = max(x.low, y.low), min(x.high, y.high)
    diagonal = ("M", x.place(low), y.place(low), "L", x.place(high), y.place(high))
    parts.append(path(*diagonal, class_="axis", stroke_dasharray="4 4"))
    # The few that are known exactly are drawn over the many that are not.
    for point in sorted(points, key=lambda point: point.exact is not None):
        place, name = x.place(point.estimate), element("title", point.name)
        if point.exact is None:
            low, high = point.interval or (math.nan, math.nan)
            if high > low:
                line = f"M{place:.1f} {y.place(low):.1f}V{y.place(high):.1f}"
                parts.append(element("path", name, d=line, class_="axis", stroke_width=1.5))
        elif point.flagged:
            triangle = f"M{place:.1f} {y.place(point.exact) - 6:.1f}l5 9h-10z"
            parts.append(element("path", name, d=triangle, class_=sign_of(point.exact)))
        else:
            where = {"cx": place, "cy": y.place(point.exact), "r": 4}
            parts.append(element("circle", name, class_=sign_of(point.exact), fill_opacity=0.75, **where))
    return _chart(height, parts, f"{up} against {across}")


def bars_chart(rows: Sequence[tuple[str, float, str]], title: str) -> Markup:
    """Name, length and label of bars below each other."""
    left, right, top, pitch, width = 270, 60, 6, 24, 700
    bottom = top + pitch * len(rows)
    axis = Axis([0.0, *(length for _, length, _ in rows)], left, width - right)
    parts = [axis.across(top, bottom, title)]
    for i, (name, length, label) in enumerate(rows):
        y, end = top + pitch * i + 5, axis.place(length)
        parts.append(text(left - 8, y + 11, name, "end", class_="strong"))
        parts.append(element("rect", class_="bar", x=left, y=y, width=max(0.5, end - left), height=pitch - 10))
        parts.append(text(end + 8, y + 11, label, "start"))
    return _chart(bottom + 42, parts, title, width)


def sign_of(value: float) -> str:
    """The class of what has this sign."""
    return "positive" if value >= 0 else "negative"


class Axis:
    """Places values between two ends of the picture."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self.ticks = ticks(low, high if high > low else low + 1.0)
        self.low, self.high, self.start, self.end = self.ticks[0], self.ticks[-1], start, end

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def across(self, top: float, bottom: float, title: str) -> Markup:
        """Lines, numbers and title below."""
        found = Markup("")
        for value in self.ticks:
            x = self.place(value)
            found += path("M", x, top, "V", bottom, class_="axis" if value == 0 else "grid")
            found += text(x, bottom + 16, f"{value:g}", "middle")
        return found + text((self.start + self.end) / 2, bottom + 36, title, "middle")

    def up(self, left: float, right: float, title: str) -> Markup:
        """Lines, numbers and title on the left."""
        found = Markup("")
        for value in self.ticks:
            y = self.place(value)
            found += path("M", left, y, "H", right, class_="axis" if value == 0 else "grid")
            found += text(left - 6, y + 4, f"{value:g}", "end")
        return found + upright(13, (self.start + self.end) / 2, title)


def _chart(height: float, parts: Sequence[Markup], label: str, width: float = WIDTH) -> Markup:
    """The picture; where it would become too small to read, it scrolls."""
    box, style = f"0 0 {width:.0f} {height:.0f}", f"max-width: {1.25 * width:.0f}px; min-width: 420px"
    drawn = element("svg", *parts, class_="chart", viewBox=box, style=style, role="img", aria_label=label)
    return element("div", drawn, class_="scroll")
