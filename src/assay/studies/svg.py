"""Line charts as static SVG, for pages that are read where no script runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from assay.report.scales import ticks

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 20, 50
COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#b35806", "#4d4d4d", "#c51b7d")
GREY = "#667085"
"""Readable on white and on black."""


@dataclass(frozen=True)
class Line:
    """Points joined in their order; values that are not finite are left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False

    @property
    def points(self) -> list[tuple[float, float]]:
        pairs = zip(self.x, self.y, strict=True)
        return [(float(x), float(y)) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


@dataclass(frozen=True)
class Dots:
    """One value with its interval for each row of a chart; those that are not finite are left out."""

    name: str
    values: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]


def line_chart(lines: Sequence[Line], *, x_title: str, y_title: str, log_x: bool = False, log_y: bool = False) -> str:
    """The chart as an SVG document. On a logarithmic axis values that are not positive are left out."""
    shown = [
        (line, [(x, y) for x, y in line.points if (x > 0 or not log_x) and (y > 0 or not log_y)]) for line in lines
    ]
    every = [point for _, points in shown for point in points]
    across = _Axis([x for x, _ in every], log_x, LEFT, WIDTH - RIGHT)
    up = _Axis([y for _, y in every], log_y, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{GREY}">'
    ]
    for value in across.ticks:
        x = across.place(value)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{GREY}" stroke-opacity="0.2"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    for value in up.ticks:
        y = up.place(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity="0.2"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text x="{middle[0]}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_title)}</text>')
    parts.append(
        f'<text transform="translate(16 {middle[1]}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>'
    )
    for number, (line, points) in enumerate(shown):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        places = [(across.place(x), up.place(y)) for x, y in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) if places else ""
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not line.dashed:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        y = TOP + 12 + 20 * number
        x = WIDTH - RIGHT + 12
        parts.append(f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{x + 24}" y="{y}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def dot_chart(rows: Sequence[str], series: Sequence[Dots], *, x_title: str) -> str:
    """Dots with intervals, one line a series within each named row, as an SVG document."""
    left, pitch = 180, 11 * len(series) + 10
    bottom = TOP + pitch * len(rows)
    ends = [end for each in series for end in (*each.values, *each.lower, *each.upper) if math.isfinite(end)]
    across = _Axis([0.0, *ends], False, left, WIDTH - RIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 50}" width="{WIDTH}" '
        f'height="{bottom + 50}" font-family="sans-serif" font-size="12" fill="{GREY}">'
    ]
    for value in across.ticks:
        x, strength = across.place(value), 0.8 if value == 0 else 0.2
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="{GREY}" stroke-opacity="{strength}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    middle = (left + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">{escape(x_title)}</text>')
    for row, name in enumerate(rows):
        centre = TOP + pitch * (row + 0.5)
        parts.append(f'<text x="{left - 8}" y="{centre + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        for number, each in enumerate(series):
            colour, y = COLOURS[number % len(COLOURS)], centre + 11 * (number - (len(series) - 1) / 2)
            if not math.isfinite(each.values[row]):
                continue
            if math.isfinite(each.lower[row]) and math.isfinite(each.upper[row]):
                low, high = across.place(each.lower[row]), across.place(each.upper[row])
                parts.append(f'<path d="M{low:.1f} {y:.1f}H{high:.1f}" stroke="{colour}" stroke-width="2"/>')
            x = across.place(each.values[row])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    for number, each in enumerate(series):
        x, y, colour = WIDTH - RIGHT + 12, TOP + 12 + 20 * number, COLOURS[number % len(COLOURS)]
        parts.append(f'<circle cx="{x + 8}" cy="{y - 4}" r="3.5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 24}" y="{y}">{escape(each.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """Places values between two ends of the picture."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float) -> None:
        self.log, self.start, self.end = log, start, end
        low, high = (min(values), max(values)) if values else (0.1, 1.0)
        if log:
            self.ticks = _log_ticks(low, high)
        else:
            self.ticks = ticks(min(low, 0.0), high if high > min(low, 0.0) else low + 1.0)
        self.low, self.high = self._scale(self.ticks[0]), self._scale(self.ticks[-1])

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def place(self, value: float) -> float:
        return self.start + (self._scale(value) - self.low) / (self.high - self.low) * (self.end - self.start)


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... that enclose both; powers of ten alone where these would be many."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    if last - first > 3:
        return [10.0**k for k in range(first, last + 1)]
    fine = [factor * 10.0**k for k in range(first, last + 1) for factor in (1, 2, 5)]
    below, above = [t for t in fine if t <= low * (1 + 1e-9)], [t for t in fine if t >= high * (1 - 1e-9)]
    found = [t for t in fine if below[-1] <= t <= above[0]]
    return found if len(found) > 1 else [found[0], 2 * found[0]]
