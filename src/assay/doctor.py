"""Everything that can be checked about a model before its numbers are believed."""

from __future__ import annotations

import torch

from assay.data.metrics import METRICS, Targets
from assay.engine.batches import Batch
from assay.engine.response import Response
from assay.engine.savings import NO_SAVING
from assay.model import Model
from assay.model.checks import LIMITS, Check, check_model, check_padding, probe_ids
from assay.sites import heads, mlps


@torch.no_grad()
def examine(model: Model) -> list[Check]:
    """The checks of `assay.model.checks`, and that patching a run with itself changes nothing."""
    checks = check_model(model)
    return [*checks, check_padding(model), _self_patch(model)] if checks[0].passed else checks


def _self_patch(model: Model) -> Check:
    """Every head and MLP replaced by its own value, by full replay: logits must stay."""
    ids = probe_ids(model)
    rows, positions = ids.shape
    last = torch.full((rows, 1), positions - 1, device=ids.device)
    tokens = torch.zeros_like(last).unsqueeze(-1)
    targets = Targets(last, tokens, tokens + 1, torch.ones(rows, device=ids.device, dtype=torch.long))
    batch = Batch(
        ids, ids, torch.zeros_like(last[:, 0]), targets, torch.arange(rows), torch.zeros(rows, dtype=torch.long)
    )
    response = Response(model, batch, METRICS["logit-diff"], heads(model) + mlps(model), savings=NO_SAVING)
    change = (response.value(1) - response.base_values).abs().max()
    largest = model.logits(response.base.residuals[-1][:, -1]).abs().max()
    return Check(
        "self-patch identity",
        "every component patched with its own value leaves the logits as they are",
        (change / largest).item(),
        LIMITS[model.dtype],
    )
