"""On a language model: circuits that scores choose carry more than random ones, on prompts that did not choose them."""

from __future__ import annotations

import pytest

import assay
from assay.circuits import circuit_curve, edge_scores

pytestmark = pytest.mark.xdist_group("real models")


def test_edges_of_eap_ig_carry_more_than_random_ones(smollm2: assay.Model) -> None:
    seen, unseen = (assay.tasks.ioi(smollm2, n=8, seed=seed) for seed in (0, 1))
    sizes = (0.01, 0.1, 1.0)
    curves = {
        method: circuit_curve(smollm2, unseen, edge_scores(smollm2, seen, method), sizes=sizes, absolute=True).curve
        for method in ("eap-ig-inputs", "random")
    }
    found = curves["eap-ig-inputs"]
    assert found.cpr.lower > curves["random"].cpr.upper
    assert found.cmd.upper < curves["random"].cmd.lower
    assert abs(found.faithfulness[-1].value - 1) < 1e-4
