"""Nothing is lost by what is not run: each saving by itself, every family, every kind of site."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

import pytest
import torch

from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.engine.batches import make_batches
from assay.engine.cost import CostMeter
from assay.engine.response import Response
from assay.engine.savings import EVERY_SAVING, NO_SAVING, Savings
from assay.errors import ModelError
from assay.sites import KINDS, Component, components_of
from conftest import random_pairs, wrapped
from families import TINY

SAVINGS = [field.name for field in fields(Savings)]


def measured(family: str, savings: Savings, a: float = 1.0) -> tuple[list[torch.Tensor], CostMeter]:
    """g(a) and g'(a) of every component of every kind, batch by batch."""
    model, cost = wrapped(family), CostMeter()
    metric = METRICS["logit-diff"]
    components: list[Component] = []
    for kind in KINDS:
        with suppress(ModelError):  # this family has none
            components += components_of(model, kind)
    found = []
    for batch in make_batches(model, encode(model, random_pairs(3), metric), "denoise", 2 << 30):
        response = Response(model, batch, metric, components, savings=savings, cost=cost)
        found += [response.value(a), response.slope(0)]
    return found, cost


@pytest.fixture(scope="module", params=TINY)
def nothing_saved(request: pytest.FixtureRequest) -> tuple[str, list[torch.Tensor], CostMeter]:
    return request.param, *measured(request.param, NO_SAVING)


@pytest.mark.parametrize("saving", SAVINGS)
def test_a_saving_by_itself_changes_rounding_only(
    nothing_saved: tuple[str, list[torch.Tensor], CostMeter], saving: str
) -> None:
    family, expected, whole = nothing_saved
    found, cost = measured(family, replace(NO_SAVING, **{saving: True}))
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=1e-11)
    counts_positions = wrapped(family).family.counts_positions
    if saving in ("positions", "last_layer") and counts_positions:
        assert cost.layer_tokens_forward == whole.layer_tokens_forward
    elif saving == "zeros":
        assert cost.interventions <= whole.interventions
    elif saving != "unembedding":
        assert cost.layer_tokens_forward < whole.layer_tokens_forward


def test_all_savings_together(nothing_saved: tuple[str, list[torch.Tensor], CostMeter]) -> None:
    family, expected, whole = nothing_saved
    found, cost = measured(family, EVERY_SAVING)
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=1e-11)
    assert cost.layer_tokens_forward < 0.7 * whole.layer_tokens_forward
    assert cost.layer_tokens_backward <= whole.layer_tokens_backward
