"""Gradient against cause on planted models, and what ranks, ratios and clusters say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import assay
from assay.audit import audit_gradients, audit_ranks
from assay.audit.ranks import ranks_of
from assay.data import PromptPair, PromptPairs
from assay.errors import DataError, OptionError
from assay.interactions.joint_ablation import GroupEffect, ratio
from assay.interactions.pairs import measure_interactions
from assay.interactions.redundancy import hidden_share, redundant_groups
from conftest import random_pairs, words, wrapped

VITAL, USELESS = (0, 1), (0, 2)
TWINS = ((0, 0), (0, 3))


def planted(gains: dict[tuple[int, int], float], saturates: bool = False) -> tuple[assay.Model, PromptPairs]:
    """A model whose only working parts are heads that copy the first token's value, attending evenly to all tokens.

    Every prompt is w1 or w2, then noise; the answer is w3 after w1, w4 after w2. Head h of layer l writes gain times
    the direction "w3 less w4" for w1, and its opposite for w2.

    Args:
        saturates: the final norm, which has little else to see, makes one such head as good as two.
    """
    model = wrapped("gpt-neox-sequential")
    hf = model.hf
    neox = hf.gpt_neox
    noise = 0.5 if saturates else 40.0
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        for block in neox.layers:
            block.input_layernorm.weight.fill_(1)
            block.post_attention_layernorm.weight.fill_(1)
        neox.final_layer_norm.weight.fill_(1)
        embedding = neox.embed_in.weight
        # Coordinates: 0 and 1 say "w1" and "w2" at the first token, 2 and 3 are read by the unembedding.
        embedding[1, 0], embedding[2, 1] = 20.0, 20.0
        embedding[5:, 8:] = torch.randn(embedding.shape[0] - 5, embedding.shape[1] - 8, generator=generator)
        embedding[5:, 8:] *= noise / embedding[5:, 8:].norm(dim=1, keepdim=True)
        unembedding = hf.get_output_embeddings().weight
        unembedding[3, 2], unembedding[4, 3] = 10.0, 10.0
        for (layer, head), gain in gains.items():
            attention = neox.layers[layer].attention
            value = attention.query_key_value.weight.view(4, 3, 8, 32)[head, 2]
            value[0, 0], value[0, 1] = 1.0, -1.0
            out = attention.dense.weight.view(32, 4, 8)[:, head]
            out[2, 0], out[3, 0] = gain, -gain
    draw = np.random.default_rng(0)
    pairs = []
    for number in range(48):
        rest = draw.integers(5, 48, 5).tolist()
        first, second = (1, 2) if number % 2 else (2, 1)
        right, wrong = (3, 4) if number % 2 else (4, 3)
        pairs.append(PromptPair(words([first, *rest]), words([second, *rest]), f" w{right}", f" w{wrong}"))
    return model, PromptPairs(tuple(pairs), metric="logit-diff")


def with_hero_and_bloat() -> tuple[assay.Model, PromptPairs]:
    """Four heads of layer 0. What a head writes is x W_V W_O; the gradient of W_O grows with x W_V, that of W_V with
    W_O. The vital head has small values and no large W_O; the useless one huge values and W_O = 0; two lie between."""
    model, pairs = planted({})
    attention = model.hf.gpt_neox.layers[0].attention
    sizes = {0: (10.0, 0.01), VITAL[1]: (0.5, 2.0), USELESS[1]: (50.0, 0.0), 3: (12.0, 0.02)}
    with torch.no_grad():
        values = attention.query_key_value.weight.view(4, 3, 8, 32)[:, 2]
        outputs = attention.dense.weight.view(32, 4, 8)
        for head, (value, output) in sizes.items():
            values[head, 0, 0], values[head, 0, 1] = value, -value
            outputs[2, head, 0], outputs[3, head, 0] = output, -output
    return model, pairs


def test_two_heads_that_stand_in_for_each_other() -> None:
    """Two heads write the same; the final norm takes the sum's size away, so that one alone is as good as both."""
    model, pairs = planted(dict.fromkeys(TWINS, 30.0) | {(1, 1): 0.1}, saturates=True)
    found = measure_interactions(model, pairs, sites="heads[0:2]", ablation="zero")
    names = ["L0H0", "L0H3"]
    single = dict(zip(found.names, found.single.mean(1), strict=True))
    frame = found.to_pandas()
    top = frame.iloc[0]
    assert [top["first"], top["second"]] == names
    assert all(abs(single[name]) < 0.05 * top["joint"] for name in names)
    assert top["hidden"] > 0.9
    assert found.redundant() == [tuple(names)]
    group = measure_interactions(model, pairs, group=names, ablation="zero", exact=None).group
    assert group is not None
    assert group.joint.mean() == pytest.approx(top["joint"])
    assert group.over_sum_of_singles.value is None or group.over_sum_of_singles.value > 10


