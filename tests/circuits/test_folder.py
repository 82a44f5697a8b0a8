"""Scores and circuits as files: what comes back is what was written, and damage is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.circuits import EdgeScores, FoundCircuit, circuit_curve, edge_scores, find_circuit, read_mib, write_mib
from assay.circuits.finding import split_pairs
from assay.circuits.graph import Graph
from assay.circuits.naming import nodes_of
from assay.errors import DataError, OptionError, StoreError
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
    (tmp_path / "folder/evaluation.jsonl").write_text("")
    with pytest.raises(StoreError, match="do not fit"):
        FoundCircuit.load(tmp_path / "folder")


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
        split_pairs(twice)


def test_prompts_in_a_chat_template_are_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrapped("llama")
    monkeypatch.setattr(model.tokenizer, "chat_template", "{{ messages[0].content }} w1")
    pairs = random_pairs(4)
    scores = edge_scores(model, pairs, "random", chat=True, force=True)
    with pytest.raises(DataError, match="4 of 4 prompt pairs were used for the scores"):
        circuit_curve(model, pairs, scores, chat=True, force=True)
