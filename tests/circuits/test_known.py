"""Circuits written by hand: what is known of them shows, and what each kind of method misses."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from assay.circuits import edge_scores, run_circuits
from assay.circuits.graph import Graph
from assay.circuits.known import KNOWN_CIRCUITS, auroc, edge_table, known_circuit
from assay.circuits.pairs import node_effects
from assay.circuits.registry import EDGE_METHODS
from assay.errors import DataError, OptionError

PAGE = (Path(__file__).parents[2] / "docs/circuits.md").read_text("utf-8")


@pytest.mark.parametrize("name", KNOWN_CIRCUITS)
def test_the_known_edges_carry_the_behaviour_and_none_can_be_spared(name: str) -> None:
    known = known_circuit(name)
    graph, flags = Graph.of(known.model), known.flags
    without = np.stack([flags, *(flags & (np.arange(graph.n_edges) != edge) for edge in np.flatnonzero(flags))])
    found = run_circuits(known.model, known.pairs, graph, without).faithfulness()
    assert found[0] == pytest.approx(1, abs=0.1)
    if name != "redundant-movers":  # where one of two can
        assert (found[1:] < 0.7).all()


@pytest.mark.parametrize("name", KNOWN_CIRCUITS)
def test_exact_edges_are_those_that_were_written(name: str) -> None:
    known = known_circuit(name)
    table = edge_table(known)
    assert auroc(table["effect"], table["known"]) == 1
    if name != "redundant-movers":
        assert table["effect"][table["known"]].min() > 1


def test_a_pair_of_patches_finds_what_single_ones_miss() -> None:
    known = known_circuit("redundant-movers")
    effects = node_effects(known.model, known.pairs)
    first, second = (effects.names.index(name) for name in ("a0.h0", "a0.h1"))
    whole = effects.joint[0, 0]
    assert max(effects.single[[first, second]]) < 0.03 * whole
    assert effects.joint[first, second] > 0.97 * whole
    heads = [i for i, node in enumerate(effects.names) if ".h" in node]
    among = effects.interaction[np.ix_(heads, heads)]
    assert np.unravel_index(among.argmax(), among.shape) == (heads.index(first), heads.index(second))
    assert tuple(effects.to_pandas().query("interaction > 0").iloc[0][["first", "second"]]) == ("a0.h0", "a0.h1")


def test_a_pair_that_cancels_hurts_alone_and_not_together() -> None:
    known = known_circuit("cancelling-pair")
    effects = node_effects(known.model, known.pairs)
    first, second = (effects.names.index(name) for name in ("a0.h1", "a0.h2"))
    assert min(effects.single[[first, second]]) > 1
    assert abs(effects.joint[first, second]) < 0.5


def test_node_effects_are_activation_patching_one_by_one() -> None:
    import assay

    known = known_circuit("induction", n=4)
    effects = node_effects(known.model, known.pairs)
    patched = assay.measure("activation-patching", known.model, known.pairs, sites="heads,mlps", direction="noise")
    for component, importance in zip(patched.components, patched.importance, strict=True):
        name = f"m{component.layer}" if component.site == "mlps" else f"a{component.layer}.h{component.unit}"
        assert effects.single[effects.names.index(name)] == pytest.approx(importance, abs=1e-9)
    np.testing.assert_array_equal(effects.joint, effects.joint.T)


@pytest.mark.parametrize("method", [name for name in EDGE_METHODS if name != "random"])
def test_a_helpful_edge_scores_above_zero_under_every_method(method: str) -> None:
    """Attention and norms are constants there, so the model is linear, and its two heads help."""
    known = known_circuit("reversal")
    found, exact = (edge_scores(known.model, known.pairs, name) for name in (method, "exact"))
    for edge in map(found.graph.edge, ("a0.h0->logits", "a0.h1->logits")):
        assert found.mean[edge] > 0
        assert exact.mean[edge] > 1
        if found.estimates_effect:
            assert found.mean[edge] == pytest.approx(exact.mean[edge], rel=0.01)


def test_auroc_counts_pairs() -> None:
    draw = np.random.default_rng(0)
    scores, inside = draw.integers(0, 5, 40), draw.random(40) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a in scores[inside] for b in scores[~inside]]
    assert auroc(scores, inside) == pytest.approx(np.mean(pairs))
    with pytest.raises(DataError, match="40 of 40"):
        auroc(scores, np.ones(40, bool))
    with pytest.raises(OptionError, match="no known circuit"):
        known_circuit("nothing")


def test_the_table_in_the_docs_is_what_comes_out() -> None:
    (head, *rows) = re.findall(r"^\| (?:known circuit|`[a-z-]+`) (?:\| [^|\n]* )+\|$", PAGE.split("## Known")[1], re.M)
    methods = re.findall(r"`([\w-]+)`", head)
    assert set(methods) == set(EDGE_METHODS)
    assert len(rows) == len(KNOWN_CIRCUITS)
    for row in rows:
        name, *cells = (cell.strip(" `") for cell in row.strip("|").split("|"))
        known = known_circuit(name)
        found = [auroc(edge_scores(known.model, known.pairs, method).mean, known.flags) for method in methods]
        # Scores that vanish are ordered by rounding, which another machine may do otherwise.
        assert [float(cell) for cell in cells] == pytest.approx(found, abs=0.1)
