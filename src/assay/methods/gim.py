"""GIM: attribution patching with a backward pass that accounts for interactions.

(source - base) . gradient of the metric at the base run, where the gradient follows three rules (Edin et al., arXiv
2505.17630): the softmax of attention is gone back through at temperature 2, norms have constant factors, and the
gradients of products are shared out among their factors. It ranks components by what they do together with others that
hold the same information, so it is no estimate of the effect of patching one of them alone.
"""

from __future__ import annotations

from typing import Unpack

from assay.methods.attribution_patching import first_order
from assay.methods.method import AnyPairs, MeasureOptions, Method, measure
from assay.model import Model
from assay.model.backward import PRESETS
from assay.scores import Scores

METHOD = Method(
    name="gim",
    description="attribution patching whose backward pass accounts for interactions; ranks, does not estimate",
    source_note=PRESETS["gim"].source,
    compute=first_order,
    estimates_effect=False,
    uses_gradients=True,
    rules=PRESETS["gim"].rules,
    backward_passes=lambda components, layers: 1,
)


def gim(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """GIM's scores of all components; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
