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
from assay.circuits.naming import item_name, neurons_of, nodes_of

COLOURS = {"q": "#1b7837", "k": "#b35806", "v": "#762a83", "": "#667085"}
"""Of edges into queries, keys, values, and into MLPs and the logits."""
MOST_EDGES = 120
"""Drawn on the page: more cannot be told apart. DOT has all."""
WIDEST_BESIDE = 700
ACROSS, UP, WIDE, HIGH = 92, 58, 66, 26
ASIDE = tuple(sign * 0.5 * ACROSS * step for step in range(9) for sign in ((1, -1) if step else (1,)))
"""How far a line may bend to one side."""
_T = np.linspace(0, 1, 41)[:, None]
BEZIER = np.concatenate([(1 - _T) ** 3, 3 * (1 - _T) ** 2 * _T, 3 * (1 - _T) * _T**2, _T**3], axis=1)
Place = tuple[float, float]


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


def drawn_nodes(found: FoundCircuit) -> list[str]:
    """All nodes of the circuit or, of very many edges, those that the strongest touch."""
    nodes, edges = nodes_of(found), edges_of(found)
    if len(edges) <= MOST_EDGES:
        return nodes
    touched = {name for edge in edges[:MOST_EDGES] for name in (edge.source, edge.target)}
    return [name for name in nodes if name in touched]


def is_wide(found: FoundCircuit) -> bool:
    """Whether the drawing needs the whole width of the page."""
    return _places(drawn_nodes(found))[1] > WIDEST_BESIDE


def caption(found: FoundCircuit) -> str:
    """What is drawn, and what may be said of it."""
    if not isinstance(found.scores, EdgeScores):
        how_many = " With an MLP, how many of its neurons are in." if found.level == "neuron" else ""
        return (
            f"Nodes of the circuit, input at the bottom; every edge between them is kept, so none is drawn.{how_many} "
            f"Scores: {found.label}."
        )
    lines, edges = len(edges_of(found)), int(found.kept.sum())
    more = ""
    if lines > MOST_EDGES:
        more = f" Drawn here: the {MOST_EDGES} strongest lines and the nodes that they touch; circuit.dot has all."
    shared = ""
    if lines > edges:
        shared = (
            f" An edge into keys or values that heads share is drawn to each head of the group that is in the circuit, "
            f"so {edges} edges are {lines} lines."
        )
    return (
        f"Edges of the circuit by {found.scores.method}: {found.label}. Input at the bottom. Width: absolute score; "
        "dashed: the score is negative. Green: into queries, brown: keys, purple: values, grey: MLPs and logits."
        f"{shared}{more}"
    )


def to_svg(found: FoundCircuit) -> str:
    """The drawing as an SVG element; every line and node has a title, which a page's script shows at once."""
    places, width, height = _places(drawn_nodes(found))
    least, most = min(width, int(0.75 * width) + 60), int(1.5 * width)
    middles = np.array(list(places.values()))
    neurons = neurons_of(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'style="display: block; margin: 0 auto; width: 100%; min-width: {least}px; max-width: {most}px" '
        'font-family="system-ui, sans-serif" font-size="14" class="graph" role="group">',
        f"<title>{escape(caption(found))}</title>",
        "<defs>",
        *(
            f'<marker id="into-{reads or "other"}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" '
            'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" '
            f'fill="var(--into-{reads or "other"}, {colour})"/></marker>'
            for reads, colour in COLOURS.items()
        ),
        "</defs>",
    ]
    for edge in reversed(edges_of(found)[:MOST_EDGES]):
        line = _route(places[edge.source], places[edge.target], middles, width)
        (x0, y0), (x1, y1), (x2, y2), (x3, y3) = line
        dash = ' stroke-dasharray="5 4"' if edge.score < 0 else ""
        way = f"M{x0:.0f} {y0:.0f}C{x1:.0f} {y1:.0f} {x2:.0f} {y2:.0f} {x3:.0f} {y3:.0f}"
        parts.append(
            f'<g class="edge" data-source="{escape(edge.source)}" data-target="{escape(edge.target)}">'
            f"<title>{escape(edge.name)}: {edge.score:+.4g}</title>"
            f'<path class="reach" d="{way}" fill="none" stroke="none" stroke-width="10" pointer-events="stroke"/>'
            f'<path d="{way}" fill="none" stroke="{_ink(edge.reads)}" stroke-width="{0.8 + 3.2 * edge.weight:.2f}" '
            f'stroke-opacity="0.8" marker-end="url(#into-{edge.reads or "other"})"{dash}/></g>'
        )
    about = _about(found)
    for name, (x, y) in places.items():
        shown = f"{name} ({neurons[name]})" if name in neurons else name
        parts.append(
            f'<g class="node" data-node="{escape(name)}"><title>{escape(about[name])}</title>'
            f'<rect x="{x - WIDE / 2:.0f}" y="{y - HIGH / 2:.0f}" width="{WIDE}" height="{HIGH}" rx="6" '
            f'fill="var(--card, #fff)" stroke="#667085"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="currentColor">{escape(shown)}</text></g>'
        )
    return "\n".join([*parts, "</svg>"])


def _ink(reads: str) -> str:
    """A page in the dark has lighter ones."""
    return f"var(--into-{reads or 'other'}, {COLOURS[reads]})"


def _about(found: FoundCircuit) -> dict[str, str]:
    """Of each node its name and what is known of it: its edges and the strongest, or its own score."""
    if isinstance(found.scores, EdgeScores):
        edges = edges_of(found)
        said = {}
        for name in nodes_of(found):
            into, out = ([e for e in edges if getattr(e, end) == name] for end in ("target", "source"))
            strongest = max([*into, *out], key=lambda e: abs(e.score), default=None)
            best = f"; strongest {strongest.name} {strongest.score:+.4g}" if strongest else ""
            said[name] = f"{name}: {len(into)} into it, {len(out)} out of it{best}"
        return said
    scores = {item_name(c): value for c, value in zip(found.scores.components, found.scores.importance, strict=True)}
    return {name: f"{name}: {scores[name]:+.4g}" if name in scores else name for name in nodes_of(found)}


def _route(source: Place, target: Place, middles: np.ndarray, width: int) -> np.ndarray:
    """(4, 2) a Bezier curve from above one node to below another that crosses the fewest others, and bends least."""
    (x0, y0), (x1, y1) = (source[0], source[1] - HIGH / 2), (target[0], target[1] + HIGH / 2 + 1)
    bend = 0.4 * (y0 - y1)
    others = middles[(middles != np.array(source)).any(1) & (middles != np.array(target)).any(1)]
    best: tuple[float, np.ndarray] | None = None
    for aside in ASIDE:
        curve = np.array([(x0, y0), (x0 + aside, y0 - bend), (x1 + aside, y1 + bend), (x1, y1)])
        points = BEZIER @ curve
        if best is not None and (best[0] == 0 or points[:, 0].min() < 4 or points[:, 0].max() > width - 4):
            continue
        inside = np.abs(points[:, None] - others[None]) < (WIDE / 2 + 2, HIGH / 2 + 2)
        crossed = float(inside.all(2).any(0).sum())
        if best is None or crossed < best[0]:
            best = crossed, curve
    assert best is not None
    return best[1]


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
