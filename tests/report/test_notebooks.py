"""Results in a notebook: a summary at the end of a cell, figures by `plot`."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

import assay
from assay.errors import OptionError
from conftest import random_pairs, wrapped


def results() -> dict[str, Any]:
    model = assay.load("sequence-sort")
    pairs, many = assay.tasks.sort(model, n=4), assay.tasks.sort(model, n=40)
    return {
        "scores": assay.activation_patching(model, pairs),
        "estimates": assay.attribution_patching(model, pairs, sites="neurons"),
        "screened": assay.screen(model, pairs, sites="neurons", top=3),
        "interactions": assay.measure_interactions(model, many, group="layer:1"),
        "audit": assay.audit_gradients(model, many, rivals=[]),
        "self-repair": assay.self_repair(model, pairs),
        "explanations": assay.explain_all(
            model, [assay.Question("START 7 3 SEP")], methods=["leave-one-out"], baseline="mean"
        ),
    }


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    return results()


@pytest.mark.parametrize(
    "name", ["scores", "estimates", "screened", "interactions", "audit", "self-repair", "explanations"]
)
def test_a_result_is_told_and_drawn(name: str, shown: dict[str, Any]) -> None:
    result = shown[name]
    summary = result._repr_html_()
    assert "sequence-sort" in summary
    assert len(summary) < 20_000
    if name == "estimates":  # too many neurons for a map
        with pytest.raises(OptionError, match="too many"):
            result.plot()
    else:
        assert isinstance(result.plot(), go.Figure)
        with pytest.raises(OptionError, match="no figure 'nothing'"):
            result.plot("nothing")


def test_a_figure_is_chosen_by_name(shown: dict[str, Any]) -> None:
    heads, mlps = (shown["scores"].plot(name) for name in ("heads", "mlps"))
    assert heads.data[0].type == "heatmap"
    assert mlps.data[0].type == "bar"


def test_nothing_of_a_name_acts() -> None:
    scores = assay.activation_patching(wrapped("llama"), random_pairs(2), force=True)
    scores.provenance["model"]["name"] = "<script>alert(1)</script>"
    summary = scores._repr_html_()
    assert "<script" not in summary
    assert "&lt;script" in summary
