"""Integrated gradients: the slope of each component's response, averaged along the way by a quadrature rule.

Effect = integral of g'(a) over [0, 1], by the fundamental theorem, so the error is the rule's alone (Sundararajan et
al., arXiv 1703.01365, along the component's own patch: everything else stays at the base run). With n gradients the
error falls as 1/n with the ``left`` and ``right`` rules, as 1/n^2 with ``midpoint`` and ``trapezoid``, and faster than
any power with ``gauss-legendre`` where the response is smooth.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from assay.engine.response import Response
from assay.errors import OptionError, instead_of
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure, under
from assay.model import Model, RuleSet
from assay.scores import Scores

RULES = ("left", "right", "midpoint", "trapezoid", "gauss-legendre")
STEPS = 10


def quadrature(rule: str, steps: int) -> list[tuple[float, float]]:
    """Where in [0, 1] to evaluate, and with what weight; ``steps`` evaluations in all.

    Raises:
        OptionError: an unknown rule, or too few steps for it.
    """
    least = 2 if rule == "trapezoid" else 1
    if steps < least:
        raise OptionError(f"The {rule} rule needs at least {least} steps, not {steps}.")
    grid = np.arange(steps) / steps
    match rule:
        case "left":
            points, weights = grid, np.full(steps, 1 / steps)
        case "right":
            points, weights = grid + 1 / steps, np.full(steps, 1 / steps)
        case "midpoint":
            points, weights = grid + 0.5 / steps, np.full(steps, 1 / steps)
        case "trapezoid":
            points, weights = np.linspace(0, 1, steps), np.full(steps, 1 / (steps - 1))
            weights[[0, -1]] /= 2
        case "gauss-legendre":
            points, weights = np.polynomial.legendre.leggauss(steps)
            points, weights = (points + 1) / 2, weights / 2
        case _:
            raise OptionError(f"There is no rule {rule!r}. {instead_of(rule, RULES)}")
    return list(zip(points.tolist(), weights.tolist(), strict=True))


def integral(response: Response, rule: str, steps: int) -> Tensor:
    """(C, R) integral of g' over [0, 1]."""
    return torch.stack([weight * response.slope(a).double() for a, weight in quadrature(rule, steps)]).sum(0)


def completeness_gap(response: Response, rule: str = "midpoint", steps: int = STEPS) -> Tensor:
    """(C, R) estimate minus g(1) - g(0): what the rule misses, for one more forward pass per component."""
    return integral(response, rule, steps) - (response.value(1) - response.base_values).double()


def method_with(rule: str = "midpoint", steps: int = STEPS, rules: str | RuleSet = "plain") -> Method:
    """Integrated gradients by a ``rule`` of `RULES` with so many gradients, which follow backward ``rules``.

    Raises:
        OptionError: an unknown rule, or too few steps for it.
    """
    points = quadrature(rule, steps)

    def integrate(response: Response, _: Setting) -> Tensor:
        return integral(response, rule, steps)

    method = Method(
        name="integrated-gradients",
        description="slope averaged along the patch (--rule midpoint, --steps 10); gradients for each component",
        source_note="Sundararajan et al., arXiv 1703.01365",
        compute=integrate,
        uses_gradients=True,
        by_component=True,
        sweeps=steps,
        arguments={"rule": rule, "steps": steps},
        configure=method_with,
        # The gradient at the base run serves all components.
        backward_passes=lambda components, layers: sum(1 if a == 0 else len(components) for a, _ in points),
    )
    return under(method, rules)


METHOD = method_with()


def integrated_gradients(
    model: Model,
    pairs: AnyPairs,
    *,
    rule: str = "midpoint",
    steps: int = STEPS,
    rules: str | RuleSet = "plain",
    **options: Unpack[MeasureOptions],
) -> Scores:
    """Integrals of each component's slope by a quadrature ``rule`` (`RULES`); other options as in `assay.measure`.

    Under backward ``rules`` other than ``plain`` the slope is no derivative, so its integral is not the effect.
    """
    return measure(method_with(rule, steps, rules), model, pairs, **options)
