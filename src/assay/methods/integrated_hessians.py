"""Integrated Hessians: the slope at the base, plus the curvature averaged along the way.

Effect ~ g'(0) + integral over a, b in [0, 1] of a b delta' H(a b delta) delta (Janizek et al., arXiv 2002.04138, the
component with itself). With g''(t) = delta' H(t delta) delta and t = a b this is
g'(0) + integral over t in [0, 1] of -t ln(t) g''(t). The weight sums to 1/4, so a constant curvature counts a
quarter where the second-order term of Taylor's formula counts a half: the estimate undershoots curvature.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from assay.engine.response import Response
from assay.errors import OptionError
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.scores import Scores

STEPS = 5


def weights(steps: int) -> list[tuple[float, float]]:
    """Midpoints of equal cells of [0, 1], and the integral of -t ln(t) over each cell: exact for constant curvature."""
    edges = np.linspace(0, 1, steps + 1)
    logs = np.log(np.where(edges > 0, edges, 1))
    primitive = edges**2 / 4 - edges**2 / 2 * logs
    return list(zip(((edges[:-1] + edges[1:]) / 2).tolist(), np.diff(primitive).tolist(), strict=True))


def method_with(steps: int = STEPS) -> Method:
    """Integrated Hessians with the curvature taken at ``steps`` points.

    Raises:
        OptionError: fewer than one.
    """
    if steps < 1:
        raise OptionError(f"Integrated Hessians need at least 1 step, not {steps}.")

    def integrate(response: Response, _: Setting) -> Tensor:
        terms = [response.slope(0).double()]
        terms += [weight * response.curvature(t).double() for t, weight in weights(steps)]
        return torch.stack(terms).sum(0)

    return Method(
        name="integrated-hessians",
        description="curvature averaged along the patch (--steps, default 5), weighted as in integrated Hessians",
        source_note="Janizek et al., arXiv 2002.04138; the baseline of arXiv 2606.09899",
        compute=integrate,
        uses_gradients=True,
        by_component=True,
        sweeps=1 + steps,
        second_order=True,
        arguments={"steps": steps},
        configure=method_with,
        backward_passes=lambda components, layers: 1 + 2 * steps * len(components),
    )


METHOD = method_with()


def integrated_hessians(
    model: Model, pairs: AnyPairs, *, steps: int = STEPS, **options: Unpack[MeasureOptions]
) -> Scores:
    """Estimates by integrated Hessians at ``steps`` points; other options as in `assay.measure`."""
    return measure(method_with(steps), model, pairs, **options)
