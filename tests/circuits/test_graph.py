"""The graph's arrays against a graph of objects, and pruning against networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from assay.circuits.graph import Graph
from assay.circuits.selection import above, greedy, top
from assay.errors import OptionError

SHAPES = [
    Graph(3, 4, 4),
    Graph(3, 4, 2),
    Graph(3, 4, 1, parallel=True),
    Graph(2, 4, 2, ungrouped=True),
    Graph(1, 1, 1, parallel=True),
]


def edges_by_hand(graph: Graph) -> list[tuple[str, str]]:
    """Every earlier source to every later destination, read off the forward pass."""
    found, written = [], ["input"]
    for layer in range(graph.n_layers):
        readers = [f"a{layer}.h{head}<q>" for head in range(graph.n_heads)]
        for kind in "kv":
            if graph.ungrouped or graph.n_kv_heads == graph.n_heads:
                readers += [f"a{layer}.h{head}<{kind}>" for head in range(graph.n_heads)]
            else:
                readers += [f"a{layer}.kv{head}<{kind}>" for head in range(graph.n_kv_heads)]
        heads = [f"a{layer}.h{head}" for head in range(graph.n_heads)]
        found += [(source, reader) for reader in readers for source in written]
        seen_by_mlp = written if graph.parallel else written + heads
        found += [(source, f"m{layer}") for source in seen_by_mlp]
        written = [*written, *heads, f"m{layer}"]
    return found + [(source, "logits") for source in written]


def as_networkx(graph: Graph, kept: np.ndarray) -> nx.DiGraph:
    """Kept edges to readers, and from each reader to the sources that it feeds."""
    found = nx.DiGraph()
    found.add_nodes_from(["input", "logits"])
    for edge in np.flatnonzero(kept):
        source, reader = graph.edge_name(edge).split("->")
        found.add_edge(source, f"read:{reader}" if reader != "logits" else reader)
    group = graph.n_heads // graph.kv_units
    for layer in range(graph.n_layers):
        for head in range(graph.n_heads):
            found.add_edge(f"read:a{layer}.h{head}<q>", f"a{layer}.h{head}")
            unit = "h" if group == 1 else "kv"
            for kind in "kv":
                found.add_edge(f"read:a{layer}.{unit}{head // group}<{kind}>", f"a{layer}.h{head}")
        found.add_edge(f"read:m{layer}", f"m{layer}")
    return found


def test_gpt2_small_has_the_published_counts() -> None:
    graph = Graph(12, 12, 12)
    assert (graph.n_nodes, graph.n_edges) == (158, 32_491)
    assert Graph(30, 9, 3).n_edges == 70_651
    assert Graph(30, 9, 3, ungrouped=True).n_edges == 123_211


@pytest.mark.parametrize("graph", SHAPES)
def test_edges_are_every_earlier_source_to_every_later_destination(graph: Graph) -> None:
    by_hand = [f"{source}->{reader}" for source, reader in edges_by_hand(graph)]
    assert graph.edge_names == by_hand
    assert [graph.edge(name) for name in by_hand] == list(range(graph.n_edges))


def test_names_that_are_no_edge_are_refused() -> None:
    graph = Graph(3, 4, 2)
    with pytest.raises(OptionError, match="reads before m2 writes"):
        graph.edge("m2->a1.h0<q>")
    with pytest.raises(OptionError, match="key-value heads"):
        graph.edge("input->a0.h0<k>")
    with pytest.raises(OptionError, match="no edge 'a9"):
        graph.edge("a9.h0->logits")


@pytest.mark.parametrize("graph", SHAPES)
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.8])
def test_pruned_is_what_lies_on_a_path(graph: Graph, share: float) -> None:
    for seed in range(5):
        kept = np.random.default_rng(seed).random(graph.n_edges) < share
        paths = as_networkx(graph, kept)
        forward = nx.descendants(paths, "input") | {"input"}
        backward = nx.ancestors(paths, "logits") | {"logits"}
        expected = np.zeros(graph.n_edges, bool)
        for edge in np.flatnonzero(kept):
            source, reader = graph.edge_name(edge).split("->")
            expected[edge] = source in forward and (reader if reader == "logits" else f"read:{reader}") in backward
        pruned = graph.pruned(kept)
        np.testing.assert_array_equal(pruned, expected)
        np.testing.assert_array_equal(graph.pruned(pruned), pruned)


def test_a_table_holds_each_edge_once() -> None:
    graph = Graph(2, 3, 3)
    table = graph.table(np.arange(1, graph.n_edges + 1))
    assert sorted(table[table > 0]) == list(range(1, graph.n_edges + 1))
    name = "a0.h2->a1.h1<v>"
    assert table[graph.destination_names.index("a1.h1<v>"), graph.source_names.index("a0.h2")] == graph.edge(name) + 1


def test_selection_ranks_signed_or_absolute_and_ties_by_order() -> None:
    scores = [3.0, -5.0, 3.0, 0.0, 1.0]
    assert np.flatnonzero(top(scores, 2, absolute=False)).tolist() == [0, 2]
    assert np.flatnonzero(top(scores, 2, absolute=True)).tolist() == [0, 1]
    assert np.flatnonzero(above(scores, 3, absolute=True)).tolist() == [0, 1, 2]
    for bad in (lambda: top(scores, 6, absolute=True), lambda: above([np.nan], 0, absolute=False)):
        with pytest.raises(OptionError):
            bad()


@pytest.mark.parametrize("graph", SHAPES)
@pytest.mark.parametrize("absolute", [True, False])
def test_greedy_takes_the_best_of_what_leads_to_the_logits(graph: Graph, absolute: bool) -> None:
    scores = np.random.default_rng(0).standard_normal(graph.n_edges)
    keys = np.abs(scores) if absolute else scores
    n = graph.n_edges // 3
    expected: set[int] = set()
    for _ in range(n):  # slow and obvious: all edges into what the circuit reaches, best first
        sources = {graph.edge_sources[edge] for edge in expected}
        open_to = [d for d in range(graph.n_destinations) if any(graph.owners[d, s] for s in sources)]
        open_to.append(graph.n_destinations - 1)
        candidates = set(np.flatnonzero(np.isin(graph.edge_destinations, open_to))) - expected
        expected.add(max(candidates, key=lambda edge: keys[edge]))
    assert set(np.flatnonzero(greedy(graph, scores, n, absolute=absolute))) == expected
