"""One attention function for every architecture, registered with transformers as ``assay``.

It receives queries, keys and values after rotary embedding and returns the head outputs before W_O,
so heads are seen and changed here and nowhere else. What is done to them is up to the active `Tap`.

Axes: B batch, H query heads, K key-value heads, G = H / K, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from assay.errors import ModelError

IMPLEMENTATION = "assay"


class Tap(Protocol):
    """Sees, and may replace, what passes through attention while `tapped` is active."""

    def keys_values(self, layer: int, k_BKSD: Tensor, v_BKSD: Tensor) -> tuple[Tensor, Tensor]: ...

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor: ...


_active_tap: ContextVar[Tap | None] = ContextVar("assay_tap", default=None)


def attend(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    mask_B1TS: Tensor,
    scaling: float,
    softcap: float | None = None,
) -> Tensor:
    """Head outputs (B, T, H, D). The softmax runs in float32 or better, as in the reference models."""
    batch, heads, positions, width = q_BHTD.shape
    kv_heads, keys = k_BKSD.shape[1:3]
    groups = heads // kv_heads
    # Query heads that share a key-value head are stacked along positions, so keys are not repeated.
    q = q_BHTD.reshape(batch, kv_heads, groups * positions, width)
    scores = torch.matmul(q, k_BKSD.transpose(2, 3)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(batch, kv_heads, groups, positions, keys) + mask_B1TS.unsqueeze(2)
    precision = torch.promote_types(scores.dtype, torch.float32)
    pattern = scores.softmax(dim=-1, dtype=precision).to(v_BKSD.dtype)
    z = torch.matmul(pattern.view(batch, kv_heads, groups * positions, keys), v_BKSD)
    return z.view(batch, heads, positions, width).transpose(1, 2)


def _assay_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    layer = cast(int, module.layer_idx)
    if dropout:
        raise ModelError(f"Attention dropout is active in layer {layer}. Call model.eval() first.")
    if attention_mask is None:
        raise ModelError(f"Layer {layer} passed no attention mask; this architecture cannot be replayed.")
    tap = _active_tap.get()
    if tap is not None:
        key, value = tap.keys_values(layer, key, value)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    z = attend(query, key, value, attention_mask, scaling, softcap)
    if tap is not None:
        z = tap.head_outputs(layer, z)
    return z, None


AttentionInterface.register(IMPLEMENTATION, _assay_attention)
AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)


@contextmanager
def tapped(hf_model: PreTrainedModel, tap: Tap | None) -> Iterator[None]:
    """Run ``hf_model`` through assay's attention with ``tap`` active; the user's implementation comes back."""
    previous = hf_model.config._attn_implementation
    token = _active_tap.set(tap)
    try:
        hf_model.set_attn_implementation(IMPLEMENTATION)
        yield
    finally:
        hf_model.set_attn_implementation(previous)
        _active_tap.reset(token)
