"""Runs of the model on token embeddings of one's own, and gradients with respect to them.

Axes: N sequences, T positions, M width of the embeddings, P positions that are read, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.metrics import Metric, Targets
from assay.engine.batches import lane_bytes, recording_bytes
from assay.engine.cost import CostMeter
from assay.engine.gradients import objective_of, unscaled
from assay.engine.memory import Portions
from assay.errors import DataError, InterventionError
from assay.model import Model
from assay.model.attention import tapped
from assay.model.recording import removed


def embeddings_of(model: Model, ids: Sequence[int]) -> Tensor:
    """(T, M): what the model's embedding gives, before anything is added or multiplied."""
    with torch.no_grad():
        found: Tensor = model.embedding(torch.tensor([list(ids)], device=model.device))[0]
    return found


@contextmanager
def embeddings_replaced(model: Model, new_NTM: Tensor) -> Iterator[None]:
    """The embedding gives ``new_NTM`` in the next forward pass, whatever the token ids.

    Raises:
        InterventionError: the embedding did not run just once, or gave another shape.
    """
    fired = 0

    def replace(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        nonlocal fired
        fired += 1
        if output.shape != new_NTM.shape:
            raise InterventionError(f"The embedding gave {tuple(output.shape)}, not {tuple(new_NTM.shape)}.")
        return new_NTM

    with removed(model.embedding.register_forward_hook(replace)):
        yield
    if fired != 1:
        raise InterventionError(f"The embedding of {model.name} ran {fired} times in one forward pass, not once.")


def logits_at_end(model: Model, ids: Tensor, count: int) -> Tensor:
    """(N, P, V) logits of the last ``count`` positions of ``ids`` (N, T), in float32 or better."""
    hf = model.hf
    logits: Tensor = hf(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=count
    ).logits
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _read(logits_NPV: Tensor, targets: Targets, metric: Metric) -> Tensor:
    """The logits that the metric reads."""
    return logits_NPV.gather(-1, targets.pair) if metric.reads == "tokens" else logits_NPV


def require_finite(model: Model, where: str, what: str, values: Tensor | NDArray[np.float64]) -> None:
    """Refuse numbers that are infinite or none.

    Raises:
        DataError: with ``where`` and ``what``.
    """
    if torch.as_tensor(values).isfinite().all():
        return
    half = model.dtype in (torch.float16, torch.bfloat16)
    advice = "Load with --dtype float32" if half else "Look for weights that are infinite or NaN"
    raise DataError(f"{where}: {what} of {model.name} is not finite. {advice}.")


def next_token(model: Model, prompt: Sequence[int], where: str) -> int:
    """The model's most probable token after a prompt.

    Raises:
        DataError: none, as logits are NaN or the highest is infinite; with ``where``.
    """
    model.require_ready()
    with tapped(model.hf, None), torch.no_grad():
        logits = logits_at_end(model, torch.tensor([list(prompt)], device=model.device), 1)
    logits = logits[0, 0, : model.vocab_size]
    require_finite(model, where, "the highest logit", logits.max())  # NaN if one is
    return int(logits.argmax())


def values_of(
    model: Model,
    ids: Sequence[int],
    new_NTM: Tensor,
    targets: Targets,
    metrics: Sequence[Metric],
    memory: int,
    cost: CostMeter,
) -> Tensor:
    """Metric values of sequences that differ in their embeddings only.

    Args:
        ids: T token ids, of which the model sees no more than their number.
        targets: what the metrics read, for one sequence.
        memory: bytes.

    Returns:
        (metrics, N), float64, on the CPU.
    """
    model.require_ready()
    count, positions = new_NTM.shape[:2]
    found = torch.empty(len(metrics), count, dtype=torch.float64)
    read = targets.positions.shape[1]
    most = max(1, memory // lane_bytes(model, positions, positions, read, True))

    def run(part: slice) -> None:
        new = new_NTM[part]
        tokens = torch.tensor(list(ids), device=model.device).expand(len(new), -1)
        with embeddings_replaced(model, new):
            logits = logits_at_end(model, tokens, read)
        repeated = targets.rows(torch.zeros(len(new), dtype=torch.long, device=model.device))
        for number, metric in enumerate(metrics):
            found[number, part] = metric.values(_read(logits, repeated, metric), repeated).double().cpu()
        cost.forward(len(new), positions, model.n_layers)

    with tapped(model.hf, None), torch.no_grad():
        Portions().run(count, run, limit=lambda _: most)
    return found


def gradients_of(
    model: Model,
    ids: Sequence[int],
    at_NTM: Tensor,
    targets: Targets,
    metric: Metric,
    memory: int,
    cost: CostMeter,
    *,
    together: bool = False,
) -> tuple[Tensor, Tensor]:
    """The metric's gradients with respect to embeddings, under whatever backward rules are in force.

    Args:
        together: run all sequences in one pass, whatever memory they take.

    Returns:
        (N,) metric values in float64 and (N, T, M) gradients, on the CPU.
    """
    model.require_ready()
    count, positions = at_NTM.shape[:2]
    values = torch.empty(count, dtype=torch.float64)
    gradients: list[Tensor] = []
    read = targets.positions.shape[1]
    most = count if together else max(1, memory // recording_bytes(model, positions))

    def run(part: slice) -> None:
        at = at_NTM[part].detach().requires_grad_(True)
        tokens = torch.tensor(list(ids), device=model.device).expand(len(at), -1)
        with embeddings_replaced(model, at):
            logits = logits_at_end(model, tokens, read)
        repeated = targets.rows(torch.zeros(len(at), dtype=torch.long, device=model.device))
        found, objective, scale = objective_of(model, metric, _read(logits, repeated, metric), repeated)
        (gradient,) = torch.autograd.grad(objective, at)
        values[part] = found.detach().double().cpu()
        gradients.append(unscaled(gradient, scale).cpu())
        cost.forward(len(at), positions, model.n_layers)
        cost.backward(len(at), positions, model.n_layers)

    with tapped(model.hf, None), model.frozen(), torch.enable_grad():
        Portions().run(count, run, limit=lambda _: most)
    return values, torch.cat(gradients)
