"""What weights and a run take, and on which device."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import infer_auto_device_map
from accelerate.utils import get_balanced_memory

from assay.engine.batches import lane_bytes, recording_bytes
from assay.engine.graph import graph_bytes
from assay.errors import OptionError
from assay.methods.method import Method
from assay.methods.plan import LANES, WORK
from assay.model import Model
from assay.planning.costs import Workload

PROCESS_BYTES = 450 << 20
"""Python with torch and transformers, before any weight."""
LOADING = 1.6
"""How many times the weights are there while they are read: their file is mapped beside them."""
SEEN = 0.5
"""Of the bound of what graphs of sampled curvature keep, by which rows are put together."""


@dataclass(frozen=True)
class Placement:
    """What lies on one device."""

    device: str
    layers: int
    weight_bytes: int


def weight_bytes(model: Model) -> int:
    """Of all parameters and buffers, tied ones once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(model))


def peak_bytes(model: Model, working: int) -> int:
    """Of the whole process: while weights are read, or while it works."""
    weights = weight_bytes(model)
    return PROCESS_BYTES + max(int(LOADING * weights), weights + working)


def parameters(model: Model) -> int:
    """How many numbers the model has."""
    return sum(parameter.numel() for parameter in model.hf.parameters())


def placements(outline: Model, device_memory: list[int]) -> list[Placement]:
    """Which layers go where, as accelerate would spread them over devices of so many bytes each, then the CPU.

    Raises:
        OptionError: a single layer does not fit on any device.
    """
    most: dict[int | str, int] = dict(enumerate(device_memory))
    split = [type(outline.layers[0].module).__name__]
    with _told_nothing():  # that these devices are not here is known
        balanced = get_balanced_memory(
            outline.hf, {**most, "cpu": 1 << 62}, no_split_module_classes=split, dtype=outline.dtype
        )
        where: dict[str, Any] = infer_auto_device_map(
            outline.hf, balanced, no_split_module_classes=split, dtype=outline.dtype
        )
    if set(where.values()) == {"cpu"}:
        raise OptionError(
            f"No layer of {outline.name} fits on a device of {device_memory[0] / 1e9:.3g} GB. Plan with larger "
            "--device-memory, or with --dtype bfloat16."
        )
    names = {f"{outline.family.layers}.{layer.index}" for layer in outline.layers}
    found = []
    for device in dict.fromkeys(where.values()):
        mine = [name for name, place in where.items() if place == device]
        layers = sum(1 for name in names if any(name == one or name.startswith(f"{one}.") for one in mine))
        size = sum(_bytes_under(outline, name) for name in mine)
        found.append(Placement(f"device {device}" if isinstance(device, int) else str(device), layers, size))
    return found


def working_bytes(method: Method, work: Workload, answers: int = 1) -> int:
    """What a run takes beyond weights: recordings, and the lanes or the graph that run at once. Within ``memory``
    for each of the two.
    """
    model, budget = work.outline, work.memory
    positions, shared = max(length for length, _ in work.lengths), min(shared for _, shared in work.lengths)
    alike = Counter(work.lengths if method.by_component else (length for length, _ in work.lengths))
    together = -(-work.n * max(alike.values()) // len(work.lengths))
    rows = max(1, min(together, budget // recording_bytes(model, positions)))
    recordings = rows * _recording_only(model, positions)
    later = positions - shared
    whole = False
    lane = lane_bytes(model, later, positions, answers, whole)
    if method.by_component:
        order = 2 if method.second_order else 1 if method.uses_gradients else 0
        if order:
            lane += model.n_layers * graph_bytes(model, later, positions, order)
        per_token = 2 * model.d_model * (4 * model.n_heads * model.d_head + 3 * model.d_mlp)
        in_a_shard = max(LANES, int(WORK / (per_token * later * 2)))
        at_once = min(max(1, budget // lane), in_a_shard)
        return recordings + at_once * lane
    if method.second_order:
        each = recording_bytes(model, positions) + model.n_layers * graph_bytes(model, later, positions, 2)
        return recordings + int(SEEN * max(1, min(rows, budget // each)) * each)
    if method.uses_gradients:
        return recordings + rows * model.n_layers * graph_bytes(model, later, positions, 1)
    return recordings


@contextmanager
def _told_nothing() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _recording_only(model: Model, positions: int) -> int:
    """Of base and source run of one prompt: streams, contributions, heads, keys and values."""
    per_token = 2 * (3 * model.d_model + model.d_head * (model.n_heads + 2 * model.n_kv_heads))
    return int(model.n_layers * positions * per_token * model.dtype.itemsize)


def _tensors(model: Model) -> list[torch.Tensor]:
    return [*model.hf.parameters(), *model.hf.buffers()]


def _bytes_under(model: Model, name: str) -> int:
    tensors = {**dict(model.hf.named_parameters()), **dict(model.hf.named_buffers())}
    return sum(
        tensor.numel() * tensor.element_size()
        for path, tensor in tensors.items()
        if not name or path == name or path.startswith(f"{name}.")
    )
