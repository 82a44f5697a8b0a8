"""What ablated components are set to: zero, or a mean over reference prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from assay.data.encoding import Row
from assay.engine.cost import CostMeter
from assay.errors import DataError
from assay.model import Model
from assay.model.recording import Recording, record

MeanOver = Literal["position", "all-positions"]
SMALLEST_GROUP = 32
"""Reference prompts of one length that a mean per position needs."""


def zeros(base: Recording) -> Recording:
    """Every head output and MLP contribution zero."""
    return Recording(
        base.ids,
        heads=[torch.zeros_like(heads[:1, :1]).expand_as(heads) for heads in base.heads],
        mlps=[torch.zeros_like(mlp[:1, :1]).expand_as(mlp) for mlp in base.mlps],
    )


class Means:
    """Mean activations over reference prompts.

    Args:
        rows: their corrupted side is the reference.
        over: ``position``: for each position, over the reference rows that are exactly as long as the
            patched one (at least 32 of them); ``all-positions``: over all rows and positions.
        batch_rows: rows to run at once.
    """

    def __init__(
        self, model: Model, rows: Sequence[Row], over: MeanOver, batch_rows: int, cost: CostMeter, lengths: set[int]
    ) -> None:
        self.over = over
        groups: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        prompts: defaultdict[int, set[int]] = defaultdict(set)
        for row in rows:
            groups[len(row.corrupted)].append(row.corrupted)
            prompts[len(row.corrupted)].add(row.example)
        if over == "position":
            _require_large_groups({length: len(prompts[length]) for length in sorted(lengths)})
        sums: dict[int, list[Tensor]] = {}
        counts: dict[int, int] = {}
        for length, ids in groups.items():
            key = length if over == "position" else 0
            for first in range(0, len(ids), batch_rows):
                part = torch.tensor(ids[first : first + batch_rows], device=model.device)
                recording = record(model, part)
                cost.forward(part.shape[0], part.shape[1], model.n_layers)
                dims = (0,) if over == "position" else (0, 1)
                found = [tensor.double().sum(dims) for tensor in (*recording.heads, *recording.mlps)]
                sums[key] = [a + b for a, b in zip(sums[key], found, strict=True)] if key in sums else found
                counts[key] = counts.get(key, 0) + (len(part) if over == "position" else part.numel())
        self.means = {key: [(total / counts[key]).to(model.dtype) for total in totals] for key, totals in sums.items()}

    def __call__(self, base: Recording) -> Recording:
        means = self.means[base.ids.shape[1] if self.over == "position" else 0]
        n_layers = len(base.heads)
        return Recording(
            base.ids,
            heads=[mean.expand_as(heads) for mean, heads in zip(means[:n_layers], base.heads, strict=True)],
            mlps=[mean.expand_as(mlp) for mean, mlp in zip(means[n_layers:], base.mlps, strict=True)],
        )


def _require_large_groups(sizes: dict[int, int]) -> None:
    small = {length: size for length, size in sizes.items() if size < SMALLEST_GROUP}
    if small:
        length, size = min(small.items(), key=lambda item: item[1])
        raise DataError(
            f"A mean per position needs at least {SMALLEST_GROUP} reference prompts of each length; there are {size} "
            f"of {length} tokens. Take the mean over all positions (--mean all-positions), or give more reference "
            "prompts (a larger --n, or --reference FILE)."
        )
