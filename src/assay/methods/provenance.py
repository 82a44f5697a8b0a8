"""What was run on what, stored with every run."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
from typing import Any

import torch

from assay.errors import WorkerError
from assay.model import Model
from assay.model.placement import map_of


def describe_model(model: Model, weight_hash: str) -> dict[str, Any]:
    return {
        "name": model.name,
        "origin": model.origin,
        "family": model.family.name,
        "layers": model.n_layers,
        "heads": model.n_heads,
        "key_value_heads": model.n_kv_heads,
        "d_model": model.d_model,
        "quantisation": model.quantisation,
        "adapters": model.adapters,
        "weights_sha256": weight_hash,
        "tokenizer_sha256": model.tokenizer_hash,
    }


def describe_environment(model: Model) -> dict[str, Any]:
    return {
        "versions": _versions(),
        "platform": platform.platform(),
        "device": str(model.device),
        "devices": [str(device) for device in model.devices],
        "device_map": map_of(model.hf),
        "offloaded": model.is_offloaded,
        "checkpointing": model.checkpointing,
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }


def what_rounds() -> dict[str, str]:
    """What decides how numbers are rounded, besides threads: versions and processor."""
    return {**_versions(), "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"}


def require_same_rounding(elsewhere: dict[str, str]) -> None:
    """Refuse to compute here what is put together with numbers of another process.

    Raises:
        WorkerError: numbers would be rounded in another way than there.
    """
    here = what_rounds()
    if different := [f"{name} {here[name]}, not {there}" for name, there in elsewhere.items() if here[name] != there]:
        raise WorkerError(
            f"A worker on {socket.gethostname()} would round numbers otherwise than this process does: it has "
            f"{'; '.join(different)}. Use machines of one kind with the same versions."
        )


def _versions() -> dict[str, str]:
    packages = ("assay", "torch", "transformers", "numpy")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}
