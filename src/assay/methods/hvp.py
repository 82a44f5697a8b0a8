"""HVP: attribution patching with the curvature of the metric along each component's patch.

Effect ~ g'(0) + g''(0) / 2, where g''(0) = delta' H delta and H is the Hessian of the metric with respect to the
component, through the whole network after it (Zhang & Wang, arXiv 2606.09899). The error is a sixth of the third
derivative somewhere on the way: it falls with the third power of delta, and where the response bends back within the
step the estimate overshoots.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from assay.engine.response import Response
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.scores import Scores


def second_order(response: Response, _: Setting) -> Tensor:
    slope, curvature = response.slope_and_curvature(0)
    return slope + curvature / 2


METHOD = Method(
    name="hvp",
    description="second-order estimate; a Hessian-vector product per component",
    source_note="Zhang & Wang, arXiv 2606.09899",
    compute=second_order,
    uses_gradients=True,
    by_component=True,
    second_order=True,
    backward_passes=lambda components, layers: 2 * len(components),
)


def hvp(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Second-order estimates, exact curvature; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