def test_heads_of_an_additive_model_do_not_interact() -> None:
    model, pairs = planted({(0, 0): 1.0, (0, 3): 1.0})
    found = measure_interactions(model, pairs, sites="heads[0]", ablation="zero")
    assert found.redundant() == []
    top = found.to_pandas().iloc[0]
    assert abs(top["interaction"]) < 0.02 * top["joint"]
    group = measure_interactions(model, pairs, group="L0H0,L0H3", ablation="zero").group
    assert group is not None
    assert group.over_sum_of_singles.value == pytest.approx(1, abs=0.02)
    assert group.over_mean_single.value == pytest.approx(2, abs=0.04)


def test_classes_need_nine_draws_in_ten() -> None:
    generator = np.random.default_rng(0)
    means = np.arange(10.0)
    causal = means[:, None] + 0.01 * generator.standard_normal((10, 200))
    measure = causal.mean(1)[::-1][:, None] + 0.01 * generator.standard_normal((10, 20))
    found = audit_ranks(measure, causal)
    assert found.classes == ["bloat"] * 4 + ["aligned"] * 2 + ["hero"] * 4
    assert found.rho == pytest.approx(-1)
    assert list(found.delta) == [9, 7, 5, 3, 1, -1, -3, -5, -7, -9]
    noisy = causal + 80 * generator.standard_normal((10, 200))
    doubtful = audit_ranks(measure, noisy)
    assert doubtful.classes.count("unsettled") >= 5
    assert doubtful.rho_upper - doubtful.rho_lower > 0.5
    np.testing.assert_allclose(doubtful.probabilities.sum(1), 1)


def test_ties_are_averaged_and_a_constant_has_no_correlation() -> None:
    assert ranks_of(np.array([[2.0, 1.0, 2.0, 5.0]])).tolist() == [[2.5, 1.0, 2.5, 4.0]]
    found = audit_ranks(np.ones((4, 3)), np.arange(12.0).reshape(4, 3))
    assert np.isnan(found.rho)
    assert np.isnan(found.rho_lower)
    assert list(found.delta) == [1.5, 0.5, -0.5, -1.5]


def test_what_is_tied_has_no_class() -> None:
    generator = np.random.default_rng(0)
    measure = np.arange(20.0)[:, None] + 0.01 * generator.standard_normal((20, 30))
    nothing = audit_ranks(measure, np.zeros((20, 40)))
    assert nothing.classes == ["unsettled"] * 20
    assert not nothing.probabilities.any()
    assert list(nothing.delta) == [number - 9.5 for number in range(20)]
    # The first matters and has the smallest gradient; 19 that do nothing could be in any order.
    causal = np.zeros((20, 40))
    causal[0] = 1
    assert audit_ranks(measure, causal).classes == ["hero", *["unsettled"] * 19]
    # Ten pairs of ties. The eighth has Delta -6 or -5, the thirteenth 5 or 6.
    causal = np.repeat(np.arange(10.0), 2)[::-1, None] + np.zeros((20, 40))
    open_, told = ["unsettled"], audit_ranks(measure, causal).classes
    assert told == ["hero"] * 7 + open_ + ["aligned"] * 4 + open_ + ["bloat"] * 7


def test_bootstrap_of_the_correlation_covers_the_truth() -> None:
    """Of the population's ranks, about as often as it says."""
    generator = np.random.default_rng(1)
    truth = generator.standard_normal(12)
    other = truth + 0.8 * generator.standard_normal(12)
    from scipy.stats import spearmanr

    rho = spearmanr(truth, other).statistic
    inside = 0
    for number in range(200):
        causal = other[:, None] + generator.standard_normal((12, 400)) * 2
        measure = truth[:, None] + generator.standard_normal((12, 50)) * 0.7
        found = audit_ranks(measure, causal, draws=300, seed=number)
        inside += found.rho_lower <= rho <= found.rho_upper
    assert inside > 160


