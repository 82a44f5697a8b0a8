"""What is asked of every component before any is patched, as methods that give several values at once."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from assay.engine.curvature import sample_curvature
from assay.engine.response import Response
from assay.methods.method import Method, Setting
from assay.reliability import bound_estimate

SEGMENTS = 5
FIRST_ORDER, FAR_END, QUADRATIC, VARIANCE, MOVES, BASE = range(6)
"""Outputs of `estimates_with`."""


def estimates_with(probes: int) -> Method:
    """First order, first order by the gradient at the source run, half the curvature, its squared standard error,
    whether the patch changes anything, and the metric of the unpatched row. All of them add up over the rows of an
    example.

    The gradient at the source run costs one more pass for all components together. It sees what the one at the base run
    cannot: a component that matters only where others have been restored as well, or whose softmax is saturated at the
    base run. Where the two ends differ, no first-order term is to be trusted. A metric that compares with the clean run
    is flat there; for it the first-order term stands for both.

    Args:
        probes: of curvature; 0 for none, which is then 0 with no error.
    """
    return Method(
        name="attribution and curvature" if probes else "attribution",
        description="first order and sampled curvature",
        source_note="Zhang & Wang, arXiv 2606.09899, with Hutchinson's estimator",
        compute=partial(_estimates, probes),
        outputs=6,
        uses_gradients=True,
        second_order=probes > 0,
        arguments={"probes": probes},
        configure=estimates_with,
    )


def _estimates(probes: int, response: Response, setting: Setting) -> Tensor:
    moves = response.moves.double()
    if probes:
        sampled = sample_curvature(response, probes, seed=setting.seed)
        slope, quadratic, variance = sampled.slope, sampled.curvature / 2, (sampled.standard_error / 2).square()
    else:
        slope = response.slope(0)
        quadratic = variance = torch.zeros_like(slope)
    far = slope if setting.metric.compares_with_clean else -response.reversed().slope(0)
    base = response.base_values.double().expand_as(slope)
    return torch.cat([slope, far, quadratic, variance, moves, base])


def correction_by(fix: str) -> Method:
    """HVP or MS-HVP; how far it is from the next simpler estimate (first order, HVP); and with MS-HVP the estimated
    bound on the error of the first order, if the response is smooth."""
    return Method(
        name=fix,
        description="second-order correction of flagged components",
        source_note="Zhang & Wang, arXiv 2606.09899",
        compute=partial(_in_segments, SEGMENTS if fix == "ms-hvp" else 1),
        outputs=3,
        by_component=True,
        uses_gradients=True,
        second_order=True,
        arguments={"fix": fix},
        configure=correction_by,
    )


def _in_segments(segments: int, response: Response, _: Setting) -> Tensor:
    points = [response.slope_and_curvature(k / segments) for k in range(segments)]
    slopes = torch.stack([slope.double() for slope, _ in points])
    seconds = torch.stack([second.double() for _, second in points])
    value = slopes.sum(0) / segments + seconds.sum(0) / (2 * segments**2)
    simpler = slopes[0] + seconds[0] / 2 if segments > 1 else slopes[0]
    # Bounds of an example's rows add up, as errors do. A single point says nothing of what lies between.
    bound = torch.zeros_like(value)
    if segments > 1:
        bound = torch.from_numpy(bound_estimate(seconds.cpu().numpy(), smooth=True)).to(value)
    return torch.cat([value, value - simpler, bound])
