"""Scores and circuits as files: what comes back is what was written, and damage is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import assay
from assay.circuits import (
    EdgeScores,
    FoundCircuit,
    circuit_curve,
    edge_scores,
    find_circuit,
    node_curve,
    read_mib,
    run_circuits,
    smallest_circuit,
    top,
    write_mib,
)
from assay.circuits.checks import shared_prompts
from assay.circuits.finding import split_pairs
from assay.circuits.graph import Graph
from assay.circuits.naming import nodes_of
from assay.errors import DataError, ModelError, OptionError, StoreError
from assay.report.circuit_drawing import edges_of, to_dot, to_svg
from circuits.prompts import told_apart
from conftest import random_pairs, wrapped


@pytest.mark.parametrize("method", ["eap", "exact", "information-flow-routes"])
def test_edge_scores_come_back(method: str, tmp_path: Path) -> None:
    scores = edge_scores(wrapped("llama"), random_pairs(3), method, force=True)
    again = EdgeScores.load(scores.save(tmp_path / "folder"))
    np.testing.assert_array_equal(again.values, scores.values)
    assert (again.graph, again.pairs, again.label) == (scores.graph, scores.pairs, scores.label)
    assert again.configuration == json.loads(json.dumps(scores.configuration))
    frame = scores.to_pandas()
    assert list(frame["source"] + "->" + frame["destination"]) == scores.graph.edge_names
    np.testing.assert_allclose(frame["importance"], scores.values.mean(0))
    assert set(frame["label"]) == {scores.label}
    assert set(frame["verdict"]) == {"verified" if method == "exact" else "none" if "flow" in method else "unresolved"}
    assert json.loads((tmp_path / "folder/run.json").read_text())["label"] == scores.label


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    scores = edge_scores(wrapped("gpt2"), random_pairs(2), "eap", force=True)
    folder = scores.save(tmp_path / "folder")
    with pytest.raises(StoreError, match="no circuit"):
        FoundCircuit.load(folder)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "graph": {**run["graph"], "n_layers": 2}}))
    with pytest.raises(StoreError, match="not those of the graph"):
        EdgeScores.load(folder)


@pytest.mark.parametrize("family", ["gpt2", "gpt-neox", "llama"])
def test_mib_files_come_back(family: str, tmp_path: Path) -> None:
    model = wrapped(family)
    scores = edge_scores(model, random_pairs(3), "eap", ungrouped=True, force=True)
    kept = scores.mean > 0
    write_mib(scores, tmp_path / "scores.json", kept)
    content = json.loads((tmp_path / "scores.json").read_text())
    assert set(content["cfg"]) == {"n_layers", "n_heads", "parallel_attn_mlp", "d_model"}
    assert content["edges"]["input->a0.h0<k>"]["score"] == scores.mean[scores.graph.edge("input->a0.h0<k>")]
    assert [edge["in_graph"] for edge in content["edges"].values()] == kept.tolist()
    assert set(content["nodes"]) == {*scores.graph.source_names, "logits"}
    assert content["assay"]["label"] == "not causally validated"
    again = read_mib(tmp_path / "scores.json", model)
    np.testing.assert_array_equal(again.mean, scores.mean)
    assert again.pairs == scores.pairs
    with pytest.raises(DataError, match="used for the scores"):
        circuit_curve(model, random_pairs(3), again)
    del content["assay"]
    (tmp_path / "foreign.json").write_text(json.dumps(content))
    foreign = read_mib(tmp_path / "foreign.json", model)
    assert foreign.pairs is None
    assert foreign.label == "not causally validated"


def test_files_that_are_not_of_this_model_are_refused(tmp_path: Path) -> None:
    model, path = wrapped("gpt2"), tmp_path / "scores.json"
    write_mib(edge_scores(model, random_pairs(2), "eap", force=True), path)
    content = json.loads(path.read_text())
    edge = next(iter(content["edges"]))

    def refused(message: str, changed: object) -> None:
        path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
        with pytest.raises(DataError, match=message):
            read_mib(path, model)

    refused("another model", {**content, "cfg": {**content["cfg"], "n_heads": 2}})
    refused("1 differ", {**content, "edges": {name: e for name, e in content["edges"].items() if name != edge}})
    refused("not finite", {**content, "edges": {**content["edges"], edge: {"score": float("inf")}}})
    refused("no score", {**content, "edges": {**content["edges"], edge: {}}})
    refused("damaged", {**content, "assay": {**content["assay"], "exact": True}})
    refused("no score", {**content, "edges": {**content["edges"], edge: {"score": 10**400}}})
    refused("not JSON", "[" * 100_000)
    for name, value in {"provenance": None, "configuration": [], "exact": 1, "method": None}.items():
        refused(f"damaged: its {name} is", {**content, "assay": {**content["assay"], name: value}})
    refused("no name and weights", {**content, "assay": {**content["assay"], "provenance": {"model": {"name": "x"}}}})
    refused("not an object", {**content, "assay": [1]})
    refused("needs cfg", {"edges": {}})
    refused("not JSON", "{")
    with pytest.raises(OptionError, match="ungrouped"):
        write_mib(edge_scores(wrapped("llama"), random_pairs(2), "eap", force=True), path)


@pytest.mark.parametrize("level", ["edge", "node", "neuron"])
def test_a_found_circuit_comes_back(level: str, tmp_path: Path) -> None:
    model = wrapped("llama")
    seen, unseen = told_apart(model, 0), told_apart(model, 1)
    found = find_circuit(model, seen, unseen, level, size=0.2)  # type: ignore[arg-type]
    again = FoundCircuit.load(found.save(tmp_path / "folder"))
    assert (again.cpr, again.cmd, again.faithfulness) == (found.cpr, found.cmd, found.faithfulness)
    assert again.evaluated == found.evaluated
    assert nodes_of(again) == nodes_of(found)
    np.testing.assert_array_equal(again.kept, found.kept)
    assert found.signed.curve.faithfulness[-1].value == pytest.approx(1)
    assert again.shared_prompts == found.shared_prompts == 0
    (tmp_path / "folder/evaluation.jsonl").write_text("")
    with pytest.raises(StoreError, match="do not fit"):
        FoundCircuit.load(tmp_path / "folder")


def test_complements_come_back(tmp_path: Path) -> None:
    model = wrapped("llama")
    seen, unseen = told_apart(model, 0), told_apart(model, 1)
    found = find_circuit(model, seen, unseen, "edge", "eap")
    assert isinstance(found.scores, EdgeScores)
    curve = circuit_curve(model, unseen, found.scores, completeness=True)
    again = FoundCircuit.load(replace(found, signed=curve).save(tmp_path / "folder"))
    assert curve.complement is not None
    assert again.signed.complement is not None
    np.testing.assert_array_equal(again.signed.complement.values, curve.complement.values)
    assert again.absolute.complement is None
    pruned = [found.graph.pruned(top(found.scores.mean, n, absolute=False)) for n in curve.counts]
    expected = run_circuits(model, unseen, found.graph, ~np.stack(pruned))
    np.testing.assert_allclose(curve.complement.values, expected.values, rtol=0, atol=1e-12)


def test_scores_of_another_model_or_level_are_refused() -> None:
    model, other = wrapped("llama"), wrapped("llama", torch.float32)
    seen, unseen = told_apart(model, 0), told_apart(model, 1)
    edges = edge_scores(other, seen, "eap")
    nodes = assay.attribution_patching(other, seen, sites="heads,mlps", direction="noise")
    for scores, level in ((edges, "edge"), (nodes, "node")):
        with pytest.raises(ModelError, match="other weights"):
            find_circuit(model, seen, unseen, level, scores=scores)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="other weights"):
        circuit_curve(model, unseen, edges)
    with pytest.raises(ModelError, match="other weights"):
        smallest_circuit(model, unseen, edges, 0.5)
    with pytest.raises(ModelError, match="other weights"):
        node_curve(model, unseen, nodes)
    neurons = assay.attribution_patching(other, seen, sites="heads,neurons", direction="noise")
    for scores, of, level in ((edges, "edge", "node"), (nodes, "node", "neuron"), (neurons, "neuron", "edge")):
        with pytest.raises(OptionError, match=f"scores of {of}s, which choose no circuit of {level}s"):
            find_circuit(other, seen, unseen, level, scores=scores)  # type: ignore[arg-type]
    found = find_circuit(other, seen, unseen, "edge", scores=edges)
    assert found.provenance["model"]["weights_sha256"] == other.weight_hash
    with pytest.raises(OptionError, match="no circuit of nodes"):
        replace(found, level="node")
    towards_clean = assay.attribution_patching(other, seen, sites="heads,mlps", direction="denoise")
    with pytest.raises(OptionError, match="direction 'denoise'"):
        find_circuit(other, seen, unseen, "node", scores=towards_clean)
    foreign = replace(edges, pairs=None, provenance={})
    ran = find_circuit(model, unseen, unseen, "edge", scores=foreign)
    assert (ran.provenance["model"]["weights_sha256"], ran.shared_prompts) == (model.weight_hash, None)


def test_random_scores_are_drawn_by_the_seed() -> None:
    model = wrapped("llama")
    seen, unseen = told_apart(model, 0), told_apart(model, 1)
    found = [find_circuit(model, seen, unseen, "edge", "random", seed=seed).scores for seed in (0, 3)]
    expected = edge_scores(model, seen, "random").mean
    assert isinstance(found[0], EdgeScores)
    assert isinstance(found[1], EdgeScores)
    np.testing.assert_array_equal(found[0].mean, expected)
    assert (found[1].mean != expected).all()
    assert found[1].configuration["seed"] == 3


def test_a_circuit_is_the_smallest_that_reaches() -> None:
    model = wrapped("llama")
    found = find_circuit(model, told_apart(model, 0), told_apart(model, 1), faithfulness=0.8)
    assert found.faithfulness.value >= 0.8
    assert found.kept.sum() < found.graph.n_edges
    with pytest.raises(OptionError, match="one of them"):
        find_circuit(model, told_apart(model, 0), told_apart(model, 1), faithfulness=0.8, size=0.1)


@pytest.mark.parametrize("family", ["llama", "gpt-neox"])
def test_drawings_have_every_edge(family: str) -> None:
    model = wrapped(family)
    found = find_circuit(model, told_apart(model, 0), told_apart(model, 1), "edge", "eap", size=0.3)
    dot, svg = to_dot(found), to_svg(found)
    names = {Graph.of(model).edge_name(int(edge)) for edge in np.flatnonzero(found.kept)}
    assert {edge.name for edge in edges_of(found)} == names
    assert all(
        f'tooltip="{name} ' in dot and f"{name.replace('>', '&gt;').replace('<', '&lt;')}: " in svg for name in names
    )
    assert dot.count("not causally validated") == svg.count("not causally validated") == 1
    drawn = {end for edge in edges_of(found) for end in (edge.source, edge.target)}
    assert drawn == set(nodes_of(found))


def test_prompts_are_split_without_overlap() -> None:
    pairs = random_pairs(10)
    seen, unseen = split_pairs(pairs, 4)
    assert (len(seen), len(unseen)) == (4, 6)
    twice = type(pairs)((*pairs.pairs[:5], *pairs.pairs[:5]), metric="logit-diff")
    with pytest.raises(DataError, match="0 others are left"):
        split_pairs(twice, 5)
    seen, unseen = split_pairs(twice)
    assert not prompts(seen) & prompts(unseen)


def prompts(pairs: assay.PromptPairs) -> set[str]:
    return {prompt for pair in pairs for prompt in (pair.clean, pair.corrupted)}


def swapped(pairs: assay.PromptPairs) -> assay.PromptPairs:
    return replace(
        pairs,
        pairs=tuple(
            assay.PromptPair(pair.corrupted, pair.clean, pair.wrong_answer, pair.answer)  # type: ignore[arg-type]
            for pair in pairs
        ),
    )


def test_pairs_that_share_a_prompt_stay_on_one_side() -> None:
    base = random_pairs(8).pairs
    other_corruption = [assay.PromptPair(a.clean, b.clean, a.answer, a.wrong_answer) for a, b in pairwise(base[:4])]
    pairs = assay.PromptPairs((*base, *other_corruption), metric="logit-diff")
    seen, unseen = split_pairs(pairs)
    assert not prompts(seen) & prompts(unseen)
    assert (len(seen), len(unseen)) == (4, 7)  # the first four are one group of 7, which is more than half
    chain = assay.PromptPairs(
        tuple(assay.PromptPair(a.clean, b.clean, a.answer, a.wrong_answer) for a, b in pairwise(base)),
        metric="logit-diff",
    )
    seen, unseen = split_pairs(chain)  # all are connected: a plain half
    assert (len(seen), len(unseen)) == (3, 4)
    assert shared_prompts(wrapped("llama"), unseen, seen, chat=False) == 1
    doubled = assay.PromptPairs((*base[:4], *swapped(assay.PromptPairs(base[:4], metric="logit-diff")), *base[4:6]))
    assert len(split_pairs(doubled, 4)[1]) == 2  # a swapped pair is the same two prompts


def test_swapped_pairs_are_known_again() -> None:
    model, pairs = wrapped("llama"), random_pairs(4)
    scores = edge_scores(model, pairs, "random", force=True)
    with pytest.raises(DataError, match=r"4 of 4 prompt pairs were used for the scores .* swapped"):
        circuit_curve(model, swapped(pairs), scores, force=True)
    assert shared_prompts(model, pairs, None, chat=False) is None


def test_prompts_in_a_chat_template_are_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrapped("llama")
    monkeypatch.setattr(model.tokenizer, "chat_template", "{{ messages[0].content }} w1")
    pairs = random_pairs(4)
    scores = edge_scores(model, pairs, "random", chat=True, force=True)
    with pytest.raises(DataError, match="4 of 4 prompt pairs were used for the scores"):
        circuit_curve(model, pairs, scores, chat=True, force=True)
