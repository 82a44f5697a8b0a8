"""What a stage is said to cost is no less than it costs, and not much more."""

from __future__ import annotations

import numpy as np
import pytest

import assay
from assay.engine.batches import make_batches
from assay.methods import METHODS
from assay.methods.preparation import prepared
from assay.screening.exhaustion import kinds_to_exhaust
from assay.screening.prices import Prices
from assay.screening.workflow import Options
from conftest import random_pairs, wrapped


@pytest.mark.parametrize("name", ["llama", "gemma3", "llama4"])
def test_prices_against_the_meter(name: str) -> None:
    model, pairs, sites = wrapped(name), random_pairs(), "heads,residual-post"
    with prepared(METHODS["activation-patching"], model, pairs, sites=sites) as run:
        batches = make_batches(model, run.setting.rows, run.direction, run.setting.memory)
        prices, forward = Prices.of(run.setting, batches), run.layer_tokens
        whole = make_batches(model, run.setting.rows, run.direction, run.setting.memory, by_start=False)
        of_sampled = Prices.of(run.setting, whole)  # the method by itself takes larger batches than a screening
    exact = assay.activation_patching(model, pairs, sites=sites, force=True)
    plain = 2 * max(batch.positions for batch in batches) * model.n_layers / forward  # the one pair of the baseline
    foreseen = (prices.recordings + prices.exact.sum()) / forward + plain
    assert exact.cost["forward_equivalents"] <= foreseen <= 1.1 * exact.cost["forward_equivalents"]
    sampled = assay.hvp_sampled(model, pairs, sites="heads", probes=4, force=True)
    foreseen = of_sampled.estimates(4) / forward + plain
    assert 0.7 * foreseen <= sampled.cost["forward_equivalents"] <= foreseen


def test_the_price_of_a_correction_in_the_last_layer() -> None:
    """An exact run of it takes the positions that the metric reads, and a second derivative all of them."""
    model, pairs = wrapped("llama"), random_pairs()
    for sites in ("neurons[2]", "neurons[0]"):
        with prepared(METHODS["hvp"], model, pairs, sites=sites) as run:
            batches = make_batches(model, run.setting.rows, run.direction, run.setting.memory)
            prices, forward = Prices.of(run.setting, batches), run.layer_tokens
        plain = 2 * max(batch.positions for batch in batches) * model.n_layers / forward
        foreseen = (prices.recordings + prices.hvp.sum()) / forward + plain
        spent = assay.hvp(model, pairs, sites=sites, force=True).cost["forward_equivalents"]
        assert 0.9 * foreseen <= spent <= foreseen


def test_the_cheaper_way_is_taken() -> None:
    kinds = np.array(["heads"] * 100)
    prices = Prices(np.full(100, 10.0), np.full(100, 60.0), recordings=20.0, gradient=30.0, probe=30.0)
    wanted = Options(top=10)
    # 100 runs cost 1000; estimates 80 + 30 a probe, 10 + 19 runs 290.
    for probes, exhausts in ((2, False), (20, False), (22, True), (40, True)):
        chosen, note = kinds_to_exhaust(kinds, prices, wanted, probes, 100.0, np.inf)
        assert (chosen == {"heads"}) == exhausts, probes
        assert (note is not None) == exhausts
    chosen, note = kinds_to_exhaust(kinds, prices, wanted, 40, 100.0, 1000.0)
    assert (chosen, note) == (set(), None), "it does not fit the budget"
    few = kinds_to_exhaust(
        kinds[:59], Prices(prices.exact[:59], prices.hvp[:59], 20.0, 0.0, 0.0), wanted, 0, 100.0, np.inf
    )
    assert few[0] == {"heads"}
    assert "fewer than 60" in (few[1] or "")


def test_a_budget_too_small_to_exhaust_one_kind_and_calibrate_the_other_exhausts_none() -> None:
    kinds = np.array(["heads"] * 30 + ["neurons"] * 100)
    prices = Prices(np.full(130, 10.0), np.full(130, 60.0), recordings=20.0, gradient=30.0, probe=30.0)
    # Heads 300; neurons 80 + 2 x 30 for estimates and 10 + 19 runs; recordings 20.
    for left, chosen in ((750.0, {"heads"}), (749.0, set())):
        assert kinds_to_exhaust(kinds, prices, Options(top=10), 2, 100.0, left)[0] == chosen
