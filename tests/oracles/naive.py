"""The oracle of every effect: hook in, full forward pass, hook out. Slow and obvious; shares no code with assay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from families import TINY, attention_inputs

Place = tuple[str, int, int | None]
"""(kind of site, layer, unit or None)."""


def places(hf: PreTrainedModel, kinds: tuple[str, ...] = ("heads", "mlps")) -> list[Place]:
    """All places of these kinds, in assay's order."""
    layers, heads = hf.config.num_hidden_layers, hf.config.num_attention_heads
    # The tiny configurations all carry num_key_value_heads; these architectures know nothing of it.
    grouped = hf.config.model_type not in ("gpt2", "gpt_neox", "opt")
    kv_heads = hf.config.num_key_value_heads if grouped else heads
    found: list[Place] = []
    for kind in kinds:
        units = {"heads": range(heads), "q": range(heads), "k": range(kv_heads), "v": range(kv_heads)}.get(kind, [None])
        found += [(kind, layer, unit) for layer in range(1 if kind == "embeddings" else layers) for unit in units]
    return found


def logits_of(hf: PreTrainedModel, ids: list[int]) -> Tensor:
    """(T, V)"""
    with torch.no_grad():
        return hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def activation(hf: PreTrainedModel, family: str, ids: list[int], place: Place) -> Tensor:
    """(T, width) value of the place."""
    kept = []
    with hooked(hf, family, place, lambda value: kept.append(value.clone())):
        logits_of(hf, ids)
    (value,) = kept
    return value[0]


def patched_logits(hf: PreTrainedModel, family: str, ids: list[int], place: Place, new: Tensor) -> Tensor:
    """Logits of the run in which the place holds ``new``, (T, width)."""
    fired = []

    def replace(_: Tensor) -> Tensor:
        fired.append(True)
        return new.unsqueeze(0)

    with hooked(hf, family, place, replace):
        logits = logits_of(hf, ids)
    assert fired == [True]
    return logits


@contextmanager
def hooked(hf: PreTrainedModel, family: str, place: Place, act: Callable[[Tensor], Tensor | None]):
    """Call ``act`` on the place's value, (1, T, width), as it goes by; what it returns takes the value's place."""
    site, layer, unit = place
    tiny = TINY[family]
    blocks = hf.get_submodule(tiny.layers)
    block = blocks[layer]

    def part_of(value: Tensor, part: slice) -> Tensor | None:
        """``value`` with its last axis' ``part`` acted upon; OPT and experts run on (B * T, width)."""
        new = act(value[..., part].reshape(1, -1, value[..., part].shape[-1]))
        if new is None:
            return None
        changed = value.clone()
        changed[..., part] = new.reshape(changed[..., part].shape)
        return changed

    def on_input(_, args, kwargs, part=slice(None)):
        given = args[0] if args else kwargs["hidden_states"]
        new = part_of(given, part)
        if new is None:
            return None
        return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})

    def on_output(_, __, output, part=slice(None)):
        new = part_of(output[0] if isinstance(output, tuple) else output, part)
        if new is None:
            return None
        return (new, *output[1:]) if isinstance(output, tuple) else new

    def input_hook(module, part=slice(None)):
        return module.register_forward_pre_hook(lambda m, a, k: on_input(m, a, k, part), with_kwargs=True)

    def output_hook(module, part=slice(None)):
        return module.register_forward_hook(lambda m, a, o: on_output(m, a, o, part))

    if site in ("q", "k", "v"):
        which = "qkv".index(site)

        def change(*inputs: Tensor) -> tuple:
            changed = [x.clone() for x in inputs]
            new = act(changed[which][:, unit])
            if new is not None:
                changed[which][:, unit] = new
            return tuple(changed)

        with attention_inputs(hf, layer, change):
            yield
        return
    if site == "heads":
        projection = block.get_submodule(tiny.output_projection)
        d_head = projection.weight.numel() // hf.config.hidden_size // hf.config.num_attention_heads
        handle = input_hook(projection, slice(unit * d_head, (unit + 1) * d_head))
    elif site == "mlps":
        handle = output_hook(block.get_submodule(tiny.mlp))
    elif site == "attention":
        handle = output_hook(block.get_submodule(tiny.attention))
    elif site == "neurons":
        handle = input_hook(block.get_submodule(tiny.neurons_after), slice(unit, unit + 1))
    elif site == "neurons-pre":
        handle = output_hook(block.get_submodule(tiny.neurons_before), slice(unit, unit + 1))
    elif site == "residual-pre":
        handle = input_hook(block)
    elif site == "residual-post":
        handle = output_hook(block)
    elif site == "residual-mid":
        # Seen nowhere by itself: it is the layer's input plus what attention adds.
        seen = []
        watch = block.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )

        def on_attention(_, __, output):
            value = output[0] if isinstance(output, tuple) else output
            new = act(seen[-1] + tiny.multiplier * value)
            if new is None:
                return None
            value = (new - seen[-1]) / tiny.multiplier
            return (value, *output[1:]) if isinstance(output, tuple) else value

        hook = block.get_submodule(tiny.attention).register_forward_hook(on_attention)
        try:
            yield
        finally:
            watch.remove()
            hook.remove()
        return
    elif site == "embeddings":
        handle = output_hook(hf.get_input_embeddings())
    else:
        raise ValueError(site)
    try:
        yield
    finally:
        handle.remove()
