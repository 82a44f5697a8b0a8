"""Joint ablations and their second derivatives against nested hooks, one prompt and one group at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

import assay
from assay.data import PromptPair, PromptPairs
from assay.engine import joint
from assay.interactions.joint_ablation import ablated_runs, group_ablation
from assay.interactions.pairs import measure_interactions
from conftest import ids_of, random_pairs, wrapped
from families import TINY
from oracles import naive

FEW = ("llama", "gemma2", "gpt-neox", "gpt-oss", "granite", "opt")


def difference(hf, pair: PromptPair) -> Tensor:
    logits = hf(input_ids=torch.tensor([ids_of(pair.clean)]), use_cache=False).logits[0, -1]
    return logits[ids_of(pair.answer)[0]] - logits[ids_of(pair.wrong_answer)[0]]


def set_all(hf, family: str, pair: PromptPair, places: Sequence, sources: Sequence, strengths: Sequence) -> Tensor:
    """The metric with each place at current + strength x (source - current)."""
    with ExitStack() as hooks:
        for place, source, strength in zip(places, sources, strengths, strict=True):

            def move(value: Tensor, source=source, strength=strength) -> Tensor:
                return value + strength * (source - value)

            hooks.enter_context(naive.hooked(hf, family, place, move))
        return difference(hf, pair)


def naive_losses(hf, family: str, pairs: PromptPairs, places: Sequence, groups: Sequence, sources) -> np.ndarray:
    with torch.no_grad():
        return np.array(
            [
                [
                    difference(hf, pair).item()
                    - set_all(hf, family, pair, [places[i] for i in group], [sources(pair, places[i]) for i in group],
                              [1.0] * len(group)).item()
                    for pair in pairs
                ]
                for group in groups
            ]
        )  # fmt: skip


def groups_of(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Singles, pairs, all of them, and some of other sizes, in no order of layers."""
    generator = np.random.default_rng(seed)
    singles = [(i,) for i in range(0, count, 2)]  # so that some pairs have no lane to branch off
    couples = [tuple(int(i) for i in generator.permutation(couple)) for couple in combinations(range(count), 2)]
    drawn = generator.choice(len(couples), 24, replace=False)
    larger = [tuple(generator.choice(count, size, replace=False).tolist()) for size in (3, 5, 8)]
    return [*singles, *(couples[i] for i in drawn), *larger, tuple(range(count))]


