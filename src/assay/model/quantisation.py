"""Quantised weights: how a model keeps them, whichever library made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

FULL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def quantisation_of(hf: PreTrainedModel) -> str | None:
    """The library where it is known, and how many modules keep what: ``torchao: 21 x Int8Tensor (int8)``.

    None if all weights are plain numbers of a precision that models are trained in.
    """
    counts = Counter(kind for kind in map(kind_of, hf.modules()) if kind is not None)
    found = ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items()))
    quantiser = getattr(hf, "hf_quantizer", None)
    if quantiser is None:
        return found or None
    config = quantiser.quantization_config
    library = getattr(config.quant_method, "value", config.quant_method)
    if not found and (library == "gguf" or getattr(config, "dequantize", False)):
        return None  # only the file was quantised
    return f"{library}{': ' if found else ''}{found}"


def kind_of(module: nn.Module) -> str | None:
    """How a module's own weights are quantised, None if they are not."""
    for parameter in module.parameters(recurse=False):
        if type(parameter.data) is not Tensor:
            return f"{type(parameter.data).__name__} ({_short(next(stored(parameter)).dtype)})"
        if parameter.dtype not in FULL:
            return f"{type(module).__name__} ({_short(parameter.dtype)})"
    is_linear = isinstance(getattr(module, "in_features", None), int)
    if is_linear and not isinstance(getattr(module, "weight", None), Tensor):
        return f"{type(module).__module__}.{type(module).__name__}"  # packed where torch does not see it
    quantised_when_used = getattr(module, "weight_qtype", None)  # optimum-quanto before its freeze
    return None if quantised_when_used is None else f"{type(module).__name__} ({quantised_when_used})"


def stored(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that hold a tensor's numbers: itself, or the parts of a quantised one."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        part = getattr(tensor, name)
        if part is not None:
            yield from stored(part)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
