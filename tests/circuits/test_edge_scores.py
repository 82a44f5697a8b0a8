"""Edge scores against the exact response of each edge, and against what they must add up to."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import assay
from assay.circuits import contrast
from assay.circuits.contrast import studied
from assay.circuits.edges import edge_scores
from assay.circuits.first_order import eap, eap_ig_activations, eap_ig_inputs
from assay.circuits.graph import Graph
from assay.circuits.registry import EDGE_METHODS
from assay.circuits.runs import run_circuits
from assay.circuits.second_order import _signs, curvatures, second_order
from assay.engine import edge_patch
from assay.engine.edge_curvature import EdgeHessian
from assay.errors import OptionError
from assay.sites import Component, Selection
from conftest import random_pairs, wrapped
from families import TINY


def responses(model: assay.Model, pairs: assay.PromptPairs, graph: Graph, edges: np.ndarray, strength: float):
    """(n, edges) metric where each edge alone carries clean + strength x (counterfactual - clean)."""
    found = np.zeros((len(pairs), len(edges)))
    kept = np.ones((len(edges), graph.n_edges), bool)
    kept[np.arange(len(edges)), edges] = False
    with studied(model, pairs, "test", order=0, ungrouped=graph.ungrouped, force=True) as study:
        for rows in study.contrasts():
            runner = rows.runner()
            runner.counterfactual = rows.clean + strength * rows.differences
            np.add.at(found, rows.examples, runner.values(graph.absent(kept)).T.numpy())
    return found


def some_edges(graph: Graph, count: int, seed: int = 0) -> np.ndarray:
    """Some of every kind of reader."""
    return np.random.default_rng(seed).choice(graph.n_edges, count, replace=False)


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("family", TINY)
def test_eap_is_the_derivative_of_the_exact_response(family: str, ungrouped: bool) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    scores = edge_scores(model, pairs, "eap", ungrouped=ungrouped, force=True)
    edges, step = some_edges(scores.graph, 24), 1e-4
    forward, backward = (responses(model, pairs, scores.graph, edges, h) for h in (step, -step))
    expected = -(forward - backward) / (2 * step)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(scores.values[:, edges], expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-neox", "granite"])
def test_scores_into_the_logits_add_up_to_gradient_times_total_difference(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    scores = edge_scores(model, pairs, "eap", force=True)
    last = f"residual-post[{model.n_layers - 1}]"
    total = assay.attribution_patching(model, pairs, sites=last, direction="noise", force=True)
    into_logits = scores.graph.edge_destinations == scores.graph.n_destinations - 1
    np.testing.assert_allclose(scores.values[:, into_logits].sum(1), -total.values[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi"])
def test_the_edges_out_of_a_node_add_up_to_its_attribution(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    scores = edge_scores(model, pairs, "eap", force=True)
    nodes = assay.attribution_patching(model, pairs, direction="noise", force=True)
    for component, values in zip(nodes.components, nodes.values, strict=True):
        name = f"m{component.layer}" if component.site == "mlps" else f"a{component.layer}.h{component.unit}"
        out = scores.graph.edge_sources == scores.graph.source_names.index(name)
        np.testing.assert_allclose(scores.values[:, out].sum(1), -values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gpt-neox", "gemma2", "opt", "granite", "olmo2", "phi3"])
@pytest.mark.parametrize("ungrouped", [False, True])
def test_exact_patching_equals_a_loop_of_circuits_without_one_edge(family: str, ungrouped: bool) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    scores = edge_scores(model, pairs, "exact", ungrouped=ungrouped, force=True)
    edges = some_edges(scores.graph, 40)
    full = responses(model, pairs, scores.graph, edges[:1], 0)
    np.testing.assert_allclose(
        scores.values[:, edges], full - responses(model, pairs, scores.graph, edges, 1), rtol=0, atol=1e-9
    )
    assert scores.exact
    assert scores.label == "measured by intervention"


@pytest.mark.parametrize("family", ["llama", "gpt2", "granite"])
def test_one_edge_is_path_patching(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(2)
    scores = edge_scores(model, pairs, "exact", force=True)
    graph = scores.graph
    cases = {
        "a0.h1->a2.h3<q>": Component(2, "q", 3),
        "m0->m2": Component(2, "mlps"),
        "a1.h0->m1": Component(1, "mlps"),
        f"a0.h2->a1.{'h1' if graph.kv_units == graph.n_heads else 'kv1'}<v>": Component(1, "v", 1),
    }
    for name, receiver in cases.items():
        source = graph.source_names[graph.edge_sources[graph.edge(name)]]
        paths = assay.path_patching(model, pairs, Selection((receiver,)), direction="noise", force=True)
        sent = [f"m{c.layer}" if c.site == "mlps" else f"a{c.layer}.h{c.unit}" for c in paths.components]
        effect = paths.values[sent.index(source)]
        np.testing.assert_allclose(scores.values[:, graph.edge(name)], -effect, rtol=0, atol=1e-9)
    paths = assay.path_patching(model, pairs, "logits", direction="noise", force=True)
    for component, values in zip(paths.components, paths.values, strict=True):
        name = f"m{component.layer}" if component.site == "mlps" else f"a{component.layer}.h{component.unit}"
        np.testing.assert_allclose(scores.values[:, graph.edge(f"{name}->logits")], -values, rtol=0, atol=1e-9)


def interpolated_scores(model: assay.Model, pairs: assay.PromptPairs, graph: Graph, points) -> np.ndarray:
    """(n, E) edge by edge, from the gradients of runs between corrupted (0) and clean embeddings (1)."""
    found = np.zeros((len(pairs), graph.n_edges))
    with studied(model, pairs, "test", order=1, force=True) as study:
        for rows in study.contrasts():
            gradients = rows.gradients()
            for a, weight in points:
                at_layers: list[tuple[int, torch.Tensor]] = []
                gradients.of_run(lambda *found, kept=at_layers: kept.append(found), rows.stream(a))
                for layer, at in at_layers:
                    first = graph.first_destination(layer)
                    for number in range(len(at)):
                        reach = graph.reach[first + number]
                        products = torch.einsum("srtm,rtm->rs", rows.differences[:reach], at[number])
                        span = slice(graph.offsets[first + number], graph.offsets[first + number + 1])
                        np.add.at(found, (rows.examples, span), -weight * products.numpy())
    return found


def test_integrated_inputs_average_gradients_of_runs_between_the_embeddings() -> None:
    model, pairs = wrapped("llama"), random_pairs(3)
    scores = edge_scores(model, pairs, eap_ig_inputs("left", 4), force=True)
    expected = interpolated_scores(model, pairs, scores.graph, [(k / 4, 0.25) for k in range(4)])
    np.testing.assert_allclose(scores.values, expected, rtol=0, atol=1e-10)
    assert scores.configuration["rule"] == "left"


def test_integrated_inputs_with_one_point_at_the_end_are_eap() -> None:
    model, pairs = wrapped("gemma2"), random_pairs(3)
    eap = edge_scores(model, pairs, "eap", force=True)
    np.testing.assert_allclose(edge_scores(model, pairs, eap_ig_inputs("right", 1), force=True).values, eap.values)
    start = edge_scores(model, pairs, eap_ig_inputs("left", 1), force=True).values
    both = edge_scores(model, pairs, "clean-corrupted", force=True).values
    np.testing.assert_allclose(both, (start + eap.values) / 2, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["llama", "gpt-neox", "granite", "gemma3"])
def test_integrated_activations_from_a_block_to_the_logits_are_complete(family: str) -> None:
    """Into the logits from the last MLP, whose patch is the whole of its block: scores are the exact effect."""
    model, pairs = wrapped(family), random_pairs(3)
    scores = edge_scores(model, pairs, eap_ig_activations("gauss-legendre", 12), force=True)
    exact = edge_scores(model, pairs, "exact", force=True)
    edge = scores.graph.edge(f"m{model.n_layers - 1}->logits")
    np.testing.assert_allclose(scores.values[:, edge], exact.values[:, edge], rtol=1e-4, atol=1e-6)


def test_pooled_activations_average_over_all_blocks() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    clean_only = edge_scores(model, pairs, eap_ig_activations("right", 1, pooled=True), force=True)
    np.testing.assert_allclose(
        clean_only.values[:, -13:], edge_scores(model, pairs, "eap", force=True).values[:, -13:], rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("method", [name for name, make in EDGE_METHODS.items() if make().learn is None])
def test_scores_depend_on_no_other_example_and_no_batch_size(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = wrapped("qwen3"), random_pairs(5)
    together = edge_scores(model, pairs, method, force=True)
    with monkeypatch.context() as small_memory:
        small_memory.setattr(contrast.Study, "_row_bytes", lambda *_: 1 << 40)
        small_memory.setattr(edge_patch, "lane_bytes", lambda *_: 1 << 40)
        small = edge_scores(model, pairs, method, force=True)
    scale = np.abs(together.values).max()
    np.testing.assert_allclose(small.values, together.values, rtol=0, atol=1e-11 * scale)
    from assay.data import PromptPairs

    for i, pair in enumerate(pairs):
        alone = edge_scores(model, PromptPairs((pair,), metric="logit-diff"), method, force=True)
        np.testing.assert_allclose(alone.values[0], together.values[i], rtol=0, atol=1e-11 * scale)


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt-neox", "gemma3", "granite", "olmo2", "cohere", "opt"])
def test_curvature_is_the_second_derivative_of_the_exact_response(family: str, ungrouped: bool) -> None:
    model, pairs = wrapped(family), random_pairs(1)
    with studied(model, pairs, "test", order=2, ungrouped=ungrouped, force=True) as study:
        (rows,) = study.contrasts()
        edges = some_edges(study.graph, 12)
        hessian = EdgeHessian(rows.gradients(), rows.stream(1))
        found = []
        for edge in edges:
            alone = torch.zeros(1, study.graph.n_edges, dtype=torch.float64)
            alone[0, edge] = 1
            found.append(curvatures(rows, hessian, alone)[0, edge].item())
    step = 1e-3
    before, at, after = (responses(model, pairs, study.graph, edges, h)[0] for h in (-step, 0, step))
    expected = (before - 2 * at + after) / step**2
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_probes_average_to_the_curvature() -> None:
    """Many probes of few prompts: the mean is within its own standard error of the exact second derivative."""
    model, pairs = wrapped("llama"), random_pairs(1)
    with studied(model, pairs, "test", order=2, force=True) as study:
        (rows,) = study.contrasts()
        hessian = EdgeHessian(rows.gradients(), rows.stream(1))
        draws = np.stack([curvatures(rows, hessian, signs)[0].numpy() for signs in _signs(rows, 400, 0)])
    edges = some_edges(study.graph, 40)
    step = 1e-3
    before, at, after = (responses(model, pairs, study.graph, edges, h)[0] for h in (-step, 0, step))
    expected = (before - 2 * at + after) / step**2
    error = draws[:, edges].std(0, ddof=1) / len(draws) ** 0.5
    assert (np.abs(draws[:, edges].mean(0) - expected) <= 2 * error + 1e-4).mean() > 0.85
    assert (error > 1e-3).mean() > 0.5


def test_second_order_adds_half_the_sampled_curvature() -> None:
    model, pairs = wrapped("llama"), random_pairs(1)
    scores = edge_scores(model, pairs, second_order(probes=3, seed=5), force=True)
    with studied(model, pairs, "test", order=2, force=True) as study:
        (rows,) = study.contrasts()
        hessian = EdgeHessian(rows.gradients(), rows.stream(1))
        mean = torch.stack([curvatures(rows, hessian, signs) for signs in _signs(rows, 3, 5)]).mean(0)
    first = edge_scores(model, pairs, "eap", force=True).values
    np.testing.assert_allclose(scores.values, first - mean.numpy() / 2, rtol=0, atol=1e-9)
    with pytest.raises(
        OptionError, match="second-order takes second derivatives, which need --dtype float32 or float64"
    ):
        edge_scores(wrapped("llama", torch.bfloat16), pairs, "second-order", force=True)


def test_flow_is_a_share_of_what_is_read() -> None:
    model, pairs = wrapped("granite"), random_pairs(3)
    scores = edge_scores(model, pairs, "information-flow-routes", force=True)
    graph = scores.graph
    assert (scores.values >= 0).all()
    for destination in range(graph.n_destinations):
        share = scores.values[:, graph.offsets[destination] : graph.offsets[destination + 1]].sum(1)
        np.testing.assert_allclose(share, 1, atol=1e-9)
    assert scores.label == "not causally validated"
    assert scores.unit == "none"


def test_answers_of_two_rows_count_once() -> None:
    """A metric that reads right and wrong answer on rows of their own."""
    model = wrapped("llama")
    pairs = assay.PromptPairs(
        tuple(assay.PromptPair(p.clean, p.corrupted, p.answer + " w3", p.wrong_answer) for p in random_pairs(3))
    )
    graph = Graph.of(model)
    scores = edge_scores(model, pairs, "exact", metric="log-prob-diff", force=True)
    kept = ~np.eye(graph.n_edges, dtype=bool)[:5]
    found = run_circuits(model, pairs, graph, kept, metric="log-prob-diff", force=True)
    np.testing.assert_allclose(scores.values[:, :5], found.full[:, None] - found.values, rtol=0, atol=1e-9)
    for method in ("random", "information-flow-routes"):
        single = edge_scores(model, pairs, method, metric="log-prob", force=True).values
        double = edge_scores(model, pairs, method, metric="log-prob-diff", force=True).values
        np.testing.assert_allclose(single, double, rtol=0, atol=1e-9)


def test_rules_are_active_on_the_way_there_and_back() -> None:
    """A rule at the last norm that lets half of the gradient through halves every score."""
    model, pairs = wrapped("llama"), random_pairs(2)

    @contextmanager
    def half(of: assay.Model):
        handle = of.final_norm.register_forward_hook(lambda _, __, out: (out + out.detach()) / 2)
        try:
            yield
        finally:
            handle.remove()

    for plain, ruled in ((eap(), eap(rules=half)), (eap_ig_inputs(), eap_ig_inputs(rules=half))):
        found = edge_scores(model, pairs, ruled, force=True)
        np.testing.assert_allclose(found.values, edge_scores(model, pairs, plain, force=True).values / 2, atol=1e-12)
        assert not found.estimates_effect


@pytest.mark.parametrize("make", [eap, eap_ig_inputs])
def test_rules_by_name_are_those_of_the_context(make) -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    named = edge_scores(model, pairs, make(rules="gim"), force=True)
    within = edge_scores(model, pairs, make(rules=lambda of: assay.backward_rules(of, "gim")), force=True)
    np.testing.assert_array_equal(named.values, within.values)
    plain = edge_scores(model, pairs, make(), force=True)
    assert np.abs(named.values - plain.values).max() > 0.1 * np.abs(plain.values).max()
    assert (named.configuration["rules"], named.estimates_effect) == ("gim", False)
    assert edge_scores(model, pairs, make(rules="plain"), force=True).estimates_effect


@pytest.mark.parametrize("rules", ["gim", "gim-without-temperature", "gim-without-norm", "gim-without-product"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "phi3"])
def test_under_rules_the_edges_out_of_a_node_add_up_to_its_attribution(family: str, rules: str) -> None:
    """What nodes get under these rules has an oracle of its own, written out by hand."""
    model, pairs = wrapped(family), random_pairs(3)
    scores = edge_scores(model, pairs, eap(rules=rules), force=True)
    nodes = assay.attribution_patching(model, pairs, sites="heads,mlps", direction="noise", rules=rules, force=True)
    assert len(nodes.components) == scores.graph.n_sources - 1
    for component, effect in zip(nodes.components, nodes.values, strict=True):
        unit = "m" if component.site == "mlps" else "a"
        name = f"{unit}{component.layer}" + (f".h{component.unit}" if unit == "a" else "")
        out = scores.graph.edge_sources == scores.graph.source_names.index(name)
        np.testing.assert_allclose(scores.values[:, out].sum(1), -effect, rtol=0, atol=1e-9)
    whole = edge_scores(model, pairs, eap(rules="gim" if rules != "gim" else "plain"), force=True)
    assert np.abs(scores.values - whole.values).max() > 1e-4
    assert scores.configuration["rules"] == rules


def test_what_does_not_exist_is_refused() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    with pytest.raises(OptionError, match="no edge method 'eap-ig'"):
        edge_scores(model, pairs, "eap-ig", force=True)
    with pytest.raises(OptionError, match="defined for patch, not for 'zero'"):
        edge_scores(model, pairs, "eap-ig-inputs", ablation="zero", force=True)
    with pytest.raises(OptionError, match="gradient"):
        edge_scores(model, pairs, "eap", metric="exact-match", force=True)
