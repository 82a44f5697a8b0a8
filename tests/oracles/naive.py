"""The oracle of every effect: hook in, full forward pass, hook out. Slow and obvious; shares no code with assay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from families import TINY

Place = tuple[str, int, int | None]
"""("heads", layer, head) or ("mlps", layer, None)."""


def places(hf: PreTrainedModel) -> list[Place]:
    layers, heads = hf.config.num_hidden_layers, hf.config.num_attention_heads
    found: list[Place] = [("heads", layer, head) for layer in range(layers) for head in range(heads)]
    return found + [("mlps", layer, None) for layer in range(layers)]


def logits_of(hf: PreTrainedModel, ids: list[int]) -> Tensor:
    """(T, V)"""
    with torch.no_grad():
        return hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def activation(hf: PreTrainedModel, family: str, ids: list[int], place: Place) -> Tensor:
    """(T, D) head output before W_O, or (T, M) what the MLP adds."""
    kept = []
    with hooked(hf, family, place, lambda value: kept.append(value.clone())):
        logits_of(hf, ids)
    (value,) = kept
    return value[0]


def patched_logits(hf: PreTrainedModel, family: str, ids: list[int], place: Place, new: Tensor) -> Tensor:
    """Logits of the run in which the place holds ``new``."""
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
    """Call ``act`` on the place's value as it goes by; what it returns takes the value's place."""
    site, layer, head = place
    tiny = TINY[family]
    block = hf.get_submodule(tiny.layers)[layer]
    if site == "heads":
        width = block.get_submodule(tiny.output_projection).weight.numel() // hf.config.hidden_size
        d_head = width // hf.config.num_attention_heads
        mine = slice(head * d_head, (head + 1) * d_head)

        def before_projection(_, args):
            new = act(args[0][..., mine])
            if new is None:
                return None
            z = args[0].clone()
            z[..., mine] = new
            return (z, *args[1:])

        handle = block.get_submodule(tiny.output_projection).register_forward_pre_hook(before_projection)
    else:
        handle = block.get_submodule(tiny.mlp_contribution).register_forward_hook(lambda _, __, output: act(output))
    try:
        yield
    finally:
        handle.remove()
