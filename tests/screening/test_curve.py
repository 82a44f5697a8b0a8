"""A response curve begins and ends where patching does, and its derivatives are those of the methods."""

from __future__ import annotations

import numpy as np
import pytest

import assay
from assay.errors import ModelError, OptionError
from assay.sites import KINDS, component_named, components_of
from conftest import random_pairs, wrapped

SAME = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture(scope="module")
def model() -> assay.Model:
    return wrapped("llama")


@pytest.mark.parametrize("name", ["L1H2", "L2 MLP", "L0N17", "L1N3 pre", "L0H1 q@last"])
def test_ends_and_derivatives(model: assay.Model, name: str) -> None:
    pairs = random_pairs()
    curve = assay.response_curve(model, pairs, name, points=101, segments=2)
    chosen = {"sites": assay.sites.Selection([component_named(model, name)]), "force": True}
    exact = assay.activation_patching(model, pairs, **chosen)
    np.testing.assert_allclose(curve.values[:, 0], exact.baseline.corrupted, **SAME)
    np.testing.assert_allclose(curve.values[:, -1] - curve.values[:, 0], exact.values[0], **SAME)
    assert curve.effect == pytest.approx(exact.values.mean())
    first = assay.attribution_patching(model, pairs, **chosen).values.mean()
    second = assay.hvp(model, pairs, **chosen).values.mean()
    steps = assay.ms_hvp(model, pairs, segments=2, **chosen).values.mean()
    found = curve.estimates()
    np.testing.assert_allclose(list(found.values()), [first, second, steps], **SAME)
    # In the middle: the slope at 1/2 against the grid's own difference.
    middle = (curve.values[:, 51] - curve.values[:, 49]) / 0.02
    assert np.abs(middle - curve.slopes[:, 1]).max() < 0.01 * np.abs(curve.slopes).max()


def test_the_figure_shows_all_of_it(model: assay.Model) -> None:
    curve = assay.response_curve(model, random_pairs(), "L1H2")
    figure = curve.plot()
    names = [trace.name for trace in figure.data]
    assert [name.split()[0] for name in names] == ["response", "tangent", "parabola", "MS-HVP,", "exact"]
    assert figure.data[0].y[-1] == figure.data[-1].y[0]
    assert len(figure.data[3].x) == 6


def test_without_derivatives_there_is_the_curve_alone(model: assay.Model) -> None:
    curve = assay.response_curve(model, random_pairs(), "L1H2", metric="exact-match")
    assert curve.slopes.shape == (5, 0)
    assert curve.estimates() == {}
    assert len(curve.plot().data) == 2
    assert "no gradient" in curve.notes[0]


def test_every_component_is_found_by_its_name(model: assay.Model) -> None:
    for kind in KINDS:
        try:
            components = components_of(model, kind)
        except ModelError:
            continue
        for component in components:
            assert component_named(model, component.name) == component
    assert component_named(model, "L1H2@-1").position == -1


@pytest.mark.parametrize("name", ["L9H0", "head 3", "", "L1H2@nowhere"])
def test_names_of_nothing(model: assay.Model, name: str) -> None:
    with pytest.raises(OptionError):
        assay.response_curve(model, random_pairs(), name)


@pytest.mark.parametrize("options", [{"points": 1}, {"segments": 0}])
def test_too_little_to_draw(model: assay.Model, options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="at least"):
        assay.response_curve(model, random_pairs(), "L1H2", **options)
