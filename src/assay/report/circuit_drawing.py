"""A circuit as a layered graph: SVG for the page, DOT for Graphviz.

The input lies at the bottom and the logits on top; each layer has a row of heads and above it, on the left, its
MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from assay.circuits.edges import EdgeScores
from assay.circuits.found import FoundCircuit

COLOURS = {"q": "#1b7837", "k": "#b35806", "v": "#762a83", "": "#667085"}
"""Of edges into queries, keys, values, and into MLPs and the logits."""
MOST_EDGES = 400
"""Drawn on the page: more cannot be told apart. DOT has all."""
ACROSS, UP, WIDE, HIGH = 74, 54, 60, 24


@dataclass(frozen=True)
class Drawn:
    """An edge between two nodes that are drawn, thickest at 1."""

    source: str
    target: str
    reads: str
    """``q``, ``k``, ``v``, or nothing."""
    name: str
    score: float
    weight: float


def edges_of(found: FoundCircuit) -> list[Drawn]:
    """The circuit's edges, strongest first; one into shared keys or values is drawn to each head that uses them."""
    if not isinstance(found.scores, EdgeScores):
        return []
    graph, mean = found.scores.graph, found.scores.mean
    kept = np.flatnonzero(found.kept)
    used = set(graph.edge_sources[kept])
    largest = np.abs(mean[kept]).max(initial=0.0) or 1.0
    drawn = []
    for edge in kept[np.argsort(-np.abs(mean[kept]), kind="stable")]:
        destination = int(graph.edge_destinations[edge])
        name = graph.destination_names[destination]
        owners = [int(owner) for owner in np.flatnonzero(graph.owners[destination]) if int(owner) in used]
        for target in [graph.source_names[owner] for owner in owners] or ["logits"]:
            reads = name.split("<")[1][0] if "<" in name else ""
            score = float(mean[edge])
            source = graph.source_names[graph.edge_sources[edge]]
            drawn.append(Drawn(source, target, reads, graph.edge_name(edge), score, abs(score) / largest))
    return drawn


def nodes_of(found: FoundCircuit) -> list[str]:
    """Names of the nodes in the circuit, in the order in which they write; the logits last."""
    graph = found.graph
    if isinstance(found.scores, EdgeScores):
        return [graph.source_names[i] for i in np.unique(graph.edge_sources[found.kept])] + ["logits"]
    sources, neurons = found.kept[: graph.n_sources].copy(), found.kept[graph.n_sources :]
    if len(neurons):
        per_layer = neurons.reshape(graph.n_layers, -1).any(1)
        sources[graph.n_heads + 1 :: graph.n_heads + 1] = per_layer
    return [name for name, kept in zip(graph.source_names, sources, strict=True) if kept] + ["logits"]


def caption(found: FoundCircuit) -> str:
    """What is drawn, and what may be said of it."""
    if not isinstance(found.scores, EdgeScores):
        return f"Nodes of the circuit; every edge between them is kept. Scores: {found.label}."
    many = len(edges_of(found)) > MOST_EDGES
    more = f" The page draws the {MOST_EDGES} strongest lines; circuit.dot has all." if many else ""
    return (
        f"Edges of the circuit by {found.scores.method}: {found.label}. Lines: width by absolute score, dashed where "
        "the score is negative; green into queries, brown into keys, purple into values, grey into MLPs and logits."
        f"{more}"
    )


def to_svg(found: FoundCircuit) -> str:
    """The drawing as an SVG element; it has a title for every line and node."""
    places, width, height = _places(nodes_of(found))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11" role="img">',
        f"<title>{escape(caption(found))}</title>",
    ]
    for edge in reversed(edges_of(found)[:MOST_EDGES]):
        (x0, y0), (x1, y1) = places[edge.source], places[edge.target]
        y0, y1 = y0 - HIGH / 2, y1 + HIGH / 2
        bend = (y0 - y1) / 2
        # Between nodes of one column a line makes room for the nodes in between.
        aside = min(0.15 * (y0 - y1 - UP + HIGH), ACROSS) if abs(x0 - x1) < 1 else 0.0
        dash = ' stroke-dasharray="5 4"' if edge.score < 0 else ""
        parts.append(
            f'<path d="M{x0:.0f} {y0:.0f}C{x0 + aside:.0f} {y0 - bend:.0f} {x1 + aside:.0f} {y1 + bend:.0f} '
            f'{x1:.0f} {y1:.0f}" '
            f'fill="none" stroke="{COLOURS[edge.reads]}" stroke-width="{0.8 + 3.2 * edge.weight:.2f}" '
            f'stroke-opacity="0.75"{dash}><title>{escape(edge.name)}: {edge.score:+.4g}</title></path>'
        )
    for name, (x, y) in places.items():
        parts.append(
            f'<rect x="{x - WIDE / 2:.0f}" y="{y - HIGH / 2:.0f}" width="{WIDE}" height="{HIGH}" rx="6" '
            f'fill="var(--card, #fff)" stroke="#667085"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle" fill="currentColor">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def to_dot(found: FoundCircuit) -> str:
    """The circuit for Graphviz, every edge of it, with its label."""
    lines = ["digraph circuit {", f'  label="{caption(found)}";', "  rankdir=BT; node [shape=box, style=rounded];"]
    rows: dict[int, list[str]] = {}
    for name in nodes_of(found):
        rows.setdefault(_row(name), []).append(name)
    for names in rows.values():
        lines.append("  { rank=same; " + " ".join(f'"{name}";' for name in names) + " }")
    for edge in edges_of(found):
        style = "dashed" if edge.score < 0 else "solid"
        lines.append(
            f'  "{edge.source}" -> "{edge.target}" [label="{edge.reads}", tooltip="{edge.name} {edge.score:+.4g}", '
            f'color="{COLOURS[edge.reads]}", penwidth={0.8 + 3.2 * edge.weight:.2f}, style={style}];'
        )
    return "\n".join([*lines, "}"]) + "\n"


def _row(name: str) -> int:
    """Of a layer's heads, then of its MLP; -1 for the input, and the logits above all."""
    if name == "input":
        return -1
    if name == "logits":
        return 1 << 30
    return 2 * int(name[1:].split(".")[0]) + (name[0] == "m")


def _places(names: list[str]) -> tuple[dict[str, tuple[float, float]], int, int]:
    """Middle of each node, and the size of the picture: MLPs on the left, a column for each number of a head.

    Rows and columns without a node take no room.
    """
    rows: dict[int, list[str]] = {}
    for name in names:
        rows.setdefault(_row(name), []).append(name)
    heads = sorted({_head(name) for name in names} - {None})  # type: ignore[type-var]
    width, height = ACROSS * (len(heads) + 2) + 20, UP * len(rows) + 20
    places = {}
    for level, row in enumerate(sorted(rows)):
        y = height - 10 - UP * (level + 0.5)
        for name in rows[row]:
            column = 0 if name[0] == "m" else 1 + (heads.index(head) if (head := _head(name)) is not None else 0)
            x = 10 + ACROSS * (column + 0.5)
            places[name] = ((width / 2 if name in ("input", "logits") else x), y)
    return places, width, height


def _head(name: str) -> int | None:
    return int(name.split(".h")[1]) if ".h" in name else None
