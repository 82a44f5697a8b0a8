"""What a patch changes in the first linear thing after it: for queries and keys, the head outputs behind the softmax.

Axes: R rows, T positions, U units, D their width, H heads, K key-value heads.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.engine.response import Response
from assay.errors import InterventionError
from assay.model.attention import tapped
from assay.sites import Position


@dataclass(frozen=True)
class Change:
    """Components of one kind and layer, the place where their change is taken, and the change (R, T, U, D)."""

    site: str
    place: tuple[str, int]
    change: Tensor
    numbers: list[int]

    def products(self, response: Response, gradient: Tensor) -> Tensor:
        """(C', R) of the change with the gradient at its place, component by component."""
        per_position = (gradient.double() * self.change.double()).sum(3)
        if self.site == self.place[0]:
            return response.reduce(per_position, self.numbers)
        # Behind the softmax a key moves all later positions of all heads that share it.
        of_heads = per_position.sum(1)
        if self.site == "k":
            kv_heads = response.base.k[self.place[1]].shape[2]
            of_heads = of_heads.view(len(of_heads), kv_heads, -1).sum(2)
        return of_heads[:, [response.components[number].unit or 0 for number in self.numbers]].T


def changes(response: Response, *, through_softmax: bool) -> list[Change]:
    """The change of each component.

    Args:
        through_softmax: of queries and keys, take it at the head outputs, with the attention pattern computed anew and
            values held. A head output is linear in its pattern, so a gradient there, dotted with the change, is the
            gradient at the pattern dotted with the pattern's change.
    """
    found = []
    for site, layer, delta, numbers in response.deltas():
        if not (through_softmax and site in ("q", "k")):
            found.append(Change(site, (site, layer), delta, numbers))
            continue
        at: defaultdict[Position, list[int]] = defaultdict(list)
        for number in numbers:
            at[response.components[number].position].append(number)
        for position, group in at.items():
            # Heads do not touch each other before their outputs, so all are patched at once.
            mask = response.batch.mask(position)
            moved = delta if mask is None else delta * mask.view(*mask.shape, 1, 1)
            change = _head_outputs(response, site, layer, moved) - response.base.heads[layer]
            found.append(Change(site, ("heads", layer), change.to(response.model.device), group))
    return found


@torch.no_grad()
def _head_outputs(response: Response, site: str, layer: int, delta: Tensor) -> Tensor:
    """(R, T, H, D) of the base run with the layer's queries or keys moved by delta."""
    model, base = response.model, response.base
    rows = torch.arange(response.batch.rows, device=model.layers[layer].device)
    args, kwargs = base.arguments[layer].select(rows, 0)
    tap = _Moving(site, delta.to(rows.device))
    with tapped(model.hf, tap), model.frozen():
        try:
            model.layers[layer].module(base.residuals[layer], *args, **kwargs)
        except _ReachedHeads as reached:
            response.cost.forward(response.batch.rows, response.batch.positions)
            return reached.z
    raise InterventionError(f"Layer {layer} ran without its attention function.")


class _ReachedHeads(Exception):  # noqa: N818
    def __init__(self, z: Tensor) -> None:
        self.z = z


class _Moving:
    """Adds delta to the queries or keys, and stops at the head outputs."""

    def __init__(self, site: str, delta: Tensor) -> None:
        self.site, self.delta = site, delta.transpose(1, 2)

    def attention_inputs(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (q + self.delta, k, v) if self.site == "q" else (q, k + self.delta, v)

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor:
        raise _ReachedHeads(z_BTHD)
