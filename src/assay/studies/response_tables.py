"""The response of every component at given strengths, computed once, for many methods to read.

Methods are arithmetic on `assay.engine.response.Response`. `RecordedResponse` offers them what it offers, from tables,
so that values of a study are those of the methods themselves, and one grid serves all that ask for a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.engine.response import Response
from assay.methods.method import Method, Setting

EFFECT, BASE = "effect", "base"
"""Tables of g(1) - g(0) and of g(0)."""


def table_name(what: str, a: float) -> str:
    """Of a table of values, slopes or curvatures at strength ``a``: grids that meet up to rounding share it."""
    return f"{what} {a:.9f}"


@dataclass(frozen=True)
class Points:
    """At which strengths a response is wanted; 1 is always among the values."""

    values: tuple[float, ...]
    slopes: tuple[float, ...]
    """Where curvature is not wanted."""
    curvatures: tuple[float, ...]
    """Slopes come with them."""

    @classmethod
    def of(cls, methods: Iterable[Method], values: Sequence[float] = ()) -> Points:
        """Those that methods ask for, and some values besides."""
        asked = _Asking()
        for method in methods:
            _compute(method, asked)
        wanted = {what: {table_name("", a): a for a in at} for what, at in asked.at.items()}
        wanted["value"] |= {table_name("", a): a for a in (*values, 1)}
        wanted["value"].pop(table_name("", 0), None)  # the base, which is there anyway
        slopes = [a for name, a in wanted["slope"].items() if a == 0 or name not in wanted["curvature"]]
        return cls(*(tuple(sorted(at)) for at in (wanted["value"].values(), slopes, wanted["curvature"].values())))

    @property
    def names(self) -> list[str]:
        """Of the tables, in the order in which `recording_method` gives them."""
        named = [EFFECT, BASE, *(table_name("value", a) for a in self.values)]
        named += [table_name("slope", a) for a in self.slopes]
        return named + [table_name(what, a) for a in self.curvatures for what in ("step slope", "curvature")]


def recording_method(points: Points) -> Method:
    """Gives the tables of these points, one below the other."""
    return Method(
        name="response",
        description="the response of each component, with derivatives, at chosen strengths",
        source_note="",
        compute=partial(_along, points),
        outputs=len(points.names),
        sweeps=len(points.values) + len(points.slopes) + len(points.curvatures),
        by_component=True,
        exact=True,
        uses_gradients=bool(points.slopes or points.curvatures),
        second_order=bool(points.curvatures),
        arguments={"points": points},
        configure=recording_method,
    )


def _along(points: Points, response: Response, _: Setting) -> Tensor:
    base = response.base_values.expand(len(response.components), -1)
    values = [response.value(a) for a in points.values]
    found = [values[points.values.index(1)] - base, base, *values]
    found += [response.slope(a) for a in points.slopes]
    for a in points.curvatures:
        found += response.slope_and_curvature(a)
    return torch.cat([each.double() for each in found])


class RecordedResponse:
    """What `Response` offers to methods, from tables (C, n) by name."""

    def __init__(self, tables: Mapping[str, NDArray[np.float64]]) -> None:
        self.tables = tables

    @property
    def base_values(self) -> Tensor:
        return self._table(BASE)

    def value(self, a: float) -> Tensor:
        return self.base_values if a == 0 else self._table(table_name("value", a))

    def slope(self, a: float) -> Tensor:
        name = table_name("slope", a)
        return self._table(name if name in self.tables else table_name("step slope", a))

    def curvature(self, a: float) -> Tensor:
        return self._table(table_name("curvature", a))

    def slope_and_curvature(self, a: float) -> tuple[Tensor, Tensor]:
        return self._table(table_name("step slope", a)), self.curvature(a)

    def _table(self, name: str) -> Tensor:
        return torch.from_numpy(np.asarray(self.tables[name], np.float64))

    def estimates(self, method: Method) -> NDArray[np.float64]:
        """(C, n) what the method makes of this response.

        Raises:
            KeyError: it asks for what was not recorded.
        """
        found: NDArray[np.float64] = _compute(method, self).numpy()
        return found


class _Asking(RecordedResponse):
    """Notes what is asked for, and answers with zeros."""

    def __init__(self) -> None:
        self.at: dict[str, list[float]] = {"value": [], "slope": [], "curvature": []}

    @property
    def base_values(self) -> Tensor:
        return torch.zeros(1, 1)

    def value(self, a: float) -> Tensor:
        return self._note("value", a)

    def slope(self, a: float) -> Tensor:
        return self._note("slope", a)

    def curvature(self, a: float) -> Tensor:
        return self._note("curvature", a)

    def slope_and_curvature(self, a: float) -> tuple[Tensor, Tensor]:
        return self.curvature(a), self.base_values

    def _note(self, what: str, a: float) -> Tensor:
        self.at[what].append(a)
        return self.base_values


def passes(method: Method) -> float:
    """Forward passes (a backward one counts two) per component of a method that computes every point by itself.

    A slope is 3, a curvature with its slope 6. The slope at the base is one for all components and counts nothing.
    """
    asked = _Asking()
    _compute(method, asked)
    return len(asked.at["value"]) + 3 * sum(a != 0 for a in asked.at["slope"]) + 6 * len(asked.at["curvature"])


def _compute(method: Method, response: RecordedResponse) -> Tensor:
    return method.compute(cast(Response, response), cast(Setting, None)).double()
