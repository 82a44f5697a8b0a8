"""A norm with its factor frozen: the linear map that it applies to a change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def frozen_norm(norm: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[Tensor], Tensor]:
    """The map d -> w * d / s, with s the norm's factor at ``x`` and w its weights (1 + weight in Gemma's).

    Layer norms take the mean off d first. Read off the norm's own answers, so it serves every class of norm:
    a probe of mean 0 and mean square 1 gives the weights and the kind, and the answer at ``x`` the factor. Where there
    is nothing to read it off (``x`` is zero, or constant under a layer norm, or all weights are zero) the map gives 0.

    Args:
        x: (..., M) where the norm is frozen.

    Returns:
        A function of (..., M), in float32 or better; biases do not enter.
    """
    precision = torch.promote_types(x.dtype, torch.float32)
    probe = _probe(x.shape[-1], x)
    bias = norm(torch.zeros_like(probe))
    weight = ((norm(probe) - bias) / probe).to(precision)
    answer = (norm(x) - bias).to(precision)
    # A layer norm does not see a common shift of the probe; a root-mean-square norm answers it by about a third.
    shift = (norm(probe + 1) - norm(probe)).norm() / (norm(probe) - bias).norm()
    takes_mean = bool(shift < 0.1)

    def centred(d: Tensor) -> Tensor:
        d = d.to(precision)
        return d - d.mean(-1, keepdim=True) if takes_mean else d

    unscaled = weight * centred(x)
    size = unscaled.abs().amax(-1, keepdim=True)
    size = torch.where(size == 0, 1.0, size)  # squares of what is tiny would be 0
    unscaled = unscaled / size
    square = unscaled.square().sum(-1, keepdim=True)
    inverse_factor = (answer * unscaled).sum(-1, keepdim=True) / torch.where(square == 0, 1.0, square) / size
    return lambda d: weight * centred(d) * inverse_factor


def _probe(width: int, like: Tensor) -> Tensor:
    """(width,) without zeros, of mean 0 and mean square 1."""
    probe = torch.ones(width, dtype=like.dtype, device=like.device)
    probe[1::2] = -1
    if width % 2:
        probe[-3:] = torch.tensor([0.5**0.5, 0.5**0.5, -2 * 0.5**0.5], dtype=like.dtype)
    return probe
