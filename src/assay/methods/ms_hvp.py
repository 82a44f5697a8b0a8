"""MS-HVP: the way from base to source in K segments, each a second-order step.

Effect ~ sum over k < K of g'(k/K) / K + g''(k/K) / (2 K^2) (Zhang & Wang, arXiv 2606.09899). K = 1 is HVP; the error
falls as 1 / K^2.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from assay.engine.response import Response
from assay.errors import OptionError
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.scores import Scores


def method_with(segments: int = 5) -> Method:
    """MS-HVP with K ``segments``.

    Raises:
        OptionError: fewer than one.
    """
    if segments < 1:
        raise OptionError(f"MS-HVP needs at least 1 segment, not {segments}.")

    def in_segments(response: Response, _: Setting) -> Tensor:
        steps = []
        for k in range(segments):
            slope, curvature = response.slope_and_curvature(k / segments)
            steps.append(slope.double() / segments + curvature.double() / (2 * segments**2))
        return torch.stack(steps).sum(0)

    return Method(
        name="ms-hvp",
        description="second-order steps along the patch (--segments, default 5); a product per component and segment",
        source_note="Zhang & Wang, arXiv 2606.09899",
        compute=in_segments,
        uses_gradients=True,
        by_component=True,
        sweeps=segments,
        second_order=True,
        arguments={"segments": segments},
        configure=method_with,
        backward_passes=lambda components, layers: 2 * segments * len(components),
    )


METHOD = method_with()


def ms_hvp(model: Model, pairs: AnyPairs, *, segments: int = 5, **options: Unpack[MeasureOptions]) -> Scores:
    """Estimates by second-order steps in ``segments`` parts of the way; other options as in `assay.measure`."""
    return measure(method_with(segments), model, pairs, **options)
