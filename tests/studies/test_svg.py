"""Charts that show what they are given."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from assay.studies.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Dots, Line, dot_chart, line_chart


def circles(svg: str) -> list[tuple[float, float]]:
    ElementTree.fromstring(svg)  # it is XML
    return [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]


@pytest.mark.parametrize("log", [False, True])
def test_points_lie_where_their_values_are(log: bool) -> None:
    line = Line("a < b", [1, 10, 100], [1, 10, 100])
    points = circles(line_chart([line], x_title="x", y_title="y", log_x=log, log_y=log))
    fractions = [0, 0.5, 1] if log else [0.01, 0.1, 1]
    for (x, y), fraction in zip(points, fractions, strict=True):
        assert x == pytest.approx(LEFT + fraction * (WIDTH - RIGHT - LEFT), abs=0.1)
        assert y == pytest.approx(HEIGHT - BOTTOM - fraction * (HEIGHT - BOTTOM - TOP), abs=0.1)


def test_values_that_cannot_be_shown_are_left_out() -> None:
    line = Line("a", [1, 2, 3, 4], [math.nan, 0.0, 2.0, math.inf])
    assert len(circles(line_chart([line], x_title="x", y_title="y", log_y=True))) == 1
    assert not circles(line_chart([Line("none", [], [])], x_title="x", y_title="y", log_x=True))


def test_dots_stand_in_their_rows_on_one_axis() -> None:
    first = Dots("a < b", [1.0, -1.0], [0.5, -2.0], [1.5, 0.0])
    second = Dots("c", [math.nan, 2.0], [math.nan, math.nan], [math.nan, math.nan])
    svg = dot_chart(["one", "two"], [first, second], x_title="x")
    points = circles(svg)
    assert len(points) == 3 + 2  # and the legend's
    (one, y_one), (two, y_two), (other, y_other) = points[:3]
    assert two < one < other
    assert y_one < y_two < y_other
    zero = (one + two) / 2
    assert other - zero == pytest.approx(2 * (one - zero), abs=0.2)
    lines = [tuple(map(float, found)) for found in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", svg)]
    assert len(lines) == 2, "no interval where there is none"
    assert lines[0][0] < one < lines[0][1]
    assert lines[1][1] == pytest.approx(zero, abs=0.2)
