"""Zero ablation: the exact effect of setting each component to zero in the clean run.

Heads are zeroed before W_O, MLPs at what they add to the residual stream.
"""

from __future__ import annotations

from typing import Unpack

from assay.engine.response import Source
from assay.engine.sources import zeros
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, effect, measure
from assay.model import Model
from assay.scores import Scores


def _source(_: Setting) -> Source:
    return zeros


METHOD = Method(
    name="zero-ablation",
    description="exact effect of setting each component to zero in the clean run",
    source_note="Olsson et al., arXiv 2209.11895",
    compute=effect,
    exact=True,
    by_component=True,
    source=_source,
)


def zero_ablation(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Exact effects of zeroing; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
