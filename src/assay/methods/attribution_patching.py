"""Attribution patching: the first-order estimate of each component's effect.

Effect ~ g'(0) = (source - base) . gradient of the metric at the base run (Nanda 2023; Syed et al., arXiv
2310.10348). Two forward passes and one backward for all components together.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from assay.engine.response import Response
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure, under
from assay.model import Model, RuleSet
from assay.scores import Scores


def first_order(response: Response, _: Setting) -> Tensor:
    return response.slope(0)


def method_under(rules: str | RuleSet = "plain") -> Method:
    """Attribution patching with its gradient under backward rules."""
    return under(METHOD, rules)


METHOD = Method(
    name="attribution-patching",
    description="first-order estimate of all effects from one backward pass",
    source_note="Nanda 2023; Syed et al., arXiv 2310.10348",
    compute=first_order,
    uses_gradients=True,
    configure=method_under,
    backward_passes=lambda components, layers: 1,
)


def attribution_patching(
    model: Model, pairs: AnyPairs, *, rules: str | RuleSet = "plain", **options: Unpack[MeasureOptions]
) -> Scores:
    """First-order estimates for all components, by gradients under ``rules``; options as in `assay.measure`."""
    return measure(method_under(rules), model, pairs, **options)