@pytest.mark.parametrize("family", TINY)
def test_groups_equal_nested_hooks(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    places = naive.places(model.hf)
    groups = groups_of(len(places))
    with ablated_runs(group_ablation("zero"), model, pairs, force=True) as runs:
        found = runs.losses(groups)

    def zeros(pair: PromptPair, place) -> Tensor:
        return torch.zeros_like(naive.activation(model.hf, family, ids_of(pair.clean), place))

    expected = naive_losses(model.hf, family, pairs, places, groups, zeros)
    assert (np.abs(expected) > 1e-4).mean() > 0.8
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gpt2", "stablelm-parallel"])
def test_mean_ablation_of_groups(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(3, lengths=(7,))
    reference = random_pairs(34, seed=3, lengths=(7,))
    places = naive.places(model.hf)
    groups = groups_of(len(places), seed=1)[-12:]
    with ablated_runs(group_ablation("mean"), model, pairs, reference=reference, force=True) as runs:
        found = runs.losses(groups)
    runs_of = [ids_of(pair.corrupted) for pair in reference]
    means = {place: torch.stack([naive.activation(model.hf, family, ids, place) for ids in runs_of]).mean(0)
             for place in places}  # fmt: skip
    expected = naive_losses(model.hf, family, pairs, places, groups, lambda _, place: means[place])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", FEW)
def test_memory_changes_nothing(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(4)
    groups = groups_of(len(naive.places(model.hf)))
    found = []
    for memory in (1 << 30, 1 << 17, 1 << 12):
        with ablated_runs(group_ablation("zero"), model, pairs, force=True) as runs:
            object.__setattr__(runs.run.setting, "memory", memory)
            found.append(runs.losses(groups))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found[2], found[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", TINY)
def test_derivatives_equal_autograd_through_nested_hooks(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(2)
    places = naive.places(model.hf)
    with ablated_runs(group_ablation("zero", second_order=True), model, pairs, force=True) as runs:
        slope, second = runs.derivatives()
    for example, pair in enumerate(pairs):
        strength = torch.zeros(len(places), dtype=torch.float64, requires_grad=True)
        zeros = [torch.tensor(0.0, dtype=torch.float64)] * len(places)
        loss = -set_all(model.hf, family, pair, places, zeros, strength.unbind())
        (first,) = torch.autograd.grad(loss, strength, create_graph=True)
        np.testing.assert_allclose(slope[:, example], first.detach(), rtol=0, atol=1e-9)
        rows = [torch.autograd.grad(each, strength, retain_graph=True)[0].numpy() for each in first]
        np.testing.assert_allclose(second[..., example], np.array(rows), rtol=0, atol=1e-8)
        assert (np.abs(rows) > 1e-4).mean() > 0.5


@pytest.mark.parametrize("family", FEW)
def test_the_diagonal_is_the_curvature_of_single_patches(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    found = measure_interactions(model, pairs, ablation="zero", exact=0, force=True)
    frame = found.per_component()
    single = assay.zero_ablation(model, pairs, force=True)
    np.testing.assert_allclose(found.single, -single.values, rtol=0, atol=1e-10)
    assert np.abs(frame["second_order"] - frame["first_order"]).max() > 1e-3


def linear_model() -> assay.Model:
    """Norms that do nothing, attention by position only, MLPs without an activation: heads and MLPs are linear."""
    model = wrapped("gpt-neox-sequential")
    neox = model.hf.gpt_neox
    neox.final_layer_norm = torch.nn.Identity()
    for block in neox.layers:
        block.input_layernorm = block.post_attention_layernorm = torch.nn.Identity()
        block.mlp.act = torch.nn.Identity()
        with torch.no_grad():
            heads = block.attention.query_key_value.weight.view(4, 3, 8, 32)
            heads[:, :2] = 0
            block.attention.query_key_value.bias.view(4, 3, 8)[:, :2] = 0
    return assay.load(model.hf.eval(), model.tokenizer)


def squared(logits: Tensor, targets) -> Tensor:
    return (logits[..., 0] - logits[..., 1]).sum(-1).square()


def test_second_order_is_exact_on_a_quadratic() -> None:
    """Heads of one layer act on the logits side by side, so the metric's square is a quadratic in their strengths."""
    model, pairs = linear_model(), random_pairs(3)
    metric = assay.Metric("squared", "logits2", "square of a difference", "single", "tokens", True, squared)
    names = [f"L2H{head}" for head in range(4)]
    found = measure_interactions(model, pairs, group=names, ablation="zero", metric=metric, force=True)
    assert found.group.second_order == pytest.approx(found.group.joint.mean(), rel=1e-9)
    assert abs(found.group.first_order - found.group.joint.mean()) > 0.1 * abs(found.group.joint.mean())
    predicted = found.second[found.couples[:, 0], found.couples[:, 1]]
    np.testing.assert_allclose(predicted, found.interaction.mean(1), rtol=1e-9)


def test_what_goes_through_another_component_is_not_lost_twice() -> None:
    """In a linear model delta' H delta is 0; the interaction of a head and the MLP that it feeds is not."""
    model, pairs = linear_model(), random_pairs(3)
    found = measure_interactions(model, pairs, group=["L2H1", "L2 MLP"], ablation="zero", force=True)
    assert abs(found.interaction.mean()) > 0.01
    np.testing.assert_allclose(found.second[0, 1], found.interaction.mean(), rtol=1e-9)
    assert found.group.second_order == pytest.approx(found.group.joint.mean(), rel=1e-9)


@pytest.mark.parametrize("ablation", ["zero", "resample"])
def test_singles_are_those_of_the_methods(ablation: str) -> None:
    """The same source for one component and for many: what a head is resampled to must not depend on the group."""
    model, pairs = wrapped("gpt2"), random_pairs(6, lengths=(7,))
    found = measure_interactions(model, pairs, ablation=ablation, second_order=False, force=True)
    single = assay.measure(f"{ablation}-ablation", model, pairs, force=True)
    np.testing.assert_allclose(found.single, -single.values, rtol=0, atol=1e-10)
    assert found.second is None


@pytest.mark.parametrize("family", FEW)
def test_lanes_that_attend_alike_attend_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    groups = [(i,) for i in range(12)] + list(combinations(range(12), 2))
    attended, known = [], joint.alike

    def noted(begun, copies, device):
        lanes = known(begun, copies, device)
        attended.append(begun if lanes is None else len(lanes.attending))
        return lanes

    def losses() -> tuple[np.ndarray, int]:
        attended.clear()
        with ablated_runs(group_ablation("zero"), model, pairs, force=True) as runs:
            return runs.losses(groups), sum(attended)

    monkeypatch.setattr(joint, "alike", noted)
    shared, few = losses()
    known = lambda *_: None  # noqa: E731
    plain, all_lanes = losses()
    np.testing.assert_allclose(shared, plain, rtol=0, atol=1e-11)
    assert few < 0.8 * all_lanes