@pytest.mark.parametrize(("batches", "examples"), [(1, 1), (1, 40), (40, 1)])
def test_one_example_or_batch_settles_nothing(batches: int, examples: int) -> None:
    generator = np.random.default_rng(0)
    found = audit_ranks(generator.random((10, batches)), generator.random((10, examples)))
    assert set(found.classes) == {"unsettled"}
    assert (found.rho_lower, found.rho_upper) == (-1, 1)
    assert (found.delta_lower == -9).all()
    assert (found.delta_upper == 9).all()


def test_nothing_is_hidden_in_one_example() -> None:
    assert not hidden_share(np.ones(3), np.ones(3), np.full(3, np.nan), 1).any()
    assert hidden_share(np.ones(3), np.ones(3), np.full(3, 0.01), 20).all()


def test_both_sets_are_measured_by_the_metric_of_the_first(sorter: assay.Model) -> None:
    pairs = assay.tasks.sort(sorter, n=4)
    other = PromptPairs(assay.tasks.sort(sorter, n=4, seed=1, length=9).pairs)
    found = assay.audit_gradients(sorter, pairs, ood=other, rivals=(), ablation="zero")
    assert found.metric == "exact-match"
    assert all(of.baseline.clean.max() <= 1 for of in found.sets)


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="same components"):
        audit_ranks(np.ones((3, 2)), np.ones((4, 2)))


def test_ratios_are_refused_within_noise() -> None:
    generator = np.random.default_rng(0)
    noise = generator.standard_normal(50)
    assert ratio(noise + 5, noise).value is None
    found = ratio(noise + 10, noise * 0.1 + 2)
    assert found.value == pytest.approx(5, abs=0.5)
    assert found.lower < found.value < found.upper
    single = np.stack([noise * 0.1 + 2, noise * 0.1 + 3])
    effect = GroupEffect(("a", "b"), single, single.sum(0))
    assert effect.over_sum_of_singles.value == pytest.approx(1)
    assert effect.over_mean_single.value == pytest.approx(2)
    assert ratio(np.ones(1), np.ones(1)).value is None
    rare = np.zeros(50)
    rare[0] = 1  # one example decides: many draws leave it out
    assert ratio(np.ones(50), rare).value is None


def test_redundant_groups_of_a_table() -> None:
    pairs = np.array([(i, j) for i in range(5) for j in range(i + 1, 5)])
    shares = np.array([0.9 if {i, j} <= {1, 2, 4} else 0.1 for i, j in pairs.tolist()])
    assert redundant_groups(5, pairs, shares) == [(1, 2, 4)]
    assert redundant_groups(5, pairs, shares * 0.5) == []
    # A doubtful interaction, and one of a pair whose joint loss is a gain, hide nothing.
    joint, interaction = np.array([1.0, 1.0, -1.0, 1.0]), np.array([0.8, 0.8, 0.5, -0.5])
    found = hidden_share(joint, interaction, np.array([0.1, 0.6, 0.01, 0.01]), 30)
    assert found.tolist() == [0.8, 0.0, 0.0, 0.0]


def test_the_planted_hero_and_bloat_are_named() -> None:
    model, pairs = with_hero_and_bloat()
    found = audit_gradients(model, pairs, sites="heads[0]", ablation="zero", rivals=["|grad.delta|"], batches=12)
    frame = found.to_pandas().set_index("component")
    assert frame["C"].idxmax() == "L0H1"
    assert abs(frame["C"]["L0H2"]) < 1e-9
    assert frame["G"].idxmax() == "L0H2"
    assert found.members("hero") == ["L0H1"]
    assert found.members("bloat") == ["L0H2"]
    assert frame["|grad.delta|"]["L0H2"] == pytest.approx(0, abs=1e-9)  # grad . delta is not taken in


