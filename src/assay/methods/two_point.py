"""Two-point estimate: the mean of the response's slopes at both ends.

Effect ~ (g'(0) + g'(1)) / 2, the trapezoid rule on g'. The forward pass at the far end already yields g(1), so it
is of use in studies only: what does a second gradient add?
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from assay.engine.response import Response
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure, under
from assay.model import Model, RuleSet
from assay.scores import Scores


def mean_slope(response: Response, _: Setting) -> Tensor:
    return (response.slope(0) + response.slope(1)) / 2


def method_under(rules: str | RuleSet = "plain") -> Method:
    """Two-point estimates with their gradients under backward rules."""
    return under(METHOD, rules)


METHOD = Method(
    name="two-point",
    description="mean of the slopes at both ends of the response; a gradient per component",
    source_note="trapezoid rule on the response's slope",
    compute=mean_slope,
    uses_gradients=True,
    by_component=True,
    sweeps=2,
    configure=method_under,
    backward_passes=lambda components, layers: 1 + len(components),
)


def two_point(
    model: Model, pairs: AnyPairs, *, rules: str | RuleSet = "plain", **options: Unpack[MeasureOptions]
) -> Scores:
    """Two-point estimates, by gradients under ``rules``; options as in `assay.measure`."""
    return measure(method_under(rules), model, pairs, **options)
