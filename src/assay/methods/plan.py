"""What a run is cut into: a pure function of what is computed, whoever computes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.engine.batches import Batch
from assay.model import Model
from assay.sites import Component

WORK = 1e11
"""Floating-point operations of a shard: seconds of one core, against milliseconds for writing it down."""
FASTER = 100
"""How much more of it a shard gets on an accelerator."""
LANES = 128
"""Patched sequences that a shard has at least, so that they still run side by side."""


@dataclass(frozen=True)
class Shard:
    """A block of prompts (the rows of one batch) and a block of components."""

    number: int
    batch: int
    components: tuple[int, ...]
    """Their numbers among all components of the run."""
    rows: int
    names: str
    """Of its first and last component."""

    def content(self, method: str) -> str:
        """A hash of what it is of: method, prompts and components."""
        text = json.dumps([method, self.batch, self.rows, self.components])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def size(self) -> int:
        """(component, row) pairs."""
        return len(self.components) * self.rows

    def __str__(self) -> str:
        return f"shard {self.number} (prompt block {self.batch}, {self.names})"


def make_plan(
    model: Model,
    components: Sequence[Component],
    batches: Sequence[Batch],
    *,
    by_component: bool,
    members: Sequence[int] | None = None,
    first: int = 0,
) -> list[Shard]:
    """Cut each batch into blocks of components of about equal work, in the order in which replay meets them.

    Args:
        by_component: whether components cost passes of their own; else each batch is one shard.
        members: the numbers of the components to compute; all if None.
        first: number of the first shard.
    """
    wanted = range(len(components)) if members is None else members
    shards: list[Shard] = []
    for number, batch in enumerate(batches):
        blocks = _blocks(model, components, wanted, batch) if by_component else [tuple(wanted)]
        for block in blocks:
            names = f"{components[block[0]].name} to {components[block[-1]].name}"
            shards.append(Shard(first + len(shards), number, block, batch.rows, names))
    return shards


def describe_cut(components: Sequence[Component], shards: Sequence[Shard]) -> dict[str, Any]:
    """What a run is cut into, for its plan."""
    content = {
        "components": [component.name for component in components],
        "shards": [[shard.batch, shard.rows, shard.components] for shard in shards],
    }
    hashes = {name: hashlib.sha256(json.dumps(what).encode()).hexdigest() for name, what in content.items()}
    return {"shards": len(shards), **{f"{name}_sha256": digest for name, digest in hashes.items()}}


def _blocks(
    model: Model, components: Sequence[Component], wanted: Sequence[int], batch: Batch
) -> list[tuple[int, ...]]:
    order = sorted(wanted, key=lambda i: components[i].entry)
    per_token = 2 * model.d_model * (4 * model.n_heads * model.d_head + 3 * model.d_mlp)
    positions = max(1, batch.positions - batch.start)
    layers = np.array([model.n_layers - components[i].entry + 1 for i in order], dtype=float)
    work = np.cumsum(layers * positions * batch.rows * per_token)
    each = WORK if model.device.type == "cpu" else FASTER * WORK
    count = int(max(1, min(work[-1] // each, len(order) * batch.rows // LANES)))
    ends = np.searchsorted(work, work[-1] * np.arange(1, count) / count)
    parts = np.split(np.array(order), np.unique(ends))
    return [tuple(part.tolist()) for part in parts if len(part)]
