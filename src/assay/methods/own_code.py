"""What a user's own function computes, as a hash: may a run that was kept be gone on with?"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from assay.errors import OptionError

SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, range, slice, type(Ellipsis))


def own_code(function: Callable[..., Any]) -> str | None:
    """SHA-256 of a user's own function: code, defaults, and the values it closes over or reads from its module.

    None for assay's own functions: they are known by their version.

    Raises:
        OptionError: it holds an object that cannot be compared from one sitting to the next.
    """
    if _is_assays(function):
        return None
    digest = hashlib.sha256()
    _feed(digest, function, set())
    return digest.hexdigest()


def _is_assays(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__module__", "")).split(".")[0] == "assay"


def _feed(digest: Any, value: Any, seen: set[int]) -> None:
    digest.update(type(value).__qualname__.encode() + b"\0")
    if isinstance(value, SIMPLE):
        digest.update(repr(value).encode() + b"\0")
    elif isinstance(value, ModuleType):
        digest.update(value.__name__.encode())
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        array = value.detach().cpu().contiguous() if isinstance(value, torch.Tensor) else np.ascontiguousarray(value)
        digest.update(f"{array.dtype} {tuple(array.shape)}".encode())
        if isinstance(array, torch.Tensor):
            array = array.reshape(-1).view(torch.uint8).numpy()
        digest.update(array.tobytes())
    elif id(value) not in seen:
        seen = seen | {id(value)}
        for part in _parts(value):
            _feed(digest, part, seen)


def _parts(value: Any) -> list[Any]:
    """What an object consists of, in an order that does not change."""
    match value:
        case tuple() | list():
            return list(value)
        case dict():
            return [part for item in value.items() for part in item]
        case set() | frozenset():
            return sorted(value, key=repr)
        case partial():
            return [value.func, *value.args, value.keywords]
        case CodeType():
            return [value.co_code, value.co_consts, value.co_names, value.co_varnames]
        case FunctionType() if _is_assays(value):
            return [value.__module__, value.__qualname__]
        case FunctionType():
            read = [name for name in _names_of(value.__code__) if name in value.__globals__]
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            known = {name: value.__globals__[name] for name in read}
            return [value.__code__, value.__defaults__, value.__kwdefaults__, cells, known]
        case MethodType():
            return [value.__func__, value.__self__]
        case BuiltinFunctionType() | type():
            return [value.__module__, value.__qualname__]
    if type(value).__module__ == "torch" or type(value).__module__.startswith(("torch.", "numpy")):
        return [repr(value)]
    if hasattr(value, "__dict__"):
        call = inspect.getattr_static(type(value), "__call__", None)
        return [type(value).__module__, call if isinstance(call, FunctionType) else None, vars(value)]
    raise OptionError(
        f"Your own function holds a {type(value).__qualname__}, which cannot be compared from one sitting to the next. "
        "Leave the run folder out and save the scores, or let it hold plain values."
    )


def _names_of(code: CodeType) -> list[str]:
    """Names of its module that a function reads, and the functions inside it."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names_of(const)]
    return sorted({*code.co_names, *inner})
