"""A circuit run by its definition and plain hooks: one reader after the other, two forward passes for each.

Everything that was settled before is held by hooks; the next reader's stream is put before its whole layer, and only
that reader's part of what the projections (or the MLP) then give is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from families import TINY
from oracles import naive

JOINT = {"gpt2": "attn.c_attn", "gpt-neox": "attention.query_key_value", "phi3": "self_attn.qkv_proj"}
"""Families whose projections are one module; GPT-NeoX's goes head by head."""

Kept = Callable[[str, str], bool]
"""Whether the edge from a source to a destination is kept, by their names."""


def circuit_logits(
    hf: PreTrainedModel, family: str, clean: list[int], corrupted: list[int] | None, kept: Kept
) -> Tensor:
    """(T, V) logits of the circuit; without a corrupted prompt, absent edges carry zero."""
    layers, heads = hf.config.num_hidden_layers, hf.config.num_attention_heads
    counterfactual = written(hf, family, clean if corrupted is None else corrupted, [])
    if corrupted is None:
        counterfactual = {name: torch.zeros_like(value) for name, value in counterfactual.items()}
    settled: list[tuple[str, int, int, Tensor]] = []

    def change(reader: str, sources: list[str]) -> Tensor:
        current = written(hf, family, clean, settled)
        return sum(
            (counterfactual[source] - current[source] for source in sources if not kept(source, reader)),
            torch.zeros_like(current["input"]),
        )

    names = ["input"]
    for layer in range(layers):
        kv_heads = [unit for kind, at, unit in naive.places(hf, ("k",)) if at == layer]
        letter = "h" if len(kv_heads) == heads else "kv"
        readers = [("q", head, f"a{layer}.h{head}<q>") for head in range(heads)]
        readers += [(kind, head, f"a{layer}.{letter}{head}<{kind}>") for kind in "kv" for head in kv_heads]
        of_layer = [
            (kind, layer, head, seen(hf, family, clean, settled, layer, kind, head, change(name, names)))
            for kind, head, name in readers
        ]
        before = list(names)
        if TINY[family].parallel:
            settled_mlp = ("m", layer, 0, seen(hf, family, clean, settled, layer, "m", 0, change(f"m{layer}", before)))
            settled += [*of_layer, settled_mlp]
        else:
            settled += of_layer
            before += [f"a{layer}.h{head}" for head in range(heads)]
            settled.append(
                ("m", layer, 0, seen(hf, family, clean, settled, layer, "m", 0, change(f"m{layer}", before)))
            )
        names += [f"a{layer}.h{head}" for head in range(heads)] + [f"m{layer}"]
    last = change("logits", names)
    with holding(hf, family, settled), _before_the_last_norm(hf, family, lambda stream: stream + last):
        return naive.logits_of(hf, clean)


def written(hf: PreTrainedModel, family: str, ids: list[int], settled: list) -> dict[str, Tensor]:
    """(T, M): what each source adds to the residual stream."""
    tiny, blocks = TINY[family], hf.get_submodule(TINY[family].layers)
    found: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[Tensor], None]:
        return lambda value: kept.__setitem__(name, value[0].clone())

    with holding(hf, family, settled), ExitStack() as hooks:
        hooks.enter_context(naive.hooked(hf, family, ("residual-pre", 0, None), keep("input")))
        for layer, head in [(at, unit) for _, at, unit in naive.places(hf)]:
            kind = "mlps" if head is None else "heads"
            hooks.enter_context(naive.hooked(hf, family, (kind, layer, head), keep(f"{kind}{layer}.{head}")))
        naive.logits_of(hf, ids)
    found["input"] = kept["input"]
    with torch.no_grad():
        for layer in range(hf.config.num_hidden_layers):
            block = blocks[layer]
            project = block.get_submodule(tiny.output_projection)
            z = [kept[f"heads{layer}.{head}"] for head in range(hf.config.num_attention_heads)]
            nothing = [torch.zeros_like(part) for part in z]
            full, bias = project(torch.cat(z, -1)), project(torch.cat(nothing, -1))
            for head in range(len(z)):
                alone = [part if i == head else zero for i, (part, zero) in enumerate(zip(z, nothing, strict=True))]
                part = project(torch.cat(alone, -1)) - bias
                if tiny.attention != tiny.output_projection.rpartition(".")[0]:
                    part = part * (block.get_submodule(tiny.attention)(full) / full)  # the post-norm scales each width
                found[f"a{layer}.h{head}"] = part * tiny.multiplier
            found[f"m{layer}"] = kept[f"mlps{layer}.None"] * tiny.multiplier
    return found


def seen(
    hf: PreTrainedModel, family: str, ids: list[int], settled: list, layer: int, kind: str, head: int, change: Tensor
) -> Tensor:
    """What a reader makes of its stream with ``change`` added: its part of a projection, or the MLP's output."""
    tiny, kept = TINY[family], []
    with holding(hf, family, settled), ExitStack() as hooks:
        place = ("residual-pre", layer, None)
        if kind == "m" and not tiny.parallel:
            place, change = ("attention", layer, None), change / tiny.multiplier
        hooks.enter_context(naive.hooked(hf, family, place, lambda value: value + change))
        if kind == "m":
            look = naive.hooked(hf, family, ("mlps", layer, None), lambda value: kept.append(value[0].clone()))
        else:
            look = _projected(hf, family, layer, kind, head, lambda value: kept.append(value.clone()))
        hooks.enter_context(look)
        naive.logits_of(hf, ids)
    (value,) = kept
    return value


@contextmanager
def holding(hf: PreTrainedModel, family: str, settled: list):
    """What was settled stays as it is."""
    with ExitStack() as hooks:
        for kind, layer, head, value in settled:
            if kind == "m":
                place = ("mlps", layer, None)
                hooks.enter_context(naive.hooked(hf, family, place, lambda _, value=value: value.unsqueeze(0)))
            else:
                hooks.enter_context(_projected(hf, family, layer, kind, head, lambda _, value=value: value))
        yield


@contextmanager
def _projected(
    hf: PreTrainedModel, family: str, layer: int, kind: str, head: int, act: Callable[[Tensor], Tensor | None]
):
    """Call ``act`` on (T, D), a head's part of a projection's output; what it returns takes its place."""
    block, config = hf.get_submodule(TINY[family].layers)[layer], hf.config
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = len([unit for _, at, unit in naive.places(hf, ("k",)) if at == layer])
    if family == "gpt-neox":
        first = (3 * head + "qkv".index(kind)) * width
    elif family in JOINT:
        first = ({"q": 0, "k": heads, "v": heads + kv_heads}[kind] + head) * width
    else:
        first = head * width
    path = JOINT.get(family, f"self_attn.{kind}_proj")

    def on_output(_, __, output: Tensor) -> Tensor | None:
        new = act(output[0, :, first : first + width])
        if new is None:
            return None
        output = output.clone()
        output[0, :, first : first + width] = new
        return output

    handle = block.get_submodule(path).register_forward_hook(on_output)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _before_the_last_norm(hf: PreTrainedModel, family: str, act: Callable[[Tensor], Tensor]):
    paths = {
        "gpt2": "transformer.ln_f",
        "gpt-neox": "gpt_neox.final_layer_norm",
        "opt": "model.decoder.final_layer_norm",
    }
    paths["phi"] = "model.final_layernorm"
    handle = hf.get_submodule(paths.get(family, "model.norm")).register_forward_pre_hook(
        lambda _, args: (act(args[0]),)
    )
    try:
        yield
    finally:
        handle.remove()
