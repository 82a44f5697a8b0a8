"""One forward pass, seen: residual stream, every site, keys and values, layer arguments.

Axes: B batch, T positions, M d_model, H query heads, K key-value heads, F neurons, D width of a unit. A
*site* is always seen as (B, T, units, D): heads are (B, T, H, D), neurons (B, T, F, 1), and what has no
units (an MLP's contribution, the residual stream) has one: (B, T, 1, M).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from assay.errors import ModelError
from assay.model.attention import tapped
from assay.model.model import Layer, Model
from assay.model.replacing import replaced

SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class LayerArguments:
    """What a decoder layer was called with besides its hidden states, to call it again."""

    positional: tuple[Any, ...]
    keyword: dict[str, Any]
    batch: int
    positions: int

    def on(self, device: torch.device) -> LayerArguments:
        """The same arguments, on a device."""
        return replace(
            self,
            positional=_on(self.positional, device),
            keyword={name: _on(value, device) for name, value in self.keyword.items()},
        )

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


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_on(part, device) for part in value)
    return value.to(device) if isinstance(value, Tensor) else value


@dataclass
class Recording:
    """A forward pass over ids (B, T). Lists have one entry per layer; ``residuals`` one more.

    What was recorded at a layer is on the device that the layer computes on, the last residual stream on the model's.
    """

    ids: Tensor
    residual_multiplier: float = 1.0
    embeddings: list[Tensor] = field(default_factory=list)
    """One entry, (B, T, E): what the embedding module gave."""
    residuals: list[Tensor] = field(default_factory=list)
    """(B, T, M) before each layer, and after the last one (before the final norm)."""
    arguments: list[LayerArguments] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    """(B, T, H, D), as the attention function gets them (after rotary embedding)."""
    k: list[Tensor] = field(default_factory=list)
    """(B, T, K, D)"""
    v: list[Tensor] = field(default_factory=list)
    """(B, T, K, D)"""
    heads: list[Tensor] = field(default_factory=list)
    """(B, T, H, D): head outputs before W_O."""
    attentions: list[Tensor] = field(default_factory=list)
    """(B, T, M): attention's output after a post-norm, before a residual multiplier."""
    mlps: list[Tensor] = field(default_factory=list)
    """(B, T, M): the MLP's output after a post-norm, before a residual multiplier."""
    neurons_pre: list[Tensor] = field(default_factory=list)
    """(B, T, F): before the activation function (the gate's input, in gated MLPs)."""
    neurons: list[Tensor] = field(default_factory=list)
    """(B, T, F): what the down-projection reads."""

    def graph_tensor(self, site: str, layer: int) -> tuple[Tensor, float]:
        """The recorded tensor through which a site acts, and the factor of the site's value in it.

        The residual stream between attention and MLP is never a tensor of its own to us: it moves as
        attention's output does, times the residual multiplier.
        """
        match site:
            case "embeddings":
                return self.embeddings[0], 1.0
            case "residual-pre":
                return self.residuals[layer], 1.0
            case "residual-post":
                return self.residuals[layer + 1], 1.0
            case "residual-mid":
                return self.attentions[layer], 1.0 / self.residual_multiplier
            case "attention":
                return self.attentions[layer], 1.0
            case _:
                tensor: Tensor = getattr(self, site.replace("-", "_"))[layer]
                return tensor, 1.0

    def site(self, site: str, layer: int) -> Tensor:
        """A site's value as (B, T, units, D)."""
        if site == "residual-mid":
            value = self.residuals[layer] + self.attentions[layer] * self.residual_multiplier
        else:
            value, _ = self.graph_tensor(site, layer)
        return as_units(site, value)

    def detached(self) -> Recording:
        """The same values without their graph."""
        cut = replace(self)
        for name, tensors in vars(self).items():
            if isinstance(tensors, list) and name != "arguments":
                setattr(cut, name, [tensor.detach() for tensor in tensors])
        return cut


