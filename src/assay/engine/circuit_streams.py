"""What the readers of a circuit read: a sum over sources, of this run where an edge is kept, else the counterfactual.

In exact arithmetic the two ways of summing are one. Where the counterfactual is a run of the model, its streams are as
large as this one's, and few differences are best added to the stream that is there. Where it is zero or a mean, what
is left of the stream may be nothing: a difference of large numbers would leave their rounding, which a norm blows up.

Axes: C circuits, R rows, N = C R lanes (circuit by circuit), S sources (s that have written), U readers of a layer,
t positions, M d_model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor


class Streams(ABC):
    """A table (C, S, R t M) of something about every source that has written, filled as the run goes on.

    Args:
        counterfactual: (S, R, t, M) what every source writes in the counterfactual run.
    """

    def __init__(self, counterfactual: Tensor, circuits: int) -> None:
        self.counterfactual, self.circuits = counterfactual, circuits
        _, self.rows, self.positions, self.width = counterfactual.shape

    @cached_property
    def table(self) -> Tensor:
        like = self.counterfactual
        shape = (self.circuits, len(like), like[0].numel())
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    @abstractmethod
    def set(self, sources: slice, current: Tensor) -> None:
        """Args: current: (sources, N, t, M) what they write in this run."""

    @abstractmethod
    def add_bias(self, of_attention: Callable[[], Tensor | None]) -> None:
        """Args: of_attention: gives (M,) or (N, t, M), what attention adds that belongs to no source."""

    @abstractmethod
    def read(self, absent_CUs: Tensor, hidden_NtM: Tensor) -> Tensor:
        """(U, N, t, M) that readers of the s sources which come first read; ``hidden`` is what all of them wrote."""

    @abstractmethod
    def before_mlp(self, hidden_NtM: Tensor) -> Tensor:
        """(N, t, M) that a layer gets whose MLP reads after its attention ..."""

    @abstractmethod
    def for_mlp(self, absent_C1s: Tensor, hidden_NtM: Tensor, attention_NtM: Tensor, multiplier: float) -> Tensor:
        """... and (N, t, M) that its attention is to give, so that the MLP reads what it must."""

    def _by_circuit(self, of_lanes: Tensor) -> Tensor:
        """(..., N, t, M) to (C, ..., R, t, M)."""
        lanes = (self.circuits, self.rows, self.positions, self.width)
        return of_lanes.reshape(*of_lanes.shape[:-3], *lanes).movedim(-4, 0)

    def _summed(self, edges_CUs: Tensor) -> Tensor:
        """(U, N, t, M) sums of the table over each reader's edges."""
        circuits, readers, _ = edges_CUs.shape
        shape = (circuits, readers, self.rows, self.positions, self.width)
        return self._weighted(edges_CUs).view(shape).transpose(0, 1).flatten(1, 2)

    def _weighted(self, edges_CUs: Tensor) -> Tensor:
        """(C, U, R t M)"""
        return torch.matmul(edges_CUs.to(self.table.dtype), self.table[:, : edges_CUs.shape[2]])


class WithDifferences(Streams):
    """This run's stream plus, of every absent edge, counterfactual less current; the table holds these."""

    def set(self, sources: slice, current: Tensor) -> None:
        difference = self.counterfactual[sources] - self._by_circuit(current)
        self.table[:, sources] = difference.flatten(2)

    def add_bias(self, of_attention: Callable[[], Tensor | None]) -> None:
        pass  # it is in the stream

    def read(self, absent_CUs: Tensor, hidden_NtM: Tensor) -> Tensor:
        return (hidden_NtM + self._summed(absent_CUs)).to(hidden_NtM.dtype)

    def before_mlp(self, hidden_NtM: Tensor) -> Tensor:
        return hidden_NtM

    def for_mlp(self, absent_C1s: Tensor, hidden_NtM: Tensor, attention_NtM: Tensor, multiplier: float) -> Tensor:
        change = self._summed(absent_C1s)[0]
        return (attention_NtM + change / multiplier).to(attention_NtM.dtype)


class Graphed(WithDifferences):
    """The same for shares of edges and for autograd, which allows no table that is filled in place."""

    def __init__(self, counterfactual: Tensor, circuits: int) -> None:
        super().__init__(counterfactual, circuits)
        self.parts: list[tuple[slice, Tensor]] = []

    def set(self, sources: slice, current: Tensor) -> None:
        difference = self.counterfactual[sources] - self._by_circuit(current)
        self.parts.append((sources, difference.flatten(2)))

    def _weighted(self, edges_CUs: Tensor) -> Tensor:
        edges = edges_CUs.to(self.counterfactual.dtype)
        read = [(sources, part) for sources, part in self.parts if sources.stop <= edges.shape[2]]
        return torch.stack([torch.matmul(edges[:, :, sources], part) for sources, part in read]).sum(0)


class SumOfKept(Streams):
    """What is kept, the counterfactual of what is absent, and biases; the table holds what is written in this run.

    A reader that keeps all its edges reads this run's stream, with whatever rounding that has.
    """

    def __init__(self, counterfactual: Tensor, circuits: int) -> None:
        super().__init__(counterfactual, circuits)
        self.bias = torch.zeros((), dtype=counterfactual.dtype, device=counterfactual.device)
        self.is_zero = not bool(counterfactual.any())

    def set(self, sources: slice, current: Tensor) -> None:
        self.table[:, sources] = self._by_circuit(current).flatten(2)

    def add_bias(self, of_attention: Callable[[], Tensor | None]) -> None:
        bias = of_attention()
        if bias is not None:
            self.bias = self.bias + bias

    def read(self, absent_CUs: Tensor, hidden_NtM: Tensor) -> Tensor:
        summed = self._summed(~absent_CUs) + self.bias
        if not self.is_zero:
            sources = absent_CUs.shape[2]
            edges = absent_CUs.to(self.table.dtype).flatten(0, 1)
            filled = (edges @ self.counterfactual[:sources].flatten(1)).view(*absent_CUs.shape[:2], *self._lane)
            summed = summed + filled.transpose(0, 1).flatten(1, 2)
        whole = ~absent_CUs.any(2).T.repeat_interleave(self.rows, 1)
        return torch.where(whole[:, :, None, None], hidden_NtM, summed.to(hidden_NtM.dtype))

    def before_mlp(self, hidden_NtM: Tensor) -> Tensor:
        # Attention then gives all that the MLP reads; its own projections are given what they give.
        return torch.zeros_like(hidden_NtM)

    def for_mlp(self, absent_C1s: Tensor, hidden_NtM: Tensor, attention_NtM: Tensor, multiplier: float) -> Tensor:
        return self.read(absent_C1s, hidden_NtM + attention_NtM * multiplier)[0] / multiplier

    @property
    def _lane(self) -> tuple[int, int, int]:
        return self.rows, self.positions, self.width
