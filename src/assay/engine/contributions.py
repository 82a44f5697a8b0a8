"""What each source of a circuit writes into the residual stream: the token embeddings, every head, every MLP.

Sources are numbered in the order in which they write: the input is 0, then for each layer its heads and its MLP. Under
a post-norm a head writes ``w * (z_h W_O) / s`` with the factor s of the run it was seen in.

Axes: N lanes, t positions, H heads, D head width, M d_model, S sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from assay.engine.replay import Activations
from assay.model import Model
from assay.model.norms import frozen_norm
from assay.model.placement import weight_of


def count_sources(model: Model) -> int:
    return 1 + model.n_layers * (model.n_heads + 1)


def linear_map(module: nn.Module, width: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights (width, out) and bias (out,) of a linear map, whichever class it is: adapters are asked for theirs."""
    if type(module) in (nn.Linear, Conv1D):
        weight = cast(Tensor, weight_of(module, "weight"))
        return weight.T if type(module) is nn.Linear else weight, weight_of(module, "bias")
    with torch.no_grad():
        bias: Tensor = module(torch.zeros(1, width, dtype=like.dtype, device=like.device))[0]
        return module(torch.eye(width, dtype=like.dtype, device=like.device)) - bias, bias


def head_contributions(model: Model, layer: int, z_NtHD: Tensor) -> Tensor:
    """(H, N, t, M): what each head adds to the residual stream, in float32 or better; biases belong to no head."""
    found = model.layers[layer]
    weight, _ = linear_map(found.output_projection, model.n_heads * model.d_head, z_NtHD)
    lanes, positions, heads, width = z_NtHD.shape
    precision = torch.promote_types(z_NtHD.dtype, torch.float32)
    z = z_NtHD.permute(2, 0, 1, 3).reshape(heads, lanes * positions, width)
    parts = torch.bmm(z.to(precision), weight.reshape(heads, width, -1).to(precision))
    parts = parts.view(heads, lanes, positions, -1)
    if found.has_attention_post_norm:
        full = found.output_projection(z_NtHD.flatten(2))
        # Not called as a module: whoever runs a circuit has a hook on this one.
        parts = frozen_norm(found.attention_contribution.forward, full)(parts)
    return parts * model.residual_multiplier


def attention_bias(model: Model, layer: int, z_NtHD: Tensor) -> Tensor | None:
    """(M,) or (N, t, M): what attention adds beside its heads; None where that is nothing."""
    found = model.layers[layer]
    _, bias = linear_map(found.output_projection, model.n_heads * model.d_head, z_NtHD)
    if not found.has_attention_post_norm:
        return (
            None
            if bias is None
            else bias.to(torch.promote_types(bias.dtype, torch.float32)) * model.residual_multiplier
        )
    norm: Callable[[Tensor], Tensor] = found.attention_contribution.forward
    full = found.output_projection(z_NtHD.flatten(2))
    own = norm(torch.zeros_like(full[:1, :1]))[0, 0]
    if bias is None:
        return own * model.residual_multiplier if own.any() else None
    return (frozen_norm(norm, full)(bias.expand_as(full)) + own) * model.residual_multiplier


@torch.no_grad()
def written(model: Model, activations: Activations, start: int) -> Tensor:
    """(S, R, t, M): what every source writes from position ``start`` on, in float32 or better."""
    first = activations("residual-pre", 0)[:, start:, 0]
    precision = torch.promote_types(first.dtype, torch.float32)
    table = torch.empty(count_sources(model), *first.shape, dtype=precision, device=first.device)
    table[0] = first
    for layer in range(model.n_layers):
        heads, mlp = sources_of(model, layer)
        table[heads] = head_contributions(model, layer, activations("heads", layer)[:, start:])
        table[mlp] = activations("mlps", layer)[:, start:, 0].to(precision) * model.residual_multiplier
    return table


def sources_of(model: Model, layer: int) -> tuple[slice, int]:
    """The numbers of a layer's heads and of its MLP."""
    first = 1 + layer * (model.n_heads + 1)
    return slice(first, first + model.n_heads), first + model.n_heads
