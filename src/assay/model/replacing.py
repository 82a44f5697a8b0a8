"""Forward methods in the place of a module's own, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from assay.errors import ModelError

Forward = Callable[..., Any]


class OfThisModel:
    """Sits on a module for a while. A copy of the module would keep it for good."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise ModelError(
            "A model cannot be copied or pickled while backward rules are on it. Do it outside the block of "
            "assay.backward_rules, or save the state_dict."
        )


class InPlaceOf(OfThisModel):
    """A forward method that changes no value, in the place of ``replaced``: None where the class's own was there."""

    def __init__(self, through: Forward, replaced: Forward | None) -> None:
        self.through, self.replaced = through, replaced

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.through(*args, **kwargs)


@contextmanager
def replaced(module: nn.Module, through: Forward) -> Iterator[None]:
    """The module's forward method is ``through``; on leaving it is what it was before."""
    previous = vars(module).get("forward")
    vars(module)["forward"] = InPlaceOf(through, previous)
    try:
        yield
    finally:
        if previous is None:
            vars(module).pop("forward", None)
        else:
            vars(module)["forward"] = previous
