"""Devices that are not there: what lies on two of them cannot meet in one operation.

Tensors on ``lazy:0`` and ``lazy:1`` are computed on the CPU, but say that they are where they are, and an operation on
tensors of two devices raises, as it would on two GPUs. Like torch, it lets numbers without axes and indices on the CPU
pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import assay.methods.requirements
import assay.model.model
import assay.model.quantisation
from assay.model.families import family_of

FIRST, SECOND = torch.device("lazy:0"), torch.device("lazy:1")


class MixedDevicesError(RuntimeError):
    """An operation on tensors of two devices."""


class OnDevice(Tensor):
    """A tensor that says it is elsewhere; ``held`` are its numbers."""

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> OnDevice:
        return Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device="cpu"
        )

    def __init__(self, held: Tensor, device: torch.device) -> None:
        self.held, self.elsewhere = held, device

    @property
    def device(self) -> torch.device:
        return self.elsewhere

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.held}, {self.elsewhere})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carry_out(func, args, kwargs or {})


class FakeDevices(TorchDispatchMode):
    """Inside, tensors can be made on the two devices and moved to them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carry_out(func, args, kwargs or {})


class _Move(torch.autograd.Function):
    """To a device; gradients come back to where the tensor was."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, device: torch.device) -> Tensor:
        ctx.before = tensor.device
        held = tensor.held if isinstance(tensor, OnDevice) else tensor
        return OnDevice(held.clone(), device) if device.type == "lazy" else held.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Move.apply(gradient, ctx.before), None


class Moves(TorchFunctionMode):
    """What torch decides by a device before it asks the other mode: to torch, all of this is on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and (device := kwargs.pop("device", None)) is not None:
            return func(*args, **kwargs).to(device)
        if func in (Tensor.cpu, Tensor.numpy, Tensor.tolist) and isinstance(args[0], OnDevice):
            held = args[0].detach().held
            return held if func is Tensor.cpu else func(held)
        if func is one_hot and isinstance(args[0], OnDevice):
            return OnDevice(func(args[0].held, *args[1:], **kwargs), args[0].device)
        if func is Tensor.to:
            tensor, *others = args
            if others and isinstance(others[0], Tensor):
                others = [others[0].device, others[0].dtype]
            places = [other for other in (*others, kwargs.pop("device", None)) if isinstance(other, str | torch.device)]
            rest = [other for other in others if not isinstance(other, str | torch.device)]
            stays = not places or torch.device(places[0]) == tensor.device
            moved = tensor if stays else _Move.apply(tensor, torch.device(places[0]))
            return func(moved, *rest, **kwargs) if rest or kwargs else moved
        return func(*args, **kwargs)


def _carry_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    devices: dict[torch.device, Tensor] = {}
    indexes = func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default,
        torch.ops.aten._index_put_impl_.default,
    )  # fmt: skip

    def seen(value: Any) -> Any:
        if isinstance(value, OnDevice):
            devices.setdefault(value.device, value)
            return value.held
        is_index = indexes and isinstance(value, Tensor) and value.dtype in (torch.long, torch.bool)
        if isinstance(value, Tensor) and value.ndim and not (is_index or makes_its_own):
            devices.setdefault(value.device, value)
        return value

    makes_its_own = torch._C._current_autograd_node() is not None
    """Autograd makes zeros where torch takes tensors to be: on the CPU."""
    real_args, real_kwargs = tree_map(seen, args), tree_map(seen, kwargs)
    copies = func in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
    if len(devices) > 1 and not copies:
        raise MixedDevicesError(f"{func} on {' and '.join(map(str, devices))}")
    wanted = kwargs.get("device")
    device = torch.device(wanted) if wanted is not None else next(iter(devices), torch.device("cpu"))
    if func._schema.name.startswith("aten::new_"):  # autograd asks for where torch takes the tensor to be
        device = next(iter(devices))
    if wanted is not None and device.type == "lazy":
        real_kwargs["device"] = torch.device("cpu")
    found = func(*real_args, **real_kwargs)
    if func._schema.name.endswith("_") or "out" in kwargs:
        return kwargs.get("out", args[0])

    def placed(value: Any) -> Any:
        return OnDevice(value, device) if isinstance(value, Tensor) and device.type == "lazy" else value

    return tree_map(placed, found)


@contextmanager
def spread(hf: Any, layers_on_first: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A model whose embedding and first layers are on one device, and all that comes after on the other.

    Laid out as accelerate lays it out: its hooks move what modules are called with.
    """
    layers = hf.get_submodule(family_of(hf.config).layers)
    early = {part for module in (hf.get_input_embeddings(), *layers[:layers_on_first]) for part in module.modules()}
    # These tensors are plain ones, whatever class says where they are.
    for module in (assay.model.quantisation, assay.model.model, assay.methods.requirements):
        monkeypatch.setattr(module, "kind_of", lambda _: None)
    monkeypatch.setattr(AlignDevicesHook, "init_hook", lambda _, module: module)  # would move weights
    with FakeDevices(), Moves():
        for module in hf.modules():
            device = FIRST if module in early else SECOND
            for name, parameter in list(module.named_parameters(recurse=False)):
                module.register_parameter(name, nn.Parameter(OnDevice(parameter.detach(), device), requires_grad=False))
            for name, buffer in list(module.named_buffers(recurse=False)):
                module._buffers[name] = OnDevice(buffer, device)
            holds = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if module is hf:
                add_hook_to_module(module, AlignDevicesHook(FIRST, io_same_device=True))
            elif holds or module in layers:
                add_hook_to_module(module, AlignDevicesHook(device))
        yield hf
