"""Attribution patching: the first-order estimate of each component's effect.

Effect ~ g'(0) = (source - base) . gradient of the metric at the base run (Nanda 2023; Syed et al., arXiv
2310.10348). Two forward passes and one backward for all components together.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from assay.engine.response import Response
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.scores import Scores


def first_order(response: Response, _: Setting) -> Tensor:
    return response.slope(0)


METHOD = Method(
    name="attribution-patching",
    description="first-order estimate of all effects from one backward pass",
    source_note="Nanda 2023; Syed et al., arXiv 2310.10348",
    compute=first_order,
    uses_gradients=True,
    backward_passes=lambda components, layers: 1,
)


def attribution_patching(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """First-order estimates for all components; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
