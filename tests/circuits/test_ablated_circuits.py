"""Circuits whose absent edges carry zero or a mean: precision, and what is left where nothing is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import assay
from assay.circuits.edges import edge_scores
from assay.circuits.graph import Graph
from assay.circuits.runs import run_circuits, run_neuron_circuits
from assay.errors import InterventionError
from assay.model.norms import frozen_norm
from conftest import ids_of, random_pairs, wrapped
from families import TINY, tiny_model
from oracles.naive_circuit import circuit_logits
from oracles.test_exact_effects import logit_difference

ABLATIONS = [("zero", {}), ("mean", {"mean": "all-positions"})]
SHARES = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9, 1)


def circuits(graph: Graph) -> np.ndarray:
    generator = np.random.default_rng(1)
    return np.stack([generator.random(graph.n_edges) < share for share in np.repeat(SHARES, 4)])


@pytest.mark.parametrize(("ablation", "options"), ABLATIONS)
@pytest.mark.parametrize("family", TINY)
def test_float32_gives_what_float64_gives(family: str, ablation: str, options: dict) -> None:
    """A reader whose edges are all absent reads the biases alone: no rounding for a norm to blow up."""
    pairs = random_pairs(3)
    precise, single = wrapped(family), wrapped(family, torch.float32)
    graph = Graph.of(precise)
    expected, found = (
        run_circuits(model, pairs, graph, circuits(graph), ablation=ablation, force=True, **options)  # type: ignore[arg-type]
        for model in (precise, single)
    )
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=1e-5 * np.abs(expected.values).max())
    np.testing.assert_allclose(expected.values[:, -1], expected.full, rtol=0, atol=1e-12)
    np.testing.assert_allclose(expected.values[:, 0], expected.empty, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt-neox", "phi3", "phi", "opt", "granite", "cohere", "qwen3"])
def test_zero_is_what_its_definition_says(family: str) -> None:
    """By plain hooks, with a counterfactual run in which nothing is written."""
    model, pairs = wrapped(family), random_pairs(1)
    (pair,) = pairs
    graph = Graph.of(model)
    kept = np.random.default_rng(0).random((2, graph.n_edges)) < [[0.6], [0.95]]
    found = run_circuits(model, pairs, graph, kept, ablation="zero", force=True)
    for circuit, value in zip(kept, found.values[0], strict=True):
        names = {graph.edge_name(edge) for edge in np.flatnonzero(circuit)}
        logits = circuit_logits(
            model.hf, family, ids_of(pair.clean), None, lambda u, v, names=names: f"{u}->{v}" in names
        )
        assert value == pytest.approx(logit_difference(logits, pair), abs=1e-9)


@pytest.mark.parametrize(("ablation", "options"), ABLATIONS)
@pytest.mark.parametrize("family", ["llama", "llama-tied-biased", "gpt2", "opt", "phi", "gemma3", "olmo2"])
def test_a_neuron_circuit_of_nothing_is_the_empty_one(family: str, ablation: str, options: dict) -> None:
    """Output biases of MLPs are in every circuit, so they are in the empty one."""
    model, pairs = wrapped(family), random_pairs(4)
    sources = np.array([[False], [True]]).repeat(Graph.of(model).n_sources, 1)
    neurons = np.array([False, True])[:, None, None].repeat(model.n_layers, 1).repeat(model.d_mlp, 2)
    found = run_neuron_circuits(model, pairs, sources, neurons, ablation=ablation, force=True, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.values[:, 0], found.empty, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.values[:, 1], found.full, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("ablation", "options"), ABLATIONS)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_exact_patching_of_zero_and_mean_is_circuits_without_one_edge(
    family: str, ablation: str, options: dict
) -> None:
    model, single, pairs = wrapped(family), wrapped(family, torch.float32), random_pairs(2)
    scores = edge_scores(model, pairs, "exact", ablation=ablation, force=True, **options)  # type: ignore[arg-type]
    graph = scores.graph
    edges = np.append(np.arange(6), np.random.default_rng(0).choice(graph.n_edges, 20, replace=False))
    kept = np.ones((len(edges), graph.n_edges), bool)
    kept[np.arange(len(edges)), edges] = False  # the first are from the input into layer 0, which reads nothing else
    found = run_circuits(model, pairs, graph, kept, ablation=ablation, force=True, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(scores.values[:, edges], found.full[:, None] - found.values, rtol=0, atol=1e-9)
    rounded = edge_scores(single, pairs, "exact", ablation=ablation, force=True, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(rounded.values, scores.values, rtol=0, atol=1e-5 * np.abs(found.full).max())


def test_a_norm_frozen_where_it_gives_nothing_gives_nothing() -> None:
    norm = wrapped("gemma3").final_norm
    x = torch.randn(3, wrapped("gemma3").d_model, dtype=torch.float64)
    x[1] = 0
    with torch.no_grad():
        found = frozen_norm(norm, x)(torch.ones_like(x))
        assert (found[1] == 0).all()
        torch.testing.assert_close(frozen_norm(norm, x)(x)[0], norm(x)[0])
        tiny = x[0] * 1e-200  # its squares are 0
        torch.testing.assert_close(frozen_norm(norm, tiny)(tiny), norm(tiny), rtol=1e-9, atol=0)


def test_a_norm_of_zero_weights_is_a_factor_of_zero() -> None:
    """Gemma's weights are 1 + w."""
    hf = tiny_model("gemma3")
    with torch.no_grad():
        hf.model.layers[1].post_attention_layernorm.weight.fill_(-1)
    model, pairs = assay.load(hf, wrapped("gemma3").tokenizer), random_pairs(2)
    graph = Graph.of(model)
    scores = edge_scores(model, pairs, "exact", force=True)
    heads = [edge for edge in range(graph.n_edges) if graph.edge_name(edge).startswith("a1.")]
    np.testing.assert_allclose(scores.values[:, heads], 0, atol=1e-12)
    with assay.backward_rules(model, "gim"):
        pass


def test_a_circuit_that_is_not_finite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.engine import circuit_run

    model, pairs = wrapped("llama"), random_pairs(2)
    graph = Graph.of(model)
    run = circuit_run.CircuitRunner.values

    def broken(self, absent, neurons=None):
        values = run(self, absent, neurons)
        values[1, 0] = float("nan")
        return values

    monkeypatch.setattr(circuit_run.CircuitRunner, "values", broken)
    with pytest.raises(InterventionError, match=r"circuit 1, which keeps \d+ edges, on example 0 is not finite"):
        run_circuits(model, pairs, graph, circuits(graph)[:3], force=True)
