"""Circuits of nodes and of neurons."""

from __future__ import annotations

import numpy as np
import pytest

import assay
from assay.circuits.graph import Graph
from assay.circuits.nodes import neuron_scores, node_curve, node_scores
from assay.circuits.runs import run_neuron_circuits
from assay.errors import DataError, ModelError, OptionError
from circuits.prompts import told_apart
from conftest import random_pairs, wrapped
from families import TINY


@pytest.mark.parametrize("family", [name for name, tiny in TINY.items() if tiny.neurons_after])
def test_no_neuron_left_out_is_the_model_and_all_is_the_counterfactual_run(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(5)
    graph = Graph.of(model)
    sources = np.array([[True], [False]]).repeat(graph.n_sources, 1)
    neurons = np.array([True, False])[:, None, None].repeat(model.n_layers, 1).repeat(model.d_mlp, 2)
    found = run_neuron_circuits(model, pairs, sources, neurons, force=True)
    np.testing.assert_allclose(found.values[:, 0], found.full, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.values[:, 1], found.empty, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "opt"])
def test_one_neuron_left_out_is_activation_patching(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    chosen = assay.sites.neurons(model).units(0, 5, model.d_mlp - 1)
    effects = assay.measure("activation-patching", model, pairs, sites=chosen, direction="noise", force=True)
    sources = np.ones((len(chosen), Graph.of(model).n_sources), bool)
    neurons = np.ones((len(chosen), model.n_layers, model.d_mlp), bool)
    for row, component in enumerate(chosen):
        neurons[row, component.layer, component.unit] = False
    found = run_neuron_circuits(model, pairs, sources, neurons, force=True)
    np.testing.assert_allclose((found.values - found.full[:, None]).T, effects.values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_zero_and_mean_of_a_neuron(ablation: str) -> None:
    model, pairs = wrapped("llama"), random_pairs(32, lengths=(6,))
    chosen = assay.sites.neurons(model).units(3)
    effects = assay.measure(f"{ablation}-ablation", model, pairs, sites=chosen, force=True)
    sources = np.ones((len(chosen), Graph.of(model).n_sources), bool)
    neurons = np.ones((len(chosen), model.n_layers, model.d_mlp), bool)
    for row, component in enumerate(chosen):
        neurons[row, component.layer, component.unit] = False
    found = run_neuron_circuits(model, pairs, sources, neurons, ablation=ablation, force=True)
    np.testing.assert_allclose((found.values - found.full[:, None]).T, effects.values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sites", ["heads,mlps", "heads,mlps,embeddings", "neurons", "heads,neurons,embeddings"])
def test_a_curve_of_nodes_or_neurons_ends_at_the_model(sites: str) -> None:
    model = wrapped("llama")
    scores = assay.attribution_patching(model, told_apart(model, 0), sites=sites, direction="noise")
    found = node_curve(model, told_apart(model, 1), scores, sizes=(0.2, 0.5, 1.0))
    assert found.curve.faithfulness[-1].value == pytest.approx(1)
    assert found.counts[-1] == len(scores.components)
    with pytest.raises(DataError, match="used for the scores"):
        node_curve(model, told_apart(model, 0), scores)


def test_scores_land_at_their_nodes() -> None:
    model = wrapped("llama")
    scores = assay.attribution_patching(model, told_apart(model, 0), sites="heads,mlps,neurons", direction="noise")
    graph = Graph.of(model)
    nodes, neurons = node_scores(graph, scores), neuron_scores(model, scores)
    assert np.isnan(nodes[0])
    for component, value in zip(scores.components, scores.importance, strict=True):
        if component.site == "neurons":
            assert neurons[component.layer, component.unit] == value
        else:
            name = f"m{component.layer}" if component.site == "mlps" else f"a{component.layer}.h{component.unit}"
            assert nodes[graph.source_names.index(name)] == value
    with pytest.raises(OptionError, match="an MLP is its neurons"):
        node_curve(model, told_apart(model, 1), scores)


def test_what_is_no_node_is_refused() -> None:
    model, pairs = wrapped("llama"), told_apart(wrapped("llama"), 0)
    scores = assay.attribution_patching(model, pairs, sites="q", direction="noise")
    with pytest.raises(OptionError, match="no node of a circuit"):
        node_curve(model, told_apart(model, 1), scores)
    experts = wrapped("mixtral")
    shape = (1, experts.n_layers, experts.d_mlp)
    with pytest.raises(ModelError, match="experts"):
        run_neuron_circuits(
            experts, random_pairs(2), np.ones((1, Graph.of(experts).n_sources), bool), np.ones(shape, bool), force=True
        )
