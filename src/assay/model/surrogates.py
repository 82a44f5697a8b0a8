"""Values whose gradient is another's: what the backward rules are made of. No value changes by a bit.

What goes back is the gradient of no function, so its own derivative would be a number without a meaning: it is refused.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from assay.errors import ModelError


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, surrogate: Tensor, anchor: Tensor) -> Tensor:
        ctx.save_for_backward(anchor)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        return None, _not_again(gradient, *ctx.saved_tensors), None


class _Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, divisor: float) -> Tensor:
        ctx.save_for_backward(anchor)
        ctx.divisor = divisor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        divided = gradient if ctx.divisor == 1 else gradient / ctx.divisor
        return _not_again(divided, *ctx.saved_tensors), None, None


class _NotAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, anchor: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        raise ModelError(
            "A gradient under backward rules is that of no function, so it cannot be differentiated again. Take second "
            "derivatives outside the block of assay.backward_rules."
        )


def _not_again(gradient: Tensor, anchor: Tensor) -> Tensor:
    """The gradient; where a graph of it is made, one that ends here.

    torch's own once_differentiable does not do: its error is left out of what leads to a given input.
    """
    if not torch.is_grad_enabled():
        return gradient
    return cast(Tensor, _NotAgain.apply(gradient, anchor))  # type: ignore[no-untyped-call]


def _anchor(x: Tensor) -> Tensor:
    """One number that depends on what ``x`` depends on, and keeps no more of it in memory."""
    return x[(0,) * x.dim()].clone() if x.numel() else x.sum()


def with_gradient_of(value: Tensor, surrogate: Tensor) -> Tensor:
    """``value`` going forward; going back, the gradient that ``surrogate`` would have, of the same shape and dtype."""
    assert value.shape == surrogate.shape
    assert value.dtype == surrogate.dtype
    return cast(Tensor, _WithGradientOf.apply(value.detach(), surrogate, _anchor(surrogate)))  # type: ignore[no-untyped-call]


def divided_gradient(x: Tensor, divisor: float) -> Tensor:
    """``x`` going forward; going back, its gradient divided by ``divisor``."""
    return x if divisor == 1 else first_order_only(x, divisor)


def first_order_only(x: Tensor, divisor: float = 1) -> Tensor:
    """``x``, whose gradient, divided, is not differentiated again."""
    return cast(Tensor, _Divided.apply(x, _anchor(x), divisor)) if x.requires_grad else x  # type: ignore[no-untyped-call]
