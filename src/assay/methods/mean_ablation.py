"""Mean ablation: the exact effect of setting each component to its mean over reference prompts.

The mean is taken per position within prompts of one length, or over all positions (Wang et al., arXiv
2211.00593, use the former within templates).
"""

from __future__ import annotations

from typing import Unpack

from assay.data.encoding import encode
from assay.data.pairs import PromptPairs
from assay.engine.batches import recording_bytes
from assay.engine.response import Source
from assay.engine.sources import Means
from assay.methods.method import MeasureOptions, Method, Setting, effect, measure
from assay.model import Model
from assay.scores import Scores


def _source(setting: Setting) -> Source:
    rows = setting.rows
    if setting.reference is not None:
        rows = encode(setting.model, setting.reference, setting.metric)
    longest = max(len(row.corrupted) for row in rows)
    batch_rows = max(1, setting.memory // recording_bytes(setting.model, longest))
    lengths = {len(row.clean) for row in setting.rows}
    return Means(setting.model, rows, setting.mean, batch_rows, setting.cost, lengths)


METHOD = Method(
    name="mean-ablation",
    description="exact effect of setting each component to its mean over reference prompts in the clean run",
    source_note="Wang et al., arXiv 2211.00593",
    compute=effect,
    exact=True,
    source=_source,
)


def mean_ablation(model: Model, pairs: PromptPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Exact effects of mean ablation; options as in `assay.methods.method.measure`."""
    return measure(METHOD, model, pairs, **options)
