"""Charts of score pages as SVG: values with their intervals, estimates against exact effects, cost by stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from assay.report.scales import ticks

WIDTH = 560


@dataclass(frozen=True)
class Row:
    """A value with up to two intervals, one inside a wider or narrower other; ends that are not finite are left out."""

    name: str
    value: float
    inner: tuple[float, float]
    outer: tuple[float, float]
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
    ends = [end for row in rows for end in (row.value, *row.inner, *row.outer) if math.isfinite(end)]
    axis = Axis([0.0, *ends], left, WIDTH - right)
    parts = [axis.across(top, bottom, title)]
    for i, row in enumerate(rows):
        y = top + pitch * (i + 0.5)
        sign = "positive" if row.value >= 0 else "negative"
        parts.append(_text(left - 8, y + 4, row.name, "end", "strong"))
        for (low, high), width, opacity in ((row.outer, 1.5, 0.55), (row.inner, 4, 1)):
            if math.isfinite(low) and math.isfinite(high) and high > low:
                parts.append(
                    Markup('<path class="{}" d="M{:.1f} {:.1f}H{:.1f}" stroke-width="{}" stroke-opacity="{}"/>').format(
                        sign, axis.place(low), y, axis.place(high), width, opacity
                    )
                )
        parts.append(_dot(axis.place(row.value), y, sign, row.exact, 4.2))
    return _svg(bottom + 42, parts, "Values with their intervals")


def scatter_chart(points: Sequence[Point], across: str, up: str) -> Markup:
    """Estimates against exact effects (filled; triangles: flagged) and intervals (open); on the diagonal they agree."""
    left, right, top, height = 62, 16, 10, 380
    bottom = height - 46
    x = Axis([0.0, *(point.estimate for point in points)], left, WIDTH - right)
    ends = [
        end for p in points for end in ((p.exact,) if p.exact is not None else p.interval or ()) if math.isfinite(end)
    ]
    y = Axis([0.0, *ends], bottom, top)
    parts = [x.across(top, bottom, across), y.up(left, WIDTH - right, up)]
    low, high = max(x.low, y.low), min(x.high, y.high)
    parts.append(
        Markup('<path class="axis" stroke-dasharray="4 4" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(
            x.place(low), y.place(low), x.place(high), y.place(high)
        )
    )
    # The few that are known exactly are drawn over the many that are not.
    for point in sorted(points, key=lambda point: point.exact is not None):
        place = x.place(point.estimate)
        name = Markup("<title>{}</title>").format(point.name)
        if point.exact is not None:
            sign, at = "positive" if point.exact >= 0 else "negative", y.place(point.exact)
            if point.flagged:
                shape = Markup('<path class="{}" d="M{:.1f} {:.1f}l5 9h-10z">{}</path>').format(
                    sign, place, at - 6, name
                )
            else:
                shape = Markup(
                    '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="4" fill-opacity="0.75">{}</circle>'
                ).format(sign, place, at, name)
            parts.append(shape)
        elif point.interval and all(map(math.isfinite, point.interval)):
            parts.append(
                Markup('<path class="axis" stroke-width="1.5" d="M{:.1f} {:.1f}V{:.1f}">{}</path>').format(
                    place, y.place(point.interval[0]), y.place(point.interval[1]), name
                )
            )
    return _svg(height, parts, f"{up} against {across}")


def bars_chart(rows: Sequence[tuple[str, float, str]], title: str) -> Markup:
    """Name, length and label of bars below each other."""
    left, right, top, pitch = 250, 90, 6, 24
    bottom = top + pitch * len(rows)
    axis = Axis([0.0, *(length for _, length, _ in rows)], left, WIDTH + 140 - right)
    parts = [axis.across(top, bottom, title)]
    for i, (name, length, label) in enumerate(rows):
        y = top + pitch * i + 5
        parts.append(_text(left - 8, y + 11, name, "end", "strong"))
        parts.append(
            Markup('<rect class="negative" x="{}" y="{:.1f}" width="{:.1f}" height="{}"/>').format(
                left, y, max(0.5, axis.place(length) - left), pitch - 10
            )
        )
        parts.append(_text(axis.place(length) + 8, y + 11, label, "start"))
    return _svg(bottom + 42, parts, title, WIDTH + 140)


class Axis:
    """Places values between two ends of the picture."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self.ticks = ticks(low, high if high > low else low + 1.0)
        self.low, self.high, self.start, self.end = self.ticks[0], self.ticks[-1], start, end

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def across(self, top: float, bottom: float, title: str) -> Markup:
        """Ticks and title below."""
        found = Markup("")
        for value in self.ticks:
            x = self.place(value)
            found += Markup('<path class="{}" d="M{:.1f} {:.1f}V{:.1f}"/>').format(_line(value), x, top, bottom)
            found += _text(x, bottom + 16, f"{value:g}", "middle")
        return found + _text((self.start + self.end) / 2, bottom + 36, title, "middle")

    def up(self, left: float, right: float, title: str) -> Markup:
        """Ticks and title on the left."""
        found = Markup("")
        for value in self.ticks:
            y = self.place(value)
            found += Markup('<path class="{}" d="M{:.1f} {:.1f}H{:.1f}"/>').format(_line(value), left, y, right)
            found += _text(left - 6, y + 4, f"{value:g}", "end")
        middle = (self.start + self.end) / 2
        return found + Markup(
            '<text transform="translate(13 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>'
        ).format(middle, title)


def _line(value: float) -> str:
    return "axis" if value == 0 else "grid"


def _dot(x: float, y: float, sign: str, filled: bool, r: float) -> Markup:
    return Markup('<circle class="{}{}" cx="{:.1f}" cy="{:.1f}" r="{}" stroke-width="2"/>').format(
        sign, "" if filled else " open", x, y, r
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(kind, x, y, anchor, text)


def _svg(height: float, parts: Sequence[Markup], label: str, width: float = WIDTH) -> Markup:
    return Markup(
        '<div class="scroll"><svg class="chart" viewBox="0 0 {0:.0f} {1:.0f}" style="max-width: {2:.0f}px; min-width: 420px" '
        'role="img" aria-label="{3}">{4}</svg></div>'
    ).format(width, height, 1.25 * width, label, Markup("").join(parts))
