"""Masks that are learned, and scores of several methods put together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from assay.circuits import EdgeScores, circuit_curve, edge_scores, ensemble, run_circuits
from assay.circuits.contrast import studied
from assay.circuits.ensembles import signed_ranks
from assay.circuits.graph import Graph
from assay.circuits.known import KNOWN_CIRCUITS, auroc, known_circuit
from assay.circuits.masks import edge_masks, loss_slope, sample
from assay.circuits.registry import edge_method
from assay.errors import OptionError
from circuits.prompts import told_apart
from conftest import random_pairs, wrapped
from families import TINY


@pytest.mark.parametrize("family", TINY)
def test_whole_shares_are_circuits(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    graph = Graph.of(model)
    kept = np.random.default_rng(0).random((2, graph.n_edges)) < 0.7
    expected = run_circuits(model, pairs, graph, kept, force=True).values
    found = np.zeros_like(expected)
    with studied(model, pairs, "shares", order=2, force=True) as study:
        for contrast in study.contrasts():
            values = contrast.runner().shares(graph.absent_shares(torch.from_numpy(kept).double()))
            np.add.at(found, contrast.examples, values.detach().T.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "gpt-neox", "llama", "gemma2", "qwen3"])
def test_the_slope_of_a_mask_is_its_central_difference(family: str, ungrouped: bool) -> None:
    model, pairs = wrapped(family), random_pairs(2)
    graph, step = Graph.of(model, ungrouped=ungrouped), 1e-5
    kept = torch.from_numpy(np.random.default_rng(1).random(graph.n_edges))
    with studied(model, pairs, "shares", order=2, ungrouped=ungrouped, force=True) as study:
        (contrast,) = (each for number, each in enumerate(study.contrasts()) if number == 0)
        slope = loss_slope(contrast, kept, difference=0.5)
        whole = torch.ones(1, graph.n_edges, dtype=torch.float64)
        clean = contrast.runner().shares(graph.absent_shares(whole))[0].detach()

        def loss(at: torch.Tensor) -> float:
            values = contrast.runner().shares(graph.absent_shares(at[None]))[0].detach()
            return float(((values - clean) / 0.5).square().sum())

        for edge in np.random.default_rng(2).choice(graph.n_edges, 12, replace=False):
            up, down = kept.clone(), kept.clone()
            up[edge] += step
            down[edge] -= step
            expected = (loss(up) - loss(down)) / (2 * step)
            assert float(slope[edge]) == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_shares_are_sampled_as_they_should_be() -> None:
    p = torch.full((200_000,), 0.7, dtype=torch.float64)
    kept, uniform = sample(p, torch.Generator().manual_seed(0))
    assert float(uniform.double().mean()) == pytest.approx(0.21, abs=0.005)
    assert float((kept[~uniform] == 1).double().sum() / len(p)) == pytest.approx(0.7 - 0.105, abs=0.005)
    assert set(kept[~uniform].tolist()) == {0.0, 1.0}
    assert float(kept[uniform].mean()) == pytest.approx(0.5, abs=0.01)
    assert float(kept.mean()) == pytest.approx(0.7, abs=0.005)


def test_sampled_slopes_average_to_the_gradient_of_the_expected_loss() -> None:
    """For a loss that is no polynomial, with two edges; the expectation by its definition."""
    logits = torch.tensor([0.4, -0.3], dtype=torch.float64)

    def loss(shares: torch.Tensor) -> torch.Tensor:
        return torch.exp(shares[..., 0]) * torch.cos(2 * shares[..., 1])

    def expected(p: torch.Tensor) -> torch.Tensor:
        """By a grid over what each edge may be."""
        grid, weights = np.polynomial.legendre.leggauss(20)
        share = torch.from_numpy((grid + 1) / 2)
        total = torch.zeros((), dtype=torch.float64)
        w = (p * (1 - p)).detach()  # how wide the window is does not matter to the estimate
        values = torch.cat([torch.tensor([0.0, 1.0], dtype=torch.float64), share])
        chance = [torch.cat([torch.stack([1 - p[i] - w[i] / 2, p[i] - w[i] / 2]), torch.from_numpy(weights / 2) * w[i]])
                  for i in range(2)]  # fmt: skip
        for i, a in enumerate(values):
            for j, b in enumerate(values):
                total = total + chance[0][i] * chance[1][j] * loss(torch.stack([a, b]))
        return total

    variable = logits.clone().requires_grad_(True)
    (exact,) = torch.autograd.grad(expected(torch.sigmoid(variable)), variable)
    generator, p = torch.Generator().manual_seed(0), torch.sigmoid(logits)
    n = 20_000
    kept, uniform = sample(p.repeat(n), generator)
    kept, uniform = kept.view(n, 2).requires_grad_(True), uniform.view(n, 2)
    (slope,) = torch.autograd.grad(loss(kept).sum(), kept)
    np.testing.assert_allclose(torch.where(uniform, slope, 0.0).mean(0).numpy(), exact.numpy(), atol=0.02)


@pytest.mark.parametrize("name", KNOWN_CIRCUITS)
def test_learned_masks_find_known_circuits_as_well_as_where_they_start(name: str) -> None:
    known = known_circuit(name)
    start = edge_scores(known.model, known.pairs, "eap-ig-inputs")
    learned = edge_scores(known.model, known.pairs, "edge-masks")
    assert auroc(learned.mean, known.flags) >= auroc(start.mean, known.flags)
    assert learned.values.shape == (1, learned.graph.n_edges)
    assert 0 < learned.mean.min() <= learned.mean.max() < 1


def test_masks_come_back_and_depend_on_the_seed_alone(tmp_path: Path) -> None:
    model, pairs = wrapped("llama"), told_apart(wrapped("llama"), 0)
    method = edge_masks(steps=3)
    scores = edge_scores(model, pairs, method)
    np.testing.assert_array_equal(edge_scores(model, pairs, method).values, scores.values)
    assert (edge_scores(model, pairs, edge_masks(steps=3, seed=1)).values != scores.values).any()
    again = EdgeScores.load(scores.save(tmp_path / "folder"))
    np.testing.assert_array_equal(again.values, scores.values)
    assert scores.configuration["steps"] == 3
    assert not scores.estimates_effect
    assert scores.cost["forward_equivalents"] > 3 * 3
    assert circuit_curve(model, told_apart(model, 1), again).curve.faithfulness[-1].value == pytest.approx(1)


def test_masks_that_cannot_be_learned_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 1 step"):
        edge_method("edge-masks", steps=0)
    with pytest.raises(OptionError, match="penalty must be positive"):
        edge_masks(penalty=0)
    with pytest.raises(OptionError, match="learns by small steps"):
        edge_scores(wrapped("llama", torch.bfloat16), random_pairs(2), "edge-masks", force=True)


def test_ensembles_by_hand() -> None:
    np.testing.assert_allclose(signed_ranks([3.0, -5.0, 0.0, 1.0]), [0.75, -1.0, 0.0, 0.5])
    np.testing.assert_allclose(signed_ranks([2.0, -2.0]), [0.75, -0.75])
    model, pairs = wrapped("gpt2"), random_pairs(3)
    members = [edge_scores(model, pairs, method, force=True) for method in ("eap", "eap-ig-inputs", "random")]

    def by_hand(values: np.ndarray) -> np.ndarray:
        order = sorted(range(len(values)), key=lambda i: abs(values[i]))
        found = np.zeros(len(values))
        for rank, i in enumerate(order, 1):
            found[i] = np.sign(values[i]) * rank / len(values)
        return found

    ranked = [by_hand(member.mean) for member in members]
    for how, combine in (("mean", lambda x: sum(x) / 3), ("min", min), ("max", max)):
        found = ensemble(members, how)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.mean, [combine(x) for x in zip(*ranked, strict=True)], atol=1e-12)
    assert found.method == "max of eap, eap-ig-inputs, random"
    assert found.pairs == members[0].pairs
    total = sum(member.cost["forward_equivalents"] for member in members)
    assert found.cost["forward_equivalents"] == pytest.approx(total)


def test_members_must_fit_together(tmp_path: Path) -> None:
    model, pairs = wrapped("llama"), random_pairs(3)
    scores = edge_scores(model, pairs, "eap", force=True)
    for message, others in (
        ("two or more members", [scores]),
        ("other prompts", [scores, edge_scores(model, random_pairs(2), "eap", force=True)]),
        ("other models or graphs", [scores, edge_scores(model, pairs, "eap", ungrouped=True, force=True)]),
    ):
        with pytest.raises(OptionError, match=message):
            ensemble(others)
    with pytest.raises(OptionError, match="no ensemble by"):
        ensemble([scores, scores], "median")  # type: ignore[arg-type]
    found = ensemble([scores, edge_scores(model, pairs, "random", force=True)])
    np.testing.assert_array_equal(EdgeScores.load(found.save(tmp_path / "folder")).values, found.values)
