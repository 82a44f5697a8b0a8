"""Charts that show what they are given."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from assay.studies.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, line_chart


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
