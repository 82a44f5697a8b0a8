"""One forward pass, seen: residual stream, head outputs, contributions, keys and values, layer arguments.

Axes: B batch, T positions, M d_model, H query heads, K key-value heads, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ModelError
from assay.model.attention import tapped
from assay.model.model import Model

SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class LayerArguments:
    """What a decoder layer was called with besides its hidden states, to call it again."""

    positional: tuple[Any, ...]
    keyword: dict[str, Any]
    batch: int
    positions: int

    def select(self, rows: Tensor, start: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for these rows of the batch, from position ``start`` on (keys stay whole)."""
        positional = tuple(self._cut(value, rows, start, f"#{i + 1}") for i, value in enumerate(self.positional))
        return positional, {name: self._cut(value, rows, start, name) for name, value in self.keyword.items()}

    def _cut(self, value: Any, rows: Tensor, start: int, name: str) -> Any:
        if isinstance(value, SCALARS):
            return value
        if isinstance(value, tuple):
            return tuple(self._cut(part, rows, start, name) for part in value)
        if not isinstance(value, Tensor):
            raise ModelError(
                f"A decoder layer takes the argument {name!r} of type {type(value).__name__}; it cannot be replayed."
            )
        if value.ndim == 0:
            return value
        if value.ndim == 1 and value.shape[0] == self.positions:
            return value[start:]
        if value.ndim >= 2 and value.shape[0] in (1, self.batch):
            chosen = value if value.shape[0] == 1 else value[rows]
            if value.ndim == 4 and value.shape[2:] == (self.positions, self.positions):
                return chosen[:, :, start:]
            if value.shape[1] == self.positions:
                return chosen[:, start:]
        raise ModelError(
            f"A decoder layer takes the argument {name!r} of shape {tuple(value.shape)}, whose axes are not known."
        )


@dataclass
class Recording:
    """A forward pass over ids (B, T). Lists have one entry per layer; ``residuals`` one more."""

    ids: Tensor
    residuals: list[Tensor] = field(default_factory=list)
    """(B, T, M) before each layer, and after the last one (before the final norm)."""
    arguments: list[LayerArguments] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    """(B, K, T, D), after rotary embedding."""
    values: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    """(B, T, H, D): head outputs before W_O."""
    attentions: list[Tensor] = field(default_factory=list)
    """(B, T, M): what attention adds to the residual stream, after a post-norm."""
    mlps: list[Tensor] = field(default_factory=list)
    """(B, T, M): what the MLP adds to the residual stream, after a post-norm."""


class _RecordingTap:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def keys_values(self, layer: int, k_BKSD: Tensor, v_BKSD: Tensor) -> tuple[Tensor, Tensor]:
        self.recording.keys.append(k_BKSD)
        self.recording.values.append(v_BKSD)
        return k_BKSD, v_BKSD

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor:
        self.recording.heads.append(z_BTHD)
        return z_BTHD


def record(model: Model, ids: Tensor, attention_mask: Tensor | None = None, *, gradients: bool = False) -> Recording:
    """Run the model once over ``ids`` (B, T) and keep what passed through it.

    Args:
        attention_mask: (B, T), 1 for real tokens, 0 for right padding; all ones if None.
        gradients: build the graph from the first layer's input on, so that gradients with respect to
            anything recorded can be taken. Otherwise nothing is differentiable.

    Raises:
        ModelError: a layer, attention or MLP ran not exactly once, so the model is not what the table says.
    """
    model.require_eval_mode()
    recording = Recording(ids)
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask

    def before_layer(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = args[0] if args else kwargs.pop("hidden_states")
        if gradients and not recording.residuals:
            hidden = hidden.detach().requires_grad_(True)
        recording.residuals.append(hidden)
        recording.arguments.append(LayerArguments(args[1:], kwargs, *ids.shape))
        return (hidden, *args[1:]), kwargs

    def before_final_norm(_: nn.Module, args: tuple[Any, ...]) -> None:
        recording.residuals.append(args[0])

    def attention_done(_: nn.Module, __: Any, output: Any) -> None:
        recording.attentions.append(first_of(output))

    def mlp_done(_: nn.Module, __: Any, output: Any) -> None:
        recording.mlps.append(first_of(output))

    hooks = [(layer.attention_contribution, attention_done) for layer in model.layers]
    hooks += [(layer.mlp_contribution, mlp_done) for layer in model.layers]
    with tapped(model.hf, _RecordingTap(recording)), model.frozen(), torch.set_grad_enabled(gradients):
        handles = []
        try:
            handles += [module.register_forward_hook(hook) for module, hook in hooks]
            # In front of the user's own hooks, which run again when the layer is replayed.
            handles += [
                layer.module.register_forward_pre_hook(before_layer, with_kwargs=True, prepend=True)
                for layer in model.layers
            ]
            handles.append(model.final_norm.register_forward_pre_hook(before_final_norm, prepend=True))
            model.hf(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        finally:
            for handle in handles:
                handle.remove()
    _require_complete(model, recording)
    return recording


def first_of(output: Any) -> Tensor:
    """The hidden states of a module that may return them alone or first in a tuple."""
    tensor = output[0] if isinstance(output, tuple) else output
    assert isinstance(tensor, Tensor)
    return tensor


def replace_first(output: Any, tensor: Tensor) -> Any:
    """The output with its hidden states replaced."""
    return (tensor, *output[1:]) if isinstance(output, tuple) else tensor


@contextmanager
def forward_hook(module: nn.Module, hook: Any) -> Iterator[None]:
    """A forward hook that is gone afterwards, whatever happens."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _require_complete(model: Model, recording: Recording) -> None:
    counts = {
        "decoder layers": len(recording.residuals) - 1,
        "attention functions": len(recording.heads),
        "attention contributions": len(recording.attentions),
        "MLP contributions": len(recording.mlps),
    }
    for what, count in counts.items():
        if count != model.n_layers:
            raise ModelError(f"{model.name}: {count} {what} ran in one forward pass, expected {model.n_layers}.")
