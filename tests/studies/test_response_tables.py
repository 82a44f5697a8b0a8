"""Values that a study reads from tables are those of the methods themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import assay
from assay.comparison import EXACT, parse_method
from assay.studies.patching_errors.settings import ENDS, MORE_PATH, PATH, SCALES
from assay.studies.recorded import Recorded, record
from assay.studies.response_tables import Points, RecordedResponse, passes, recording_method
from conftest import random_pairs, wrapped

METHODS = [parse_method(name) for name in (EXACT, *ENDS, *PATH, *MORE_PATH)]
SITES = {"heads": "heads", "neurons-pre": "neurons-pre[1]"}


@pytest.mark.parametrize("sites", SITES.values(), ids=SITES)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_values_read_from_tables_are_those_of_the_methods(family: str, sites: str, tmp_path: Path) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    points = Points.of(METHODS, SCALES)
    found = record(recording_method(points), points.names, model, pairs, tmp_path / "path", sites=sites)
    response = RecordedResponse(Recorded.load(tmp_path / "path").tables)
    scale = np.abs(found.values).max()
    for method in METHODS:
        expected = assay.measure(method, model, pairs, sites=sites, force=True).values
        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(response.estimates(method), expected, rtol=0, atol=1e-11 * max(scale, 1))


def test_a_strength_is_computed_once_whoever_asks_for_it() -> None:
    points = Points.of(METHODS[:1] + [parse_method(name) for name in (*ENDS, *PATH)], SCALES)
    assert points.values == pytest.approx([k / 10 for k in range(1, 11)])
    assert points.curvatures == pytest.approx([k / 10 for k in range(10)])
    assert points.slopes == pytest.approx([0, 0.2113248654, 0.25, 0.75, 0.7886751346, 1])
    assert len(set(points.names)) == len(points.names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (EXACT, 1), ("attribution-patching", 0), ("hvp", 6), ("ms-hvp:segments=5", 30), ("two-point", 3),
        ("integrated-gradients:rule=left:steps=10", 27), ("integrated-gradients:rule=midpoint:steps=10", 30),
    ],
)  # fmt: skip
def test_passes_that_a_method_costs_per_component(name: str, expected: float) -> None:
    assert passes(parse_method(name)) == expected


def test_what_was_not_recorded_is_not_made_up() -> None:
    points = Points.of([parse_method("hvp")])
    tables = {name: np.ones((2, 3)) for name in points.names}
    assert RecordedResponse(tables).estimates(parse_method("hvp")).tolist() == [[1.5] * 3] * 2
    with pytest.raises(KeyError):
        RecordedResponse(tables).estimates(parse_method("two-point"))
