"""Activation patching: the exact effect of each component, by intervention.

Effect = g(1) - g(0): the metric with the component's activation taken from the other run, minus the
metric without (Vig et al., arXiv 2004.12265; Meng et al., arXiv 2202.05262).
"""

from __future__ import annotations

from typing import Unpack

from assay.methods.method import AnyPairs, MeasureOptions, Method, effect, measure
from assay.model import Model
from assay.scores import Scores

METHOD = Method(
    name="activation-patching",
    description="exact effect of each component: its activation is swapped and the model run again",
    source_note="Vig et al., arXiv 2004.12265; Meng et al., arXiv 2202.05262",
    compute=effect,
    exact=True,
    by_component=True,
)


def activation_patching(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Exact effects by activation patching; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
