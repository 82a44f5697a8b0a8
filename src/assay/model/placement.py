"""Where a model's weights are, and where its modules compute.

A model may be spread over devices, or its weights may lie in main memory or on disk and come for each call:
accelerate's hooks do that, for whoever calls a module. What is read outside of a call is asked for here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from accelerate.hooks import AlignDevicesHook, ModelHook, SequentialHook
from accelerate.utils import named_module_tensors
from torch import Tensor, nn


def execution_device(module: nn.Module) -> torch.device:
    """Where a module, or the first of its parts that says so, computes; the CPU if it has no weights."""
    for part in module.modules():
        for hook in _hooks(part):
            if hook.execution_device is not None:
                return torch.device(hook.execution_device)
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def is_offloaded(module: nn.Module) -> bool:
    """Whether weights of a module, or of its parts, are there only while it is called."""
    return any(hook.offload for part in module.modules() for hook in _hooks(part))


def moves_only(module: nn.Module) -> bool:
    """Whether the module's forward method is its class's own with accelerate around it, which changes no value."""
    around = vars(module).get("forward")
    if not isinstance(around, functools.partial) or around.func.__module__ != AlignDevicesHook.__module__:
        return False
    own = getattr(vars(module).get("_old_forward"), "__func__", None)
    return own is type(module).forward and len(_hooks(module)) == len(_parts(getattr(module, "_hf_hook", None)))


def weight_of(module: nn.Module, name: str) -> Tensor | None:
    """A module's own parameter, wherever its numbers are; None if it has none of the name."""
    for hook in _hooks(module):
        if hook.offload and getattr(module, name, None) is not None:
            there: Tensor = hook.weights_map[name]
            return there.to(hook.execution_device)
    found: Tensor | None = getattr(module, name, None)
    return found


def weights_of(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and values of all parameters and buffers, wherever they are; tied ones under each of their names."""
    held = dict(hf.state_dict(keep_vars=True))
    for path, part in hf.named_modules():
        for hook in _hooks(part):
            if hook.offload:
                for name, _ in named_module_tensors(part, hook.offload_buffers, hook.place_submodules, True):
                    held[f"{path}.{name}" if path else name] = hook.weights_map[name]
    yield from held.items()


def map_of(hf: nn.Module) -> dict[str, str] | None:
    """Which part of a model is on which device, as accelerate laid it out; None if it did not."""
    found = getattr(hf, "hf_device_map", None)
    return None if found is None else {name or "all": str(device) for name, device in found.items()}


def _hooks(module: nn.Module) -> list[AlignDevicesHook]:
    return [hook for hook in _parts(getattr(module, "_hf_hook", None)) if isinstance(hook, AlignDevicesHook)]


def _parts(hook: ModelHook | None) -> list[ModelHook]:
    if isinstance(hook, SequentialHook):
        return [part for one in hook.hooks for part in _parts(one)]
    return [] if hook is None else [hook]
