"""Every site of every family: exact effects against a hook loop, slopes against central differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import assay
from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.engine.batches import make_batches
from assay.engine.response import Response
from assay.errors import DataError, InterventionError, ModelError, OptionError
from assay.sites import KINDS, Selection, select
from conftest import ids_of, random_pairs, wrapped
from families import HIDDEN, TINY
from oracles import naive
from oracles.test_exact_effects import logit_difference

NEURONS = (0, 7, HIDDEN - 1)


def has(family: str, site: str) -> bool:
    tiny = TINY[family]
    if site == "residual-mid":
        return not tiny.parallel
    return not site.startswith("neurons") or tiny.neurons_after is not None


def components_and_places(model: assay.Model, site: str) -> tuple[Selection, list[naive.Place]]:
    components = select(model, site)
    if site.startswith("neurons"):
        components = components.units(*NEURONS)
        return components, [(site, layer, unit) for layer in range(model.n_layers) for unit in NEURONS]
    return components, naive.places(model.hf, (site,))


CASES = [
    pytest.param(family, site, id=f"{family}-{site}")
    for family in TINY
    for site in KINDS
    if site not in ("heads", "mlps") and has(family, site)
]


@pytest.mark.parametrize(("family", "site"), CASES)
def test_exact_effects_equal_naive_loop(family: str, site: str) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    components, places = components_and_places(model, site)
    denoise = assay.activation_patching(model, pairs, sites=components, force=True)
    if model.residual_multiplier != 1 and site == "residual-mid":
        # What attention adds is multiplied before it is added, so the sum cannot be made 0 to the last bit.
        with pytest.raises(InterventionError, match="cannot be set to 0 exactly"):
            assay.zero_ablation(model, pairs, sites=components, force=True)
        zero = None
    else:
        zero = assay.zero_ablation(model, pairs, sites=components, force=True)
    assert len(components) == len(places)
    zeroed_values = denoise.values if zero is None else zero.values
    for place, exact, zeroed in zip(places, denoise.values, zeroed_values, strict=True):
        for pair, effect, drop in zip(pairs, exact, zeroed, strict=True):
            clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
            source = naive.activation(model.hf, family, clean, place)
            patches = [(corrupted, source, effect), (clean, torch.zeros_like(source), drop)]
            for ids, new, found in patches[: 1 if zero is None else 2]:
                patched = logit_difference(naive.patched_logits(model.hf, family, ids, place, new), pair)
                base = logit_difference(naive.logits_of(model.hf, ids), pair)
                assert found == pytest.approx(patched - base, abs=1e-9)


@pytest.mark.parametrize(("family", "site"), CASES)
def test_slopes_equal_central_differences(family: str, site: str) -> None:
    model, step = wrapped(family), 1e-6
    metric = METRICS["log-prob-diff"]
    components, _ = components_and_places(model, site)
    for batch in make_batches(model, encode(model, random_pairs(2), metric), "denoise", 1 << 30):
        response = Response(model, batch, metric, components)
        for a in (0.0, 0.5):
            expected = (response.value(a + step) - response.value(a - step)) / (2 * step)
            torch.testing.assert_close(response.slope(a), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("site", [site for site in KINDS if has("gemma2", site)])
@pytest.mark.parametrize("position", ["last", "answer", "first-difference", 2, -2])
def test_patches_at_positions_equal_naive_loop(site: str, position: str | int) -> None:
    family = "gemma2"
    model, pairs = wrapped(family), random_pairs(2)
    components, places = components_and_places(model, site)
    scores = assay.activation_patching(model, pairs, sites=components.at(position), force=True)
    estimate = assay.attribution_patching(model, pairs, sites=components.at(position), force=True)
    for place, values, slopes in zip(places, scores.values, estimate.values, strict=True):
        for pair, effect, slope in zip(pairs, values, slopes, strict=True):
            clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
            where = {
                "last": len(clean) - 1,
                "answer": len(clean) - 1,
                "first-difference": [a == b for a, b in zip(clean, corrupted, strict=True)].index(False),
                2: 2,
                -2: len(clean) - 2,
            }[position]
            base = naive.activation(model.hf, family, corrupted, place)
            source = naive.activation(model.hf, family, clean, place)

            def value(a: float, where=where, base=base, source=source, pair=pair, corrupted=corrupted, place=place):
                new = base.clone()
                new[where] += a * (source[where] - base[where])
                return logit_difference(naive.patched_logits(model.hf, family, corrupted, place, new), pair)

            assert effect == pytest.approx(value(1) - value(0), abs=1e-9)
            assert slope == pytest.approx((value(1e-5) - value(-1e-5)) / 2e-5, rel=1e-5, abs=1e-7)


def test_each_position_is_every_position_by_itself() -> None:
    model, pairs = wrapped("llama"), random_pairs(3, lengths=(7,))
    each = assay.activation_patching(model, pairs, sites="residual-pre[1:3]@each", force=True)
    assert len(each.components) == 2 * 7
    for position in range(7):
        one = assay.activation_patching(model, pairs, sites=f"residual-pre[1:3]@{position}", force=True)
        mine = [i for i, component in enumerate(each.components) if component.position == position]
        np.testing.assert_allclose(each.values[mine], one.values, rtol=0, atol=1e-11)
    with pytest.raises(DataError, match="6 to 9 tokens"):
        assay.activation_patching(model, random_pairs(), sites="residual-pre@each", force=True)
    with pytest.raises(DataError, match="lies outside"):
        assay.activation_patching(model, pairs, sites="residual-pre@8", force=True)


def test_residual_after_a_layer_is_the_one_before_the_next() -> None:
    model, pairs = wrapped("gemma3"), random_pairs()
    post = assay.activation_patching(model, pairs, sites="residual-post[0:2]", force=True)
    pre = assay.activation_patching(model, pairs, sites="residual-pre[1:3]", force=True)
    np.testing.assert_allclose(post.values, pre.values, rtol=0, atol=1e-11)
    whole = assay.activation_patching(model, pairs, sites="residual-pre[0],residual-post[2]", force=True)
    full = whole.baseline.clean - whole.baseline.corrupted
    np.testing.assert_allclose(whole.values, np.stack([full, full]), rtol=0, atol=1e-11)


def test_phrases_and_sentences_select_the_same() -> None:
    from assay import sites

    model = wrapped("llama")
    assert list(select(model, "heads[1:3]@last")) == list(sites.heads(model).layers(1, 3).at("last"))
    assert list(select(model, "mlps[2]")) == list(sites.mlps(model).layers(2))
    both = sites.queries(model).units(0) + sites.residual(model, "post").at(-1)
    assert [component.name for component in both][:4] == ["L0H0 q", "L1H0 q", "L2H0 q", "L0 residual-post@-1"]
    assert [c.name for c in select(model, "neurons-pre[0]")[:1]] == ["L0N0 pre"]
    assert select(model, "k,v,attention,embeddings")[-1].name == "embeddings"
    assert len(select(model, "neurons")) == 3 * HIDDEN
    for phrase in ("", "heads,heads", "heads[a]", "head", "heads@middle", "heads[9]", "heads[2:1]", "heads[1:9]"):
        with pytest.raises(OptionError):
            select(model, phrase)
    with pytest.raises(ModelError, match="in parallel"):
        select(wrapped("phi"), "residual-mid")
    with pytest.raises(ModelError, match="experts"):
        select(wrapped("mixtral"), "neurons")
