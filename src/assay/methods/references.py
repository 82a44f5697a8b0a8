"""The reference prompts of ablations that take activations from other prompts."""

from __future__ import annotations

from assay.data.encoding import Row, encode
from assay.data.metrics import METRICS
from assay.methods.method import Setting


def reference_rows(setting: Setting, *, answers_matter: bool = True) -> list[Row]:
    """Rows whose corrupted side is the reference: the run's own, or those of the given reference pairs.

    Args:
        answers_matter: the reference must be as long as the patched rows, teacher-forced answers included.
    """
    if setting.reference is None:
        return setting.rows
    metric = setting.metric if answers_matter else METRICS["log-prob"]
    return encode(setting.model, setting.reference, metric, setting.align)
