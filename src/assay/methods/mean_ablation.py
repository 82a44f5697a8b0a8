"""Mean ablation: the exact effect of setting each component to its mean over reference prompts.

The mean is taken per position within prompts of one length, or over all positions (Wang et al., arXiv
2211.00593, use the former within templates).
"""

from __future__ import annotations

from typing import Unpack

from assay.data.encoding import Row
from assay.engine.batches import recording_bytes
from assay.engine.response import Source
from assay.engine.sources import Means, averaged_groups
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, effect, measure
from assay.methods.references import reference_rows
from assay.model import Model
from assay.scores import Scores


def _reference(setting: Setting) -> list[Row]:
    # Over all positions only prompts count, so any answer will do.
    return reference_rows(setting, answers_matter=setting.mean == "position")


def _require_references(setting: Setting) -> None:
    averaged_groups(_reference(setting), setting.mean, setting.rows)


def _source(setting: Setting) -> Source:
    rows = _reference(setting)
    longest = max(len(row.corrupted) for row in rows)
    batch_rows = max(1, setting.memory // recording_bytes(setting.model, longest))
    places = {(component.site, component.layer) for component in setting.components}
    return Means(setting.model, rows, places, setting.mean, setting.rows, batch_rows, setting.cost)


METHOD = Method(
    name="mean-ablation",
    description="exact effect of setting each component to its mean over reference prompts in the clean run",
    source_note="Wang et al., arXiv 2211.00593",
    compute=effect,
    exact=True,
    by_component=True,
    source=_source,
    check=_require_references,
    uses_reference=True,
    uses_means=True,
)


def mean_ablation(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Exact effects of mean ablation; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
