"""One attention function for every architecture, registered with transformers as ``assay``.

It receives queries, keys and values after rotary embedding and returns the head outputs before W_O,
so heads are seen and changed here and nowhere else. What is done to them is up to the active `Tap`.

Axes: B batch, H query heads, K key-value heads, G = H / K, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from assay.errors import ModelError
from assay.model.surrogates import divided_gradient, first_order_only, with_gradient_of

IMPLEMENTATION = "assay"


class Tap(Protocol):
    """Sees, and may replace, what passes through attention while `tapped` is active."""

    def attention_inputs(
        self, layer: int, q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class AttentionRules:
    """What a backward pass does in attention; see `assay.model.backward.RuleSet`. With the defaults, the derivative."""

    temperature: float = 1.0
    """Of the softmax that gradients reach the scores through."""
    query_key_divisor: float = 1.0
    pattern_value_divisor: float = 1.0
    constant_pattern: bool = False


DERIVATIVE = AttentionRules()

attention_rules: WeakKeyDictionary[nn.Module, AttentionRules] = WeakKeyDictionary()
"""Those of each attention module that has any."""


@runtime_checkable
class ScoreTap(Protocol):
    """A tap that also sees, and may replace, the scores: after softcap and mask, before the softmax."""

    def attention_scores(self, layer: int, scores_BHTS: Tensor, sinks_H: Tensor | None) -> Tensor: ...


_active_tap: ContextVar[Tap | None] = ContextVar("assay_tap", default=None)


def attend(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    mask_B1TS: Tensor,
    scaling: float,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
    rules: AttentionRules = DERIVATIVE,
    on_scores: Callable[[Tensor, Tensor | None], Tensor] | None = None,
) -> Tensor:
    """Head outputs (B, T, H, D). The softmax runs in float32 or better, as in the reference models.

    A sink is a score of no key: it takes its share of the softmax and adds nothing. Rules change gradients only.
    """
    batch, heads, positions, width = q_BHTD.shape
    kv_heads, keys = k_BKSD.shape[1:3]
    groups = heads // kv_heads
    # Query heads that share a key-value head are stacked along positions, so keys are not repeated.
    q = q_BHTD.reshape(batch, kv_heads, groups * positions, width)
    scores = divided_gradient(torch.matmul(q, k_BKSD.transpose(2, 3)), rules.query_key_divisor) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(batch, kv_heads, groups, positions, keys) + mask_B1TS.unsqueeze(2)
    if on_scores is not None:
        scores = on_scores(scores.flatten(1, 2), sinks_H).view_as(scores)
    if sinks_H is not None:
        sinks = sinks_H.to(scores.dtype).view(1, kv_heads, groups, 1, 1).expand(batch, -1, -1, positions, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    pattern = _softmax(scores, rules.temperature)[..., :keys].to(v_BKSD.dtype)
    if rules.constant_pattern:
        pattern = pattern.detach()
        v_BKSD = first_order_only(v_BKSD)
    z = torch.matmul(pattern.reshape(batch, kv_heads, groups * positions, keys), v_BKSD)
    z = divided_gradient(z, rules.pattern_value_divisor)
    return z.view(batch, heads, positions, width).transpose(1, 2)


def _softmax(scores: Tensor, temperature: float) -> Tensor:
    """The softmax; going back, dS = p_T * (dP - sum(dP * p_T)), p_T that of the scores over the temperature."""
    precision = torch.promote_types(scores.dtype, torch.float32)
    pattern = scores.softmax(dim=-1, dtype=precision)
    if temperature == 1 or not scores.requires_grad:
        return pattern
    # T * softmax(S / T) has that gradient: its two factors T and 1 / T cancel. A mask is the lowest number there is,
    # which a temperature below 1 would divide into infinity.
    tempered = (scores.to(precision) / temperature).clamp(min=torch.finfo(precision).min)
    return with_gradient_of(pattern, temperature * tempered.softmax(dim=-1))


def _assay_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    layer = cast(int, module.layer_idx)
    if dropout:
        raise ModelError(f"Attention dropout is active in layer {layer}. Call model.eval() first.")
    if attention_mask is None:
        raise ModelError(f"Layer {layer} passed no attention mask; this architecture cannot be replayed.")
    tap = _active_tap.get()
    if tap is not None:
        query, key, value = tap.attention_inputs(layer, query, key, value)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    rules = attention_rules.get(module, DERIVATIVE)
    on_scores = partial(tap.attention_scores, layer) if isinstance(tap, ScoreTap) else None
    z = attend(query, key, value, attention_mask, scaling, softcap, s_aux, rules, on_scores)
    if tap is not None:
        z = tap.head_outputs(layer, z)
    return z, None


AttentionInterface.register(IMPLEMENTATION, _assay_attention)
AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)


_locks: WeakKeyDictionary[PreTrainedModel, threading.RLock] = WeakKeyDictionary()
_locks_guard = threading.Lock()


def exclusive(hf_model: PreTrainedModel) -> threading.RLock:
    """One run at a time on one model: its attention implementation and hooks are shared by all threads."""
    with _locks_guard:
        return _locks.setdefault(hf_model, threading.RLock())


@dataclass
class _Implementations:
    """The user's, while blocks run a model through assay's."""

    attention: str
    experts: dict[str, str | None] | None
    blocks: int = 0


_replaced: WeakKeyDictionary[PreTrainedModel, _Implementations] = WeakKeyDictionary()


@contextmanager
def tapped(hf_model: PreTrainedModel, tap: Tap | None) -> Iterator[None]:
    """Run ``hf_model`` through assay's attention with ``tap`` active; the user's implementation comes back."""
    with through_assay(hf_model):
        token = _active_tap.set(tap)
        try:
            yield
        finally:
            _active_tap.reset(token)


@contextmanager
def through_assay(hf_model: PreTrainedModel) -> Iterator[None]:
    """Run ``hf_model`` through assay's attention; the user's implementation comes back.

    Experts run in their plain implementation meanwhile: the fused ones have no second derivative.
    """
    with exclusive(hf_model):
        replaced = _replaced.get(hf_model)
        if replaced is None:
            experts = hf_model.get_experts_implementation() if hf_model._can_set_experts_implementation() else None
            replaced = _replaced[hf_model] = _Implementations(hf_model.config._attn_implementation, experts)
        replaced.blocks += 1
        try:
            hf_model.set_attn_implementation(IMPLEMENTATION)
            if replaced.experts is not None:
                hf_model.set_experts_implementation("eager")
            yield
        finally:
            replaced.blocks -= 1
            if not replaced.blocks:  # blocks may be left in any order
                del _replaced[hf_model]
                hf_model.set_attn_implementation(replaced.attention)
                if replaced.experts is not None:
                    hf_model.set_experts_implementation(replaced.experts)
