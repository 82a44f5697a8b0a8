"""The identity rule of activation functions: f(x) / x in the place of the derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.errors import ModelError
from assay.model.backward.norms import CutOff
from assay.model.surrogates import first_order_only, with_gradient_of

Forward = Callable[..., Any]


def as_identity(name: str, forward: Forward, dtype: torch.dtype) -> Forward:
    """An activation function's forward method, with f(x) / x as its derivative; at 0, what that tends to.

    Raises:
        ModelError: f(0) is not 0, so that f(x) / x has no limit.
    """
    with torch.enable_grad():
        zero = torch.zeros((), dtype=dtype, requires_grad=True)  # activation functions have no weights, so no device
        at_zero = forward(zero)
        (slope,) = torch.autograd.grad(at_zero, zero)
    if at_zero.item() != 0:
        raise ModelError(f"The activation function {name} is {at_zero.item():.3g} at 0, so it has no identity rule.")

    def identity(x: Tensor) -> Any:
        value = forward(x)
        if not torch.is_grad_enabled():
            return value
        with torch.no_grad():
            ratio = torch.where(x == 0, slope.to(x.device), value / x)
        return with_gradient_of(value, x * ratio)

    return identity


def with_constant_sigmoid(name: str, forward: Forward) -> Forward:
    """Experts that write ``x * sigmoid(a * x)`` out: with the sigmoid a constant, that is the identity rule.

    Values that they clamp first pass no gradient where they are clamped.
    """

    def constant(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with CutOff(torch.sigmoid, torch.Tensor.sigmoid) as cut:
            value = forward(*args, **kwargs)
        if cut.met == 0:
            raise ModelError(f"The experts {name} ran without a sigmoid; their activation has no identity rule here.")
        return first_order_only(value)

    return constant
