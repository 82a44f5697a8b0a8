"""What was run on what, stored with every run."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import torch

from assay.model import Model


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
    packages = ("assay", "torch", "transformers", "numpy")
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "platform": platform.platform(),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
