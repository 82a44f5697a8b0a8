"""What share of the machine's rate on matrix products exact patching of all heads reaches.

The operations counted are those that the patches need, a multiply and an add being two:

- the clean and the corrupted prompts once through all layers, to have what is patched in and what is patched;
- for each patch of a head at layer l in a pair whose prompts first differ at position f, positions f to the last only:
  W_O and MLP of layer l; the whole of every later layer (projections, MLP, and attention to each position's own past);
  of the last layer, keys and values at these positions, and the rest at the last position alone, which is read;
- the rows of the unembedding that the metric reads, two for each prompt and patch.

A second count takes layer l and the last layer as a whole, from position f on. The rates that it is compared with are
of matrix products alone, with nothing between them: all projections of one layer for some number of tokens, the best
of several numbers, and the best of square matrices. Both are measured in the same run, in turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from common import Side, make_job, parser, take_turns
from results import Result, figure, require_same_every_time

TOKENS = (256, 1024, 4096)
SQUARES = (1024, 2048)


@dataclass(frozen=True)
class Layer:
    """Operations of one layer of the Llama architecture."""

    d_model: int
    d_mlp: int
    width: int
    n_heads: int
    n_kv_heads: int

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(out, in) of the projections: q, k, v, o, gate, up, down."""
        q, kv = self.n_heads * self.width, self.n_kv_heads * self.width
        m, f = self.d_model, self.d_mlp
        return [(q, m), (kv, m), (kv, m), (m, q), (f, m), (f, m), (m, f)]

    def projection(self, *which: int) -> int:
        """Of one token through some of the projections."""
        return sum(2 * wide * narrow for wide, narrow in (self.shapes[i] for i in which))

    def attention(self, first: int, end: int) -> int:
        """Scores and mixing of positions ``first`` to ``end - 1``, each attending to itself and its past."""
        keys = sum(position + 1 for position in range(first, end))
        return 2 * 2 * self.n_heads * self.width * keys

    def whole(self, first: int, end: int) -> int:
        return (end - first) * self.projection(*range(7)) + self.attention(first, end)

    def after_heads(self, tokens: int) -> int:
        """W_O and MLP."""
        return tokens * self.projection(3, 4, 5, 6)

    def last(self, first: int, end: int) -> int:
        """Where only the last position is read."""
        return (end - first) * self.projection(1, 2) + self.projection(0, 3, 4, 5, 6) + self.attention(end - 1, end)


def needed(job: dict[str, Any], *, whole_layers: bool) -> int:
    """Operations that patching every head in every pair needs."""
    layer = Layer(*(job[name] for name in ("d_model", "d_mlp", "width", "n_heads", "n_kv_heads")))
    final = job["n_layers"] - 1
    unembedding = 2 * 2 * job["d_model"]
    total = 0
    for row in job["rows"]:
        end = len(row["clean"])
        first = next(p for p in range(end) if row["clean"][p] != row["corrupted"][p])
        total += 2 * (final * layer.whole(0, end) + unembedding)
        total += 2 * (layer.whole(0, end) if whole_layers else layer.last(0, end))
        for entry in range(job["n_layers"]):
            if whole_layers:
                patch = (job["n_layers"] - entry) * layer.whole(first, end)
            elif entry == final:
                patch = layer.after_heads(1)
            else:
                patch = (
                    layer.after_heads(end - first)
                    + (final - entry - 1) * layer.whole(first, end)
                    + layer.last(first, end)
                )
            total += job["n_heads"] * (patch + unembedding)
    return total


def main() -> None:
    given = parser(__doc__, "arithmetic").parse_args()
    job = make_job(given.model, given.pairs, given.memory)
    layer = Layer(*(job[name] for name in ("d_model", "d_mlp", "width", "n_heads", "n_kv_heads")))
    ours = Side("assay", "with_assay.py", {**job, "measures": [{"method": "activation-patching", "sites": "heads"}]})
    products = Side(
        "matrix products", "matrix_products.py", {"shapes": layer.shapes, "tokens": TOKENS, "squares": SQUARES}
    )
    take_turns([products, ours], given.repeats)
    require_same_every_time(ours)
    rates = {kind: [float(answer.values[kind].max()) for answer in products.answers] for kind in ("layer", "square")}
    by_tokens = np.median([answer.values["layer"] for answer in products.answers], axis=0) / 1e9
    figures = [
        figure("matrix products of a layer, best", [rate / 1e9 for rate in rates["layer"]], "GFLOP/s"),
        figure("matrix products, square, best", [rate / 1e9 for rate in rates["square"]], "GFLOP/s"),
    ]
    for counted, whole_layers in (("needed", False), ("with first and last layer whole", True)):
        operations = needed(job, whole_layers=whole_layers)
        reached = [operations / seconds for seconds in ours.seconds]
        figures.append(figure(f"operations {counted}", [operations / 1e9], "GFLOP"))
        for kind, name in (("layer", "a layer's products"), ("square", "square products")):
            shares = [100 * rate / best for rate, best in zip(reached, rates[kind], strict=True)]
            goal = "at least 60, aim 75" if kind == "layer" else ""
            figures.append(figure(f"share of the rate of {name}, operations {counted}", shares, "%", goal))
    Result(
        "arithmetic",
        "Share of the machine's rate on matrix products",
        f"{given.model}, exact patching of {job['n_layers'] * job['n_heads']} heads, {given.pairs} IOI pairs, one "
        "thread, float32; loading is not counted, the unpatched runs and all checks are. "
        "`benchmarks/arithmetic.py` says what operations are counted.",
        [ours],
        [*figures, figure("peak memory", [ours.peak_bytes / 1e9], "GB", "under 2")],
        notes=[
            "A layer's products by number of tokens: "
            + ", ".join(f"{tokens}: {rate:.3g} GFLOP/s" for tokens, rate in zip(TOKENS, by_tokens, strict=True)) + "."
        ],
    ).finish(given.out)  # fmt: skip


if __name__ == "__main__":
    main()