def as_units(site: str, value: Tensor) -> Tensor:
    """(B, T, units, D): neurons are units of width 1; what has no units is one of width M."""
    if value.ndim == 4:
        return value
    return value.unsqueeze(3) if site.startswith("neurons") else value.unsqueeze(2)


class RecordingTap:
    """Keeps queries, keys, values and head outputs."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.shape = recording.ids.shape
        self.keeps = True
        """False while a layer is computed again."""

    def attention_inputs(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Axes are turned before and after, so that the graph runs through what is recorded.
        turned = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        if self.keeps:
            for kept, tensor in zip((self.recording.q, self.recording.k, self.recording.v), turned, strict=True):
                kept.append(tensor)
        q, k, v = (tensor.transpose(1, 2) for tensor in turned)
        return q, k, v

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor:
        if self.keeps:
            self.recording.heads.append(z_BTHD)
        return z_BTHD


def record(
    model: Model,
    ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    gradients: bool = False,
    keep: Collection[str] = (),
) -> Recording:
    """Run the model once over ``ids`` (B, T) and keep what passed through it.

    Args:
        attention_mask: (B, T), 1 for real tokens, 0 for right padding; all ones if None.
        gradients: build the graph from the embeddings on, so that gradients with respect to anything
            recorded can be taken. Otherwise nothing is differentiable.
        keep: neuron sites to record as well; they are wide, and not every layer has them.

    Raises:
        ModelError: a layer, attention or MLP ran not exactly once, so the model is not what the table says.
    """
    model.require_ready()
    recording = Recording(ids, model.residual_multiplier)
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask
    shape = ids.shape
    devices = [layer.device for layer in model.layers] + [model.device]

    def embedded(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        if gradients:
            output = output.detach().requires_grad_(True)
        recording.embeddings.append(output)
        return output

    def before_layer(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = devices[len(recording.arguments)]
        hidden = (args[0] if args else kwargs.pop("hidden_states")).to(device)
        arguments = LayerArguments(args[1:], kwargs, *shape).on(device)
        recording.residuals.append(hidden)
        recording.arguments.append(arguments)
        return (hidden, *arguments.positional), arguments.keyword

    def before_final_norm(_: nn.Module, args: tuple[Any, ...]) -> Any:
        end = args[0].to(model.device)
        recording.residuals.append(end)
        return (end, *args[1:])

    with watched(model, recording, RecordingTap(recording), keep, gradients=gradients), ExitStack() as hooks:
        hooks.enter_context(removed(model.embedding.register_forward_hook(embedded)))
        for layer in model.layers:
            # In front of the user's own hooks, which run again when the layer is replayed.
            before = layer.module.register_forward_pre_hook(before_layer, with_kwargs=True, prepend=True)
            hooks.enter_context(removed(before))
        hooks.enter_context(removed(model.final_norm.register_forward_pre_hook(before_final_norm, prepend=True)))
        model.hf(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
    require_complete(model, recording)
    return recording


@contextmanager
def watched(
    model: Model, recording: Recording, tap: RecordingTap, keep: Collection[str], *, gradients: bool
) -> Iterator[None]:
    """What passes inside the layers is kept in ``recording``, whose positions ``tap.shape`` counts."""

    def keeping(kept: list[Tensor]) -> Callable[[Tensor], Tensor]:
        def keep_value(value: Tensor) -> Tensor:
            kept.append(value)
            return value

        return keep_value

    sites = [("attention", recording.attentions), ("mlps", recording.mlps)]
    neurons = {"neurons": recording.neurons, "neurons-pre": recording.neurons_pre}
    sites += [(site, kept) for site, kept in neurons.items() if site in keep]
    with tapped(model.hf, tap), model.frozen(), torch.set_grad_enabled(gradients), ExitStack() as hooks:
        for layer in model.layers:
            for site, kept in sites:
                hooks.enter_context(site_hook(layer, site, tap.shape, keeping(kept)))
            if gradients and model.checkpointing:
                hooks.enter_context(replaced(layer.module, _computed_again(model, layer.module.forward, tap)))
        yield


def _computed_again(model: Model, forward: Callable[..., Any], tap: RecordingTap) -> Callable[..., Any]:
    """A layer of whose inside no backward pass keeps anything: each runs the layer again, attention tapped alike."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), _Again(model, tap)), **kwargs,
        )  # fmt: skip

    return run


