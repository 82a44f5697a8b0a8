"""DeepLIFT's Rescale rule for the activation functions of MLPs (Shrikumar et al., arXiv 1704.02685, section 3.5.1).

A neuron's activation function passes on ``(f(h) - f(h')) / (h - h')`` instead of its derivative, h' being its input in
the baseline's run; where the two inputs are nearly equal, the derivative. Attention patterns, products and norms have
no such rule and pass on their derivative, so scores need not sum to the whole difference: the gap is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from assay.errors import ModelError
from assay.model import Model
from assay.model.recording import site_hook

NEAR = 1e-6
"""Relative difference of inputs below which a quotient of differences is worth less than the derivative."""


def require_ungated(model: Model) -> None:
    """Refuse MLPs whose neurons are products of two varying factors, for which Rescale is not defined.

    Raises:
        ModelError: gated MLPs or experts.
    """
    if model.family.gated or model.layers[0].neuron_input is None:
        raise ModelError(
            f"deeplift is defined for MLPs without a gate; {model.family.name} multiplies each neuron by one. Use "
            "integrated-gradients, which takes any model."
        )


@contextmanager
def rescaled(model: Model, positions: int) -> Iterator[None]:
    """In a forward pass of two sequences, a text and its baseline, neurons get Rescale's multipliers as slopes.

    The first sequence's gradient then holds the multipliers; no value changes.
    """
    before: dict[int, Tensor] = {}

    def keep(layer: int, value: Tensor) -> Tensor:
        before[layer] = value
        return value

    def rescale(layer: int, value: Tensor) -> Tensor:
        h = before.pop(layer)
        here, there = h.detach()
        difference = here - there
        near = difference.abs() <= NEAR * (1 + here.abs())
        quotient = (value[0] - value[1]).detach() / torch.where(near, 1.0, difference)
        slope = torch.where(near, _derivative(value, h), quotient)
        through = value.detach()[0] + slope * (h[0] - here)
        return torch.stack([through, value.detach()[1]])

    with ExitStack() as hooks:
        for layer in model.layers:
            number, shape = layer.index, (2, positions)
            hooks.enter_context(site_hook(layer, "neurons-pre", shape, lambda x, n=number: keep(n, x)))  # type: ignore[misc]
            hooks.enter_context(site_hook(layer, "neurons", shape, lambda x, n=number: rescale(n, x)))  # type: ignore[misc]
        yield


def _derivative(value: Tensor, h: Tensor) -> Tensor:
    """Of an elementwise function, (T, neurons), at the first sequence."""
    (slope,) = torch.autograd.grad(value.sum(), h, retain_graph=True)
    return slope[0]
