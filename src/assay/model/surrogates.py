"""Values whose gradient is another's: what the backward rules are made of. No value changes by a bit.

What goes back is the gradient of no function, so a second derivative would be a number without a meaning: torch raises
an error where one is taken.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, surrogate: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


class _Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, divisor: float) -> Tensor:
        ctx.divisor = divisor
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient if ctx.divisor == 1 else gradient / ctx.divisor, None


def with_gradient_of(value: Tensor, surrogate: Tensor) -> Tensor:
    """``value`` going forward; going back, the gradient that ``surrogate`` would have, of the same shape and dtype."""
    assert value.shape == surrogate.shape
    assert value.dtype == surrogate.dtype
    return cast(Tensor, _WithGradientOf.apply(value.detach(), surrogate))  # type: ignore[no-untyped-call]


def divided_gradient(x: Tensor, divisor: float) -> Tensor:
    """``x`` going forward; going back, its gradient divided by ``divisor``."""
    if divisor == 1 or not x.requires_grad:
        return x
    return cast(Tensor, _Divided.apply(x, divisor))  # type: ignore[no-untyped-call]


def first_order_only(x: Tensor) -> Tensor:
    """``x``, whose gradient is not differentiated again."""
    return cast(Tensor, _Divided.apply(x, 1)) if x.requires_grad else x  # type: ignore[no-untyped-call]