class _Again:
    """Entered once for each backward pass through a layer."""

    def __init__(self, model: Model, tap: RecordingTap) -> None:
        self.model, self.tap = model, tap
        self.entered = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as entered:
            entered.callback(setattr, self.tap, "keeps", self.tap.keeps)
            self.tap.keeps = False
            entered.enter_context(tapped(self.model.hf, self.tap))
            self.entered = entered.pop_all()

    def __exit__(self, *_: object) -> None:
        self.entered.close()


class _ReachedFirstLayer(Exception):  # noqa: N818
    pass


def first_residual(model: Model, *, ids: Tensor | None = None, embeddings: Tensor | None = None) -> Tensor:
    """The residual stream before the first layer, (B, T, M), of token ids (B, T) or their embeddings (B, T, E)."""
    reached: list[Tensor] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reached.append(args[0] if args else kwargs["hidden_states"])
        raise _ReachedFirstLayer

    given = ids if embeddings is None else embeddings
    assert given is not None
    mask = torch.ones(given.shape[:2], dtype=torch.long, device=given.device)
    with removed(model.layers[0].module.register_forward_pre_hook(stop, with_kwargs=True, prepend=True)):
        try:
            model.hf(input_ids=ids, inputs_embeds=embeddings, attention_mask=mask, use_cache=False)
        except _ReachedFirstLayer:
            return reached[0]
    raise ModelError(f"{model.name} finished a forward pass without calling its first layer.")


@contextmanager
def site_hook(
    layer: Layer, site: str, shape: torch.Size | tuple[int, int], change: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Pass a module's value, as (B, T, width), through ``change`` and on into the model.

    Serves ``attention``, ``mlps``, ``neurons`` and ``neurons-pre``.

    Raises:
        ModelError: the layer has no such site (experts have no neurons of their own here).
    """

    def through(value: Tensor) -> Tensor:
        # OPT and experts run on (B * T, width).
        return change(value.reshape(*shape, value.shape[-1])).reshape(value.shape)

    def on_output(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (through(output[0]), *output[1:])
        return through(output)

    def on_gate(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        gate, up = output.chunk(2, dim=-1)
        return torch.cat([through(gate), up], dim=-1)

    def on_input(_: nn.Module, args: tuple[Any, ...]) -> Any:
        return (through(args[0]), *args[1:])

    if site == "attention":
        handle = layer.attention_contribution.register_forward_hook(on_output)
    elif site == "mlps":
        handle = layer.mlp_contribution.register_forward_hook(on_output)
    else:
        module = layer.neuron_output if site == "neurons" else layer.neuron_input
        if module is None:
            raise ModelError(f"Layer {layer.index} has experts; neurons of experts are not supported.")
        if site == "neurons":
            handle = module.register_forward_pre_hook(on_input)
        else:
            handle = module.register_forward_hook(on_gate if layer.neuron_input_is_fused else on_output)
    with removed(handle):
        yield


@contextmanager
def removed(handle: torch.utils.hooks.RemovableHandle) -> Iterator[None]:
    """The hook behind the handle is gone afterwards, whatever happens."""
    try:
        yield
    finally:
        handle.remove()


def require_complete(model: Model, recording: Recording) -> None:
    """Every layer, attention function and MLP ran exactly once.

    Raises:
        ModelError: not so.
    """
    counts = {
        "decoder layers": len(recording.residuals) - 1,
        "attention functions": len(recording.heads),
        "attention contributions": len(recording.attentions),
        "MLP contributions": len(recording.mlps),
    }
    for what, count in counts.items():
        if count != model.n_layers:
            raise ModelError(f"{model.name}: {count} {what} ran in one forward pass, expected {model.n_layers}.")
    if len(recording.embeddings) != 1:
        raise ModelError(f"{model.name}: the embedding ran {len(recording.embeddings)} times in one forward pass.")
