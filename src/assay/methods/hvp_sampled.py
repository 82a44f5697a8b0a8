"""Sampled HVP: the second-order estimate of all components together, from a few random probes.

Effect ~ g'(0) + q / 2, where q estimates g''(0) = delta' H delta without bias: Hessian-vector products along sums of
all components' deltas with random signs, each kind of site by itself (Hutchinson's estimator; see
`assay.engine.curvature`). The noise of q is in the estimate, and its standard error beside it; where it exceeds q, as
on single neurons, attribution patching alone is better.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from assay.engine.curvature import require_probes, sample_curvature
from assay.engine.response import Response
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.scores import Scores

PROBES = 8


def method_with(probes: int = PROBES, precision: float | None = None) -> Method:
    """Sampled HVP.

    Args:
        probes: Hessian-vector products for each kind of site.
        precision: more of them, until each prompt's relative error is this; see `sample_curvature`.

    Raises:
        OptionError: fewer than 2 probes, or a precision that is not positive.
    """
    require_probes(probes, precision)

    def second_order(response: Response, setting: Setting) -> Tensor:
        sampled = sample_curvature(response, probes, precision=precision, seed=setting.seed)
        return torch.cat([sampled.slope + sampled.curvature / 2, (sampled.standard_error / 2).square()])

    return Method(
        name="hvp-sampled",
        description="second-order estimate of all effects from a few random probes (--probes, default 8)",
        source_note="Zhang & Wang, arXiv 2606.09899, with Hutchinson's estimator",
        compute=second_order,
        outputs=2,
        beside=_errors,
        uses_gradients=True,
        second_order=True,
        arguments={"probes": probes, "precision": precision},
        configure=method_with,
        backward_passes=lambda components, layers: (
            None if precision is not None else (1 + probes) * len({component.site for component in components})
        ),
    )


def _errors(further: np.ndarray) -> dict[str, Any]:
    """Variances add up over the rows of an example, which have probes of their own."""
    return {"stderr_probes": np.sqrt(further[0])}


METHOD = method_with()


def hvp_sampled(
    model: Model,
    pairs: AnyPairs,
    *,
    probes: int = PROBES,
    precision: float | None = None,
    **options: Unpack[MeasureOptions],
) -> Scores:
    """Second-order estimates from ``probes`` (or until ``precision``); other options as in `assay.measure`.

    Returns:
        Scores with ``stderr_probes``, the standard error of each value from the spread of its probes.
    """
    return measure(method_with(probes, precision), model, pairs, **options)
