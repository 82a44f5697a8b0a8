"""A forward pass over the last positions only, where the ones before are known from another prompt.

Causal attention gives two prompts the same activations up to their first difference. What comes after can be run
by itself: keys and values of the beginning are taken from the other prompt's recording.

Axes: R rows, T positions, t positions from ``start`` on, K key-value heads, D head width, M d_model.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from assay.model.model import Model
from assay.model.recording import (
    Recording,
    RecordingTap,
    first_residual,
    removed,
    require_complete,
    watched,
)


class _SuffixTap(RecordingTap):
    """Prepends the beginning's keys and values; keeps those of the suffix."""

    def __init__(self, recording: Recording, beginning: Recording, start: int) -> None:
        super().__init__(recording)
        self.beginning, self.start = beginning, start

    def attention_inputs(
        self, layer: int, q_RHtD: Tensor, k_RKtD: Tensor, v_RKtD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().attention_inputs(layer, q_RHtD, k_RKtD, v_RKtD)
        before = [kept[layer][:, : self.start].transpose(1, 2) for kept in (self.beginning.k, self.beginning.v)]
        return q, torch.cat([before[0], k], dim=2), torch.cat([before[1], v], dim=2)


def record_suffix(
    model: Model,
    ids: Tensor,
    beginning: Recording,
    start: int,
    *,
    gradients: bool = False,
    keep: Collection[str] = (),
) -> Recording:
    """Run positions ``start`` to the end of ``ids`` (R, T), whose earlier tokens are those of ``beginning``.

    Args:
        beginning: recording of R rows of T tokens, the same as ``ids`` before ``start``.
        gradients, keep: as in `record`. The beginning is a constant.

    Returns:
        A recording of t positions, with the layer arguments of all T.
    """
    model.require_ready()
    assert ids.shape == beginning.ids.shape
    assert torch.equal(ids[:, :start], beginning.ids[:, :start]), "the beginnings differ"
    recording = Recording(ids[:, start:], model.residual_multiplier, arguments=beginning.arguments)
    rows = torch.arange(ids.shape[0], device=ids.device)

    def embedded(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        suffix = output[:, start:]
        if gradients:
            suffix = suffix.detach().requires_grad_(True)
        recording.embeddings.append(suffix)
        return torch.cat([output[:, :start], suffix], dim=1)

    with watched(model, recording, _SuffixTap(recording, beginning, start), keep, gradients=gradients):
        with removed(model.embedding.register_forward_hook(embedded)):
            hidden = first_residual(model, ids=ids)[:, start:].contiguous()  # GPT-2 asks for it
        for layer in model.layers:
            hidden = hidden.to(layer.device)
            recording.residuals.append(hidden)
            args, kwargs = beginning.arguments[layer.index].select(rows.to(hidden.device), start)
            output = layer.module(hidden, *args, **kwargs)
            hidden = output[0] if isinstance(output, tuple) else output
        recording.residuals.append(hidden.to(model.device))
    require_complete(model, recording)
    return recording


def joined(beginning: Recording, suffix: Recording, start: int) -> Recording:
    """All T positions: the beginning's before ``start``, the suffix's from there on."""
    whole = Recording(
        torch.cat([beginning.ids[:, :start], suffix.ids], dim=1),
        beginning.residual_multiplier,
        arguments=beginning.arguments,
    )
    for name, tensors in vars(suffix).items():
        if isinstance(tensors, list) and name != "arguments":
            pieces = zip(getattr(beginning, name), tensors, strict=True)
            setattr(whole, name, [torch.cat([before[:, :start], after], dim=1) for before, after in pieces])
    return whole
