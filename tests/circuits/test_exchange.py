"""Scores and circuits exchanged with MIB: its own file, nodes, and folders for its leaderboard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

import assay
from assay.circuits import (
    add_to_submission,
    check_submission,
    edge_scores,
    node_curve,
    read_mib,
    read_mib_circuit,
    read_mib_nodes,
    write_mib,
    write_mib_nodes,
)
from assay.circuits.graph import Graph
from assay.circuits.nodes import node_scores
from assay.circuits.selection import top
from assay.circuits.submission import SHARES, entry_name
from assay.errors import DataError, OptionError
from circuits.prompts import told_apart
from conftest import random_pairs, wrapped
from families import VOCABULARY, tiny_tokenizer

GOLDEN = Path(__file__).parents[3] / "shared/data/mib/ioi-eap-ig.json"


@pytest.fixture(scope="module")
def gpt2_shaped() -> assay.Model:
    """Of the shape of GPT-2 small, with few words and small MLPs."""
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=768, n_layer=12, n_head=12, n_inner=8)
    return assay.load(GPT2LMHeadModel(config).eval(), tiny_tokenizer())


@pytest.mark.skipif(not GOLDEN.is_file(), reason="MIB's own file is not here")
def test_mibs_own_file_comes_back_equal(gpt2_shaped: assay.Model, tmp_path: Path) -> None:
    scores, kept = read_mib(GOLDEN, gpt2_shaped), read_mib_circuit(GOLDEN, gpt2_shaped)
    assert scores.graph.n_edges == 32_491
    assert kept.sum() == 756
    assert (kept == scores.graph.pruned(kept)).all()
    write_mib(scores, tmp_path / "again.json", kept)
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(GOLDEN.read_text())


@pytest.mark.skipif(not GOLDEN.is_file(), reason="MIB's own file is not here")
def test_our_files_have_the_fields_of_mibs_own(gpt2_shaped: assay.Model, tmp_path: Path) -> None:
    scores = edge_scores(gpt2_shaped, random_pairs(2), "random", force=True)
    write_mib(scores, tmp_path / "ours.json")
    ours, theirs = json.loads((tmp_path / "ours.json").read_text()), json.loads(GOLDEN.read_text())
    del ours["assay"]
    assert ours["cfg"] == theirs["cfg"]
    for what in ("nodes", "edges"):
        assert {name: set(of) for name, of in ours[what].items()} == {n: set(of) for n, of in theirs[what].items()}


def test_a_file_of_another_width_is_refused(tmp_path: Path) -> None:
    model, path = wrapped("gpt2"), tmp_path / "scores.json"
    write_mib(edge_scores(model, random_pairs(2), "eap", force=True), path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "cfg": {**content["cfg"], "d_model": 768}}))
    with pytest.raises(DataError, match="another model"):
        read_mib(path, model)


def test_sign_and_ranking_are_recorded(tmp_path: Path) -> None:
    model, path = wrapped("gpt2"), tmp_path / "scores.json"
    scores = edge_scores(model, random_pairs(2), "eap", force=True)
    write_mib(scores, path, top(scores.mean, 9, absolute=True), "absolute")
    said = json.loads(path.read_text())["assay"]
    assert said["sign"].startswith("positive: the metric falls")
    assert said["ranking"] == "absolute"
    np.testing.assert_array_equal(read_mib_circuit(path, model), top(scores.mean, 9, absolute=True))
    write_mib(edge_scores(model, random_pairs(2), "random", force=True), path)
    assert json.loads(path.read_text())["assay"]["sign"] is None


@pytest.mark.parametrize("family", ["gpt2", "gpt-neox", "llama"])
@pytest.mark.parametrize("sites", ["heads,mlps,embeddings", "heads,mlps"])
def test_nodes_come_back(family: str, sites: str, tmp_path: Path) -> None:
    model, path = wrapped(family), tmp_path / "nodes.json"
    scores = assay.attribution_patching(model, told_apart(model, 0), sites=sites, direction="noise")
    write_mib_nodes(scores, path, parallel=model.is_parallel)
    found = read_mib_nodes(path, model)
    np.testing.assert_array_equal(found, node_scores(Graph.of(model), scores))
    unseen = told_apart(model, 1)
    ours, theirs = (node_curve(model, unseen, each).curve for each in (scores, found))
    assert (ours.cpr, ours.cmd) == (theirs.cpr, theirs.cmd)
    with pytest.raises(DataError, match="scores of nodes"):
        read_mib(path, model)
    content = json.loads(path.read_text())
    content["nodes"]["m0"]["neurons_scores"] = [0.0] * model.d_model
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="coordinates of the residual stream"):
        read_mib_nodes(path, model)


def test_neurons_are_not_exported(tmp_path: Path) -> None:
    model = wrapped("llama")
    scores = assay.attribution_patching(model, told_apart(model, 0), sites="heads,neurons", direction="noise")
    with pytest.raises(OptionError, match="not neurons of an MLP"):
        write_mib_nodes(scores, tmp_path / "neurons.json")
    with pytest.raises(OptionError, match="sources, and these scores are"):
        node_curve(model, told_apart(model, 1), np.zeros(3))


def submission(folder: Path) -> Path:
    """Two tasks of a model that calls itself by two names, as scores and as nine circuits."""
    model = wrapped("gpt2")
    scores = edge_scores(model, random_pairs(2), "eap", force=True)
    write_mib(scores, folder / "scores.json")
    add_to_submission(folder / "all", "ioi_gpt2", folder / "scores.json")
    several = folder / "all" / "mcqa_qwen2.5"
    several.mkdir()
    for number, share in enumerate(SHARES):
        kept = top(scores.mean, int(share * scores.graph.n_edges), absolute=True)
        write_mib(scores, several / f"{number}.json", kept)
    return folder / "all"


def test_a_submission_is_checked(tmp_path: Path) -> None:
    folder = submission(tmp_path)
    found = check_submission(folder)
    assert [(e.task, e.model, e.level, e.circuits) for e in found] == [
        ("ioi", "gpt2", "edge", 0),
        ("mcqa", "qwen2.5", "edge", 9),
    ]


def test_what_is_wrong_with_a_submission_is_said(tmp_path: Path) -> None:
    folder = submission(tmp_path)

    def refused(message: str, **options: bool) -> None:
        with pytest.raises(DataError, match=message):
            check_submission(folder, **options)

    scores = folder / "ioi_gpt2/importances.json"
    content = json.loads(scores.read_text())
    edge = next(iter(content["edges"]))
    for message, changed in (
        (
            "edges are missing or unknown",
            {**content, "edges": {n: e for n, e in content["edges"].items() if n != edge}},
        ),
        ("not a finite number", {**content, "edges": {**content["edges"], edge: {"score": None, "in_graph": True}}}),
        ("whether it is in_graph", {**content, "edges": {**content["edges"], edge: {"score": 1.0}}}),
        ("cfg lacks", {**content, "cfg": {}}),
        (
            "all scores are the same",
            {**content, "edges": {n: {**e, "score": 1.0} for n, e in content["edges"].items()}},
        ),
        ("needs cfg", []),
    ):
        scores.write_text(json.dumps(changed))
        refused(message)
    scores.write_text("{")
    refused("not JSON")
    scores.write_text(json.dumps(content))
    shutil.copy(folder / "mcqa_qwen2.5/8.json", folder / "mcqa_qwen2.5/0.json")
    refused("a circuit of at most")
    (folder / "mcqa_qwen2.5/0.json").unlink()
    refused("has 8 files")
    shutil.rmtree(folder / "mcqa_qwen2.5")
    refused("two or more tasks; there is 1 of its own")
    assert len(check_submission(folder, complete=False)) == 1
    (folder / "ioi").mkdir()
    refused("TASK_MODEL")
    (folder / "ioi").rename(folder / "ioi_llama3")
    (folder / "ioi_llama3/importances.pt").write_bytes(b"")
    refused("is a pickle")


def test_entries_have_mibs_names() -> None:
    assert (
        entry_name("arithmetic", "meta-llama/Llama-3.1-8B", {"operation": "minus"}) == "arithmetic-subtraction_llama3"
    )
    assert entry_name("copy-colours", "google/gemma-2-2b") == "mcqa_gemma2"
    assert entry_name("arc_easy", "smollm2-135m") == "arc-easy_smollm2-135m"