def test_audit_of_two_sets_with_pruning() -> None:
    model = wrapped("llama")
    pairs, ood = random_pairs(6), random_pairs(5, seed=1, lengths=(12,))
    found = audit_gradients(
        model, pairs, ood=ood, ablation="zero", batches=3, rival_examples=4, pruning=True, force=True
    )
    assert [of.name for of in found.sets] == ["in distribution", "out of distribution"]
    assert found.last.causal.shape == (15, 5)
    assert found.last.magnitude.shape == (15, 3)
    exact = -assay.zero_ablation(model, ood, force=True).values
    np.testing.assert_allclose(found.last.causal, exact, atol=1e-12)
    for name in ("grad.delta", "gim", "integrated-gradients", "hvp", "|grad.delta|"):
        assert found.last.rivals[name].shape == (15, 4)
    close = np.abs(found.last.rivals["integrated-gradients"] - exact[:, :4]).mean()
    assert close < 0.2 * np.abs(exact).mean()
    assert found.pruning is not None
    assert found.pruning.sizes[0] == 0
    assert found.pruning.sizes[-1] == 15
    for of in found.pruning.sets:
        for table in of.values.values():
            np.testing.assert_allclose(table[0], of.clean)
        ends = np.stack([table[-1] for table in of.values.values()])
        np.testing.assert_allclose(ends, ends[:1].repeat(len(ends), 0))
    one = found.pruning.orders["C"][0]
    number = found.names.index(one)
    pruned = found.pruning.sets[1].values["C"][1]
    np.testing.assert_allclose(pruned, found.pruning.sets[1].clean - exact[number], atol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ablation": "noise"}, "mean, zero, resample"),
        ({"rivals": ["magic"]}, "magic"),
        ({"batches": 0}, "--batches"),
        ({"mlp_weights": "some"}, "--mlp-weights"),
        ({"sites": "q"}, "heads"),
        ({"sites": "heads@last"}, "leave @last out"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        audit_gradients(wrapped("llama"), random_pairs(2), force=True, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ablation": "noise"}, "mean, zero, resample"),
        ({"group": "L0H0"}, "two components"),
        ({"group": "L0H0,L0H0"}, "named once"),
        ({"group": "layer:9"}, "layers 0 to 2"),
        ({"group": "L7H0,L0H0"}, "no component"),
        ({"exact": -1}, "at least 0"),
        ({"exact": 3, "metric": "exact-match"}, "second derivatives"),
        ({"second_order": True, "metric": "exact-match"}, "gradient"),
    ],
)
def test_bad_groups_are_refused(options: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        measure_interactions(wrapped("llama"), random_pairs(2), force=True, **{"ablation": "zero", **options})


def test_only_the_largest_pairs_are_run() -> None:
    model, pairs = wrapped("qwen2"), random_pairs(3)
    whole = measure_interactions(model, pairs, ablation="zero", force=True)
    part = measure_interactions(model, pairs, ablation="zero", exact=7, force=True)
    assert len(part.couples) == 7
    assert not part.is_complete
    chosen = {tuple(couple) for couple in part.couples.tolist()}
    sizes = {tuple(couple): abs(whole.second[tuple(couple)]) for couple in whole.couples.tolist()}
    assert chosen == set(sorted(sizes, key=sizes.get)[-7:])
    matrix = whole.matrix()
    for (first, second), values in zip(part.couples.tolist(), part.interaction, strict=True):
        assert values.mean() == pytest.approx(matrix[first, second], abs=1e-9)


def test_teacher_forced_exact_match_is_greedy_decoding(sorter: assay.Model) -> None:
    pairs = assay.tasks.sort(sorter, n=60, length=9)
    scores = assay.zero_ablation(sorter, pairs, sites="heads[0]", metric="exact-match", force=True)
    decoded = []
    for pair in pairs:
        ids = sorter.tokenizer(pair.clean, return_tensors="pt")["input_ids"]
        wanted = sorter.tokenizer(pair.answer)["input_ids"]
        for _ in wanted:
            with torch.no_grad():
                following = sorter.hf(ids, use_cache=False).logits[0, -1].argmax()
            ids = torch.cat([ids, following.view(1, 1)], dim=1)
        decoded.append(float(ids[0, -len(wanted) :].tolist() == wanted))
    assert 0 < np.mean(decoded) < 1
    np.testing.assert_array_equal(scores.baseline.clean, decoded)


@pytest.mark.parametrize("layer", [0, 3])
def test_ablating_a_head_is_zeroing_its_part_of_the_output_matrix(sorter: assay.Model, layer: int) -> None:
    """A copied model whose columns of W_O are 0."""
    from copy import deepcopy

    pairs = assay.tasks.sort(sorter, n=40, length=8)
    scores = assay.zero_ablation(sorter, pairs, sites=f"heads[{layer}]", metric="exact-match", force=True)
    for head in range(4):
        hf = deepcopy(sorter.hf)
        with torch.no_grad():
            hf.gpt_neox.layers[layer].attention.dense.weight.view(128, 4, 32)[:, head] = 0
        copied = assay.load(hf, sorter.tokenizer)
        expected = assay.zero_ablation(copied, pairs, sites="mlps[0]", metric="exact-match", force=True).baseline
        np.testing.assert_array_equal(scores.baseline.clean + scores.values[head], expected.clean)
