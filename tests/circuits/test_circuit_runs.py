"""Circuit runs against their definition by plain hooks, and what must hold of every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import assay
from assay.circuits import contrast, together
from assay.circuits.edges import edge_scores
from assay.circuits.graph import Graph
from assay.circuits.runs import circuit_curve, run_circuits, smallest_circuit
from assay.engine import destinations
from assay.errors import DataError, InterventionError, OptionError
from circuits.prompts import told_apart
from conftest import ids_of, random_pairs, wrapped
from families import TINY, tiny_model, tiny_tokenizer
from oracles import naive
from oracles.naive_circuit import circuit_logits
from oracles.test_exact_effects import logit_difference

NAIVE = ["llama", "gpt2", "gpt-neox", "phi3", "phi", "gemma2", "gemma3", "olmo2", "granite", "opt", "cohere", "qwen3"]


def draw(graph: Graph, *shares: float, seed: int = 0) -> np.ndarray:
    """Circuits that keep so many of the edges."""
    generator = np.random.default_rng(seed)
    return np.stack([generator.random(graph.n_edges) < share for share in shares])


@pytest.mark.parametrize("family", NAIVE)
def test_a_circuit_is_what_its_definition_says(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(1)
    (pair,) = pairs
    graph = Graph.of(model)
    circuits = draw(graph, 0.6, 0.95)
    found = run_circuits(model, pairs, graph, circuits, force=True)
    clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
    for kept, value in zip(circuits, found.values[0], strict=True):
        names = {graph.edge_name(edge) for edge in np.flatnonzero(kept)}
        logits = circuit_logits(model.hf, family, clean, corrupted, lambda u, v, names=names: f"{u}->{v}" in names)
        assert value == pytest.approx(logit_difference(logits, pair), abs=1e-9)
    assert np.ptp(found.values[0]) > 1e-3


@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("family", TINY)
def test_the_full_circuit_is_the_model_and_the_empty_one_the_counterfactual_run(family: str, ungrouped: bool) -> None:
    model, pairs = wrapped(family), random_pairs(5)
    graph = Graph.of(model, ungrouped=ungrouped)
    found = run_circuits(model, pairs, graph, draw(graph, 1, 0), force=True)
    for pair, values, full, empty in zip(pairs, found.values, found.full, found.empty, strict=True):
        expected = [logit_difference(naive.logits_of(model.hf, ids_of(x)), pair) for x in (pair.clean, pair.corrupted)]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose([full, empty], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt-neox"])
def test_pruning_changes_nothing(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(3)
    graph = Graph.of(model)
    kept = draw(graph, 0.05, 0.1, 0.2, 0.4)
    pruned = np.stack([graph.pruned(circuit) for circuit in kept])
    assert (pruned.sum(1) < kept.sum(1)).any()
    found = run_circuits(model, pairs, graph, [*kept, *pruned], force=True)
    np.testing.assert_allclose(found.values[:, :4], found.values[:, 4:], rtol=0, atol=1e-9)


def as_full_attention(hf: PreTrainedModel, family: str) -> PreTrainedModel:
    """The same function with keys and values of its own for every query head."""
    heads, kv_heads = hf.config.num_attention_heads, hf.config.num_key_value_heads
    config = TINY[family].config()
    config.num_key_value_heads = heads
    expanded = type(hf)(config).eval()
    state = hf.state_dict()
    for name, tensor in state.items():
        if any(f"{kind}_proj." in name for kind in "kv"):
            parts = tensor.unflatten(0, (kv_heads, -1))
            state[name] = parts.repeat_interleave(heads // kv_heads, 0).flatten(0, 1)
    expanded.load_state_dict(state)
    expanded.set_attn_implementation("oracle")
    return expanded.double()


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "qwen3", "starcoder2"])
def test_ungrouped_keys_and_values_are_those_of_full_attention(family: str) -> None:
    hf, pairs = tiny_model(family), random_pairs(3)
    shared, full = wrapped(family), assay.load(as_full_attention(hf, family), tiny_tokenizer())
    graph = Graph.of(shared, ungrouped=True)
    assert graph.edge_names == Graph.of(full).edge_names
    kept = draw(graph, 0.5, 0.9)
    found = run_circuits(shared, pairs, graph, kept, force=True)
    expected = run_circuits(full, pairs, Graph.of(full), kept, force=True)
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=1e-9)
    for method in ("eap", "exact"):
        scores = edge_scores(shared, pairs, method, ungrouped=True, force=True)
        np.testing.assert_allclose(scores.values, edge_scores(full, pairs, method, force=True).values, atol=1e-9)


def test_nodes_left_out_are_edges_left_out() -> None:
    """A head whose edges are all absent: activation patching of the head with the corrupted run."""
    model, pairs = wrapped("llama"), random_pairs(4)
    graph = Graph.of(model)
    singles = ~np.eye(graph.n_sources, dtype=bool)
    found = run_circuits(model, pairs, graph, graph.nodes(singles), force=True)
    effects = assay.measure("activation-patching", model, pairs, sites="heads,mlps", direction="noise", force=True)
    for component, values in zip(effects.components, effects.values, strict=True):
        name = f"m{component.layer}" if component.site == "mlps" else f"a{component.layer}.h{component.unit}"
        without = found.values[:, graph.source_names.index(name)]
        np.testing.assert_allclose(without - found.full, values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("ablation", ["patch", "zero", "mean"])
def test_batch_size_changes_no_value(ablation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = wrapped("gemma3"), random_pairs(34, lengths=(6,))
    graph = Graph.of(model)
    kept = draw(graph, 0.3, 0.6, 0.9)
    at_once = run_circuits(model, pairs, graph, kept, ablation=ablation, force=True)
    monkeypatch.setattr(contrast.Study, "_row_bytes", lambda *_: 1 << 40)
    monkeypatch.setattr(together, "circuit_bytes", lambda *_, **__: 1 << 40)
    alone = run_circuits(model, pairs, graph, kept, ablation=ablation, force=True)
    np.testing.assert_allclose(at_once.values, alone.values, rtol=0, atol=1e-11)
    np.testing.assert_allclose(at_once.empty, alone.empty, rtol=0, atol=1e-11)


def test_zero_and_mean_are_what_absent_edges_carry() -> None:
    """Of every edge into the logits: the final stream is the kept contributions plus the others' zeros or means."""
    model, pairs = wrapped("llama"), random_pairs(32, lengths=(6,))
    graph = Graph.of(model)
    into_logits = graph.edge_destinations == graph.n_destinations - 1
    some = np.random.default_rng(0).random(graph.n_edges) < 0.5
    kept = np.where(into_logits, some, True)
    from oracles.naive_circuit import written

    corrupted = [written(model.hf, "llama", ids_of(pair.corrupted), []) for pair in pairs]
    means = {name: torch.stack([of[name] for of in corrupted]).mean(0) for name in graph.source_names}
    absent = [name for name, edge in zip(graph.source_names, some[into_logits], strict=True) if not edge]
    for ablation in ("zero", "mean"):
        found = run_circuits(model, pairs, graph, [kept], ablation=ablation, force=True)
        for pair, value in list(zip(pairs, found.values[:, 0], strict=True))[:4]:
            clean = written(model.hf, "llama", ids_of(pair.clean), [])
            filled = means if ablation == "mean" else {name: torch.zeros(1) for name in absent}
            stream = sum(filled[name] if name in absent else clean[name] for name in graph.source_names)
            logits = model.hf.lm_head(model.hf.model.norm(stream))
            assert value == pytest.approx(logit_difference(logits.detach(), pair), abs=1e-9)


