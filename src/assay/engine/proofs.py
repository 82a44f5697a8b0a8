"""What must hold before a number is believed: our runs are the model's own, and causal."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.data.metrics import Metric
from assay.engine.baseline import PlainLogits
from assay.engine.batches import Batch
from assay.engine.gradients import answer_logits
from assay.errors import InterventionError
from assay.model import Model
from assay.model.checks import LIMITS, relative_difference
from assay.model.recording import Recording


@torch.no_grad()
def require_same_logits(model: Model, batch: Batch, metric: Metric, recording: Recording, plain: PlainLogits) -> None:
    """A recorded run must give the logits that Hugging Face gives (for its first rows), read the way the metric does.

    Raises:
        InterventionError: it does not.
    """
    rows = len(plain.pair)
    if not rows:
        return
    logits = answer_logits(model, recording.residuals[-1], batch.targets, metric)
    pair = (logits if metric.reads == "tokens" else logits.gather(-1, batch.targets.pair))[:rows]
    off = ((pair - plain.pair).double().square().mean().sqrt() / plain.scale).item()
    limit = LIMITS[model.dtype]
    if not off <= limit:
        raise InterventionError(
            f"{model.name} as assay runs it does not give the logits of a plain forward pass: relative deviation "
            f"{off:.3g}, limit {limit:.0e}. Something changed it since it was loaded (a hook, another attention "
            "implementation, a replaced forward method), or it does not attend causally."
        )


def require_equal_beginnings(model: Model, base: Recording, source: Recording, until: int) -> None:
    """Before position ``until`` two prompts of the same tokens must have the same residual stream.

    Raises:
        InterventionError: they do not.
    """
    if until == 0:
        return
    for layer, (here, there) in enumerate(zip(base.residuals, source.residuals, strict=True)):
        off = relative_difference(here[:, :until], there[:, :until])
        if not off <= LIMITS[model.dtype]:
            raise InterventionError(
                f"Clean and corrupted prompt differ from position {until} on, yet the residual stream at layer "
                f"{layer} differs before it (by {off:.3g}): this model does not attend causally."
            )


def require_same_end(model: Model, start: int, recorded: Tensor, replayed: Tensor) -> None:
    """Rows that are replayed unpatched must end where the recording ended.

    Raises:
        InterventionError: they do not.
    """
    off = relative_difference(recorded, replayed)
    limit = LIMITS[model.dtype]
    if not off <= limit:
        raise InterventionError(
            f"Replaying {model.name} from position {start} does not reproduce its own run: relative deviation "
            f"{off:.3g}, limit {limit:.0e}. A hook or a layer with state may be the cause."
        )
