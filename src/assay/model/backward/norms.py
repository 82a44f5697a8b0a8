"""A norm whose factor is a constant in the backward pass.

Every norm is ``w * (x - mean) * s + b`` or the same without mean or without b, with a factor s that depends on x. The
module computes its own value; the operation that makes s is met on the way and its result is cut off from the graph.
Whether that gave the frozen norm is then checked against the module's own answers, not taken on trust.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from assay.errors import ModelError
from assay.model.checks import LIMITS, relative_difference
from assay.model.norms import frozen_norm
from assay.model.placement import execution_device
from assay.model.surrogates import first_order_only, with_gradient_of

Forward = Callable[..., Any]


class CutOff(TorchFunctionMode):
    """Results of some functions are constants in the backward pass; layer norms' factors always are."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions
        self.met = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        if func in self.functions:
            self.met += 1
            return value.detach()
        if func is F.layer_norm:
            self.met += 1
            return with_gradient_of(value, _layer_norm_with_constant_factor(*args, **kwargs))
        return value


def _layer_norm_with_constant_factor(
    input: Tensor,  # noqa: A002  # torch's own name
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    axes = tuple(range(-len(normalized_shape), 0))
    centred = x - x.mean(axes, keepdim=True)
    normed = centred * (centred.detach().square().mean(axes, keepdim=True) + eps).rsqrt()
    normed = normed if weight is None else normed * weight
    normed = normed if bias is None else normed + bias
    return normed.to(input.dtype)


def with_constant_factor(name: str, forward: Forward) -> Forward:
    """The norm's forward method, with its factor frozen in the backward pass."""

    def frozen(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with CutOff(torch.rsqrt, torch.Tensor.rsqrt) as cut:
            value = forward(*args, **kwargs)
        if cut.met != 1:
            raise ModelError(f"The norm {name} made {cut.met} factors in one call, not 1; it cannot be frozen.")
        return first_order_only(value)

    return frozen


def require_frozen(name: str, norm: nn.Module, width: int, dtype: torch.dtype) -> None:
    """Compare the gradient through the frozen forward method with the linear map that the norm's answers tell.

    Raises:
        ModelError: it is not the norm with its factor frozen.
    """
    weight = getattr(norm, "weight", None)
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else (width,)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, 2, *shape, generator=generator, dtype=torch.float64)
    x, back = drawn.to(execution_device(norm), dtype).unbind(0)
    with torch.enable_grad():
        x = (x * 3 + 1).requires_grad_(True)
        found = torch.autograd.grad(with_constant_factor(name, norm.forward)(x), x, back)[0]
        through = frozen_norm(cast(nn.Module, norm.forward), x.detach())
        change = torch.zeros_like(x, requires_grad=True)
        expected = torch.autograd.grad(through(change), change, back.to(through(change).dtype))[0]
    if not relative_difference(expected, found) <= LIMITS[dtype]:
        raise ModelError(
            f"{name}, a {type(norm).__name__}, is not a norm with one factor as it was taken for: the gradient with "
            f"its factor frozen is off by {relative_difference(expected, found):.2g}. It has no backward rule."
        )
