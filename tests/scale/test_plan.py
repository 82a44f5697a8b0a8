"""The plan: every (component, row) pair once, in blocks of about equal work."""

from __future__ import annotations

from collections import Counter

import pytest

from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.engine.batches import make_batches
from assay.methods import plan
from assay.methods.plan import make_plan
from assay.sites import components_of
from conftest import random_pairs, wrapped


@pytest.mark.parametrize("work", [1.0, 1e5, 1e6, 1e12])
@pytest.mark.parametrize("lanes", [1, 20])
def test_every_pair_once_in_blocks_of_equal_work(work: float, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "WORK", work)
    monkeypatch.setattr(plan, "LANES", lanes)
    model = wrapped("llama")
    components = components_of(model, "neurons") + components_of(model, "residual-post") + components_of(model, "q")
    batches = make_batches(model, encode(model, random_pairs(7), METRICS["logit-diff"]), "denoise", 1 << 30)
    shards = make_plan(model, components, batches, by_component=True)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    places = Counter((shard.batch, component) for shard in shards for component in shard.components)
    assert set(places.values()) == {1}
    assert set(places) == {(batch, c) for batch in range(len(batches)) for c in range(len(components))}
    for number, batch in enumerate(batches):
        blocks = [shard for shard in shards if shard.batch == number]
        assert all(shard.rows == batch.rows for shard in blocks)
        entries = [components[c].entry for shard in blocks for c in shard.components]
        assert entries == sorted(entries)
        costs = [sum(model.n_layers + 1 - components[c].entry for c in shard.components) for shard in blocks]
        assert max(costs) - min(costs) <= 2 * (model.n_layers + 1)
        if len(blocks) > 1:
            assert sum(shard.size for shard in blocks) >= lanes * len(blocks)
    if work == 1.0 and lanes == 1:
        assert len(shards) >= 0.8 * len(batches) * len(components), "late components cost less than a block"
    if work == 1e12:
        assert len(shards) == len(batches)


def test_what_serves_all_components_at_once_is_cut_by_prompts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "WORK", 1.0)
    model = wrapped("llama")
    batches = make_batches(model, encode(model, random_pairs(7), METRICS["logit-diff"]), "denoise", 1 << 30)
    shards = make_plan(model, components_of(model, "heads"), batches, by_component=False)
    assert [(shard.batch, shard.components) for shard in shards] == [(i, tuple(range(12))) for i in range(len(batches))]