def test_a_run_that_is_not_the_models_own_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    graph, project = Graph.of(model), destinations.Readers.project_all

    def wrong(self: destinations.Readers, normed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = project(self, normed)
        return q.roll(1, 2), k, v  # heads mixed up

    monkeypatch.setattr(destinations.Readers, "project_all", wrong)
    with pytest.raises(InterventionError, match="does not reproduce its own run"):
        run_circuits(model, pairs, graph, draw(graph, 1), force=True)


def test_circuits_belong_to_a_graph() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    graph = Graph.of(model)
    for other, kept in ((Graph(3, 4, 4), np.ones((1, 5), bool)), (graph, np.ones((1, 5), bool))):
        with pytest.raises(OptionError, match="belongs to the model"):
            run_circuits(model, pairs, other, kept, force=True)
    one = run_circuits(model, pairs, graph, draw(graph, 0.5)[0], force=True)
    np.testing.assert_array_equal(one.values, run_circuits(model, pairs, graph, draw(graph, 0.5), force=True).values)
    with pytest.raises(OptionError, match="no ablation 'noise'"):
        run_circuits(model, pairs, graph, draw(graph, 1), ablation="noise", force=True)  # type: ignore[arg-type]


def test_a_curve_ends_at_the_model_and_refuses_prompts_that_it_has_seen() -> None:
    model = wrapped("llama")
    seen, unseen = told_apart(model, 0), told_apart(model, 1)
    scores = edge_scores(model, seen, "eap-ig-inputs")
    found = circuit_curve(model, unseen, scores, completeness=True)
    assert found.curve.faithfulness[-1].value == pytest.approx(1)
    assert found.counts[-1] == scores.graph.n_edges
    assert found.complement is not None
    assert found.complement.faithfulness()[-1] == pytest.approx(0, abs=1e-9)
    assert found.curve.cpr.lower <= found.curve.cpr.value <= found.curve.cpr.upper
    random = circuit_curve(model, unseen, edge_scores(model, seen, "random"))
    assert found.curve.cpr.value > random.curve.cpr.value
    assert "array" not in repr(found)
    assert repr(found).startswith("CircuitCurve(eap-ig-inputs, signed, 10 circuits of up to")
    assert found._repr_html_().count("<tr>") == 11
    with pytest.raises(DataError, match="used for the scores"):
        circuit_curve(model, seen, scores)
    with pytest.raises(OptionError, match="at most 1, not 2"):
        circuit_curve(model, unseen, scores, sizes=(0.5, 2))


def test_the_smallest_circuit_reaches_its_target() -> None:
    model = wrapped("llama")
    scores = edge_scores(model, told_apart(model, 0), "eap")
    unseen = told_apart(model, 1)
    kept, reached = smallest_circuit(model, unseen, scores, 0.8)
    assert reached >= 0.8
    assert kept.sum() < scores.graph.n_edges
    np.testing.assert_allclose(run_circuits(model, unseen, scores.graph, [kept]).faithfulness(), reached)
    with pytest.raises(DataError, match="No circuit reaches"):
        smallest_circuit(model, unseen, scores, 100.0)
