"""What lanes have in common inside one layer is computed once.

Lanes that begin as copies of one attend alike: they differ in heads, which are patched behind attention. And a lane
whose MLP is patched needs none.

Axes: N lanes, U lanes that attend, t positions, H heads, D their width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.model import Model
from assay.model.model import Layer
from assay.model.recording import removed


@dataclass(frozen=True)
class Alike:
    """Which lanes attend for which.

    Args:
        attending: (U,) lanes.
        place: (N,) which of them each lane has its heads from.
    """

    attending: Tensor
    place: Tensor


def alike(begun: int, copies: dict[int, int], device: torch.device) -> Alike | None:
    """None if every lane attends for itself.

    Args:
        copies: the lane that each of these begins as a copy of.
    """
    if not copies:
        return None
    attending = [lane for lane in range(begun) if lane not in copies]
    place = {lane: number for number, lane in enumerate(attending)}
    of_each = [place[copies.get(lane, lane)] for lane in range(begun)]
    return Alike(torch.tensor(attending, device=device), torch.tensor(of_each, device=device))


@contextmanager
def attending_once(
    model: Model, layer: Layer, lanes: Alike, given: Any, of_attending: Any, change: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """The layer's attention gets the lanes that attend; all lanes have heads from ``change`` on.

    Args:
        given: what the layer is called with besides its hidden states.
        of_attending: the same for the lanes that attend.
        change: of head outputs (N, t, H, D).
    """
    instead = dict(_paired(given, of_attending))
    count = len(lanes.place)

    def few(value: Any) -> Any:
        if id(value) in instead:
            return instead[id(value)]
        return tuple(map(few, value)) if isinstance(value, tuple) else value

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kwargs = dict(kwargs)
        if args:
            args = (args[0][lanes.attending], *args[1:])
        else:
            kwargs["hidden_states"] = kwargs["hidden_states"][lanes.attending]
        return tuple(map(few, args)), {name: few(value) for name, value in kwargs.items()}

    def projected(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z_UtHD = args[0].reshape(len(lanes.attending), -1, model.n_heads, model.d_head)
        z_NtHD = change(z_UtHD[lanes.place])
        is_flat = args[0].ndim == 2
        return (z_NtHD.flatten(0, 1).flatten(1) if is_flat else z_NtHD.flatten(2), *args[1:])

    assert count > len(lanes.attending)
    with (
        removed(layer.attention.register_forward_pre_hook(before, with_kwargs=True)),
        removed(layer.output_projection.register_forward_pre_hook(projected)),
    ):
        yield


@contextmanager
def without_mlp(layer: Layer, lanes: list[int], begun: int) -> Iterator[None]:
    """The layer's MLP is run for the other lanes only; these get zeros, for which something else is set behind it."""
    if not lanes:
        yield
        return
    left_out = set(lanes)
    rest = [lane for lane in range(begun) if lane not in left_out]

    def before(_: nn.Module, args: tuple[Any, ...]) -> Any:
        return (args[0][rest], *args[1:])

    def after(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        whole = output.new_zeros(begun, *output.shape[1:])
        whole[rest] = output
        return whole

    # In front of what sets the MLP: that sees all lanes.
    behind = layer.mlp.register_forward_hook(after, prepend=True)
    with removed(layer.mlp.register_forward_pre_hook(before)), removed(behind):
        yield


def _paired(value: Any, other: Any) -> Iterator[tuple[int, Any]]:
    """Each tensor and tuple in a structure by its identity, with what stands at its place in the other."""
    if isinstance(value, Tensor):
        yield id(value), other
    elif isinstance(value, dict):
        for name in value:
            yield from _paired(value[name], other[name])
    elif isinstance(value, tuple):
        for one, two in zip(value, other, strict=True):
            yield from _paired(one, two)
