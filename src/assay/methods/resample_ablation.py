"""Resample ablation: the exact effect of giving each component the value it has on another prompt.

For each example one reference prompt of the same token length is drawn, and the component takes its activation
from there, in the clean run (Chan et al., causal scrubbing, 2022).
"""

from __future__ import annotations

from typing import Unpack

from assay.engine.response import Source
from assay.engine.sources import Resampled
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, effect, measure
from assay.methods.references import reference_rows
from assay.model import Model
from assay.scores import Scores


def _source(setting: Setting) -> Source:
    sites = {component.site for component in setting.components}
    return Resampled(
        setting.model, setting.rows, reference_rows(setting, answers_matter=False), sites, setting.seed, setting.cost
    )


METHOD = Method(
    name="resample-ablation",
    description="exact effect of giving each component its value on another prompt, in the clean run",
    source_note="Chan et al. 2022, causal scrubbing",
    compute=effect,
    exact=True,
    by_component=True,
    source=_source,
    check=_source,
    uses_reference=True,
)


def resample_ablation(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Exact effects of resampling; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
