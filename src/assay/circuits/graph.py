"""The graph of a model: who writes to the residual stream, who reads it, and every edge between.

Sources are the token embeddings (``input``), each head (``a3.h5``) and each MLP (``m3``), numbered in the order in
which they write. Destinations are what reads: the q, k and v of each head, each MLP, the logits. An edge leads from
every source to every destination that reads later; an MLP sees the heads of its own layer unless the two run in
parallel. So a destination reads the first so many sources, and edges are numbered destination by destination. Names are
MIB's (Mueller et al., arXiv 2504.13151): ``input->a0.h0<q>``, ``a0.h1->m0``, ``m0->logits``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from assay.engine.circuit_run import Absent
from assay.errors import OptionError
from assay.model import Model

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """Sources, destinations and edges, as arrays.

    Args:
        parallel: MLP and attention of a layer read the same stream.
        ungrouped: every query head has keys and values of its own, where a model shares them.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    parallel: bool = False
    ungrouped: bool = False

    @classmethod
    def of(cls, model: Model, *, ungrouped: bool = False) -> Graph:
        """The graph of a model."""
        return cls(model.n_layers, model.n_heads, model.n_kv_heads, model.is_parallel, ungrouped)

    # Sources

    @property
    def n_sources(self) -> int:
        return 1 + self.n_layers * (self.n_heads + 1)

    @cached_property
    def source_names(self) -> list[str]:
        names = ["input"]
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{head}" for head in range(self.n_heads)] + [f"m{layer}"]
        return names

    @cached_property
    def are_mlps(self) -> Flags:
        """(S,) bool"""
        return np.array([name.startswith("m") for name in self.source_names])

    @property
    def n_nodes(self) -> int:
        """Sources and the logits."""
        return self.n_sources + 1

    # Destinations

    @property
    def kv_units(self) -> int:
        return self.n_heads if self.ungrouped else self.n_kv_heads

    @property
    def readers(self) -> int:
        """Destinations of one layer's attention: every q, then every k, then every v."""
        return self.n_heads + 2 * self.kv_units

    @property
    def n_destinations(self) -> int:
        return self.n_layers * (self.readers + 1) + 1

    @cached_property
    def destination_names(self) -> list[str]:
        unit = "h" if self.kv_units == self.n_heads else "kv"
        names = []
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{head}<q>" for head in range(self.n_heads)]
            names += [f"a{layer}.{unit}{head}<{kind}>" for kind in "kv" for head in range(self.kv_units)]
            names.append(f"m{layer}")
        return [*names, "logits"]

    def first_destination(self, layer: int) -> int:
        """The layer's first reader; its MLP is ``readers`` further on."""
        return layer * (self.readers + 1)

    @cached_property
    def reach(self) -> Numbers:
        """(D,) how many of the first sources each destination reads."""
        found = []
        for layer in range(self.n_layers):
            before = 1 + layer * (self.n_heads + 1)
            found += [before] * self.readers + [before if self.parallel else before + self.n_heads]
        return np.array([*found, self.n_sources])

    @cached_property
    def owners(self) -> Flags:
        """(D, S) bool: the sources that a destination feeds directly: a head, the heads of a group, an MLP."""
        owners = np.zeros((self.n_destinations, self.n_sources), bool)
        group = self.n_heads // self.kv_units
        for layer in range(self.n_layers):
            first, source = self.first_destination(layer), 1 + layer * (self.n_heads + 1)
            for head in range(self.n_heads):
                k = first + self.n_heads + head // group
                owners[[first + head, k, k + self.kv_units], source + head] = True
            owners[first + self.readers, source + self.n_heads] = True
        return owners

    # Edges

    @cached_property
    def offsets(self) -> Numbers:
        """(D + 1,) where each destination's edges begin."""
        return np.concatenate([[0], np.cumsum(self.reach)])

    @property
    def n_edges(self) -> int:
        return int(self.offsets[-1])

    @cached_property
    def edge_destinations(self) -> Numbers:
        """(E,)"""
        return np.repeat(np.arange(self.n_destinations), self.reach)

    @cached_property
    def edge_sources(self) -> Numbers:
        """(E,)"""
        return np.arange(self.n_edges) - self.offsets[self.edge_destinations]

    def edge_name(self, edge: int) -> str:
        source, destination = self.edge_sources[edge], self.edge_destinations[edge]
        return f"{self.source_names[source]}->{self.destination_names[destination]}"

    @property
    def edge_names(self) -> list[str]:
        return [self.edge_name(edge) for edge in range(self.n_edges)]

    def edge(self, name: str) -> int:
        """The number of an edge by its name.

        Raises:
            OptionError: there is no such edge.
        """
        source, _, destination = name.partition("->")
        if source in self._source_numbers and destination in self._destination_numbers:
            u, d = self._source_numbers[source], self._destination_numbers[destination]
            if u < self.reach[d]:
                return int(self.offsets[d] + u)
            raise OptionError(f"There is no edge {name!r}: {destination} reads before {source} writes.")
        keys = " (keys and values belong to key-value heads, a0.kv0<k>, unless the graph is ungrouped)"
        grouped = self.kv_units != self.n_heads and re.search(r"\.h\d+<[kv]>", destination)
        raise OptionError(
            f"There is no edge {name!r}. Edges are named like {self.edge_name(0)}, {self.edge_name(self.n_edges - 1)}"
            f"{keys if grouped else ''}."
        )

    @cached_property
    def _source_numbers(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.source_names)}

    @cached_property
    def _destination_numbers(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.destination_names)}

    # Circuits

    def table(self, edges: NDArray[np.generic]) -> NDArray[np.generic]:
        """(..., E) per edge to (..., D, S); 0 where there is no edge."""
        found = np.zeros((*edges.shape[:-1], self.n_destinations, self.n_sources), edges.dtype)
        found[..., self.edge_destinations, self.edge_sources] = edges
        return found

    def nodes(self, kept: Flags) -> Flags:
        """(..., S) kept sources to (..., E): an edge is kept if its source is.

        A node that is left out is one whose every reader gets the counterfactual; what it reads then does not matter.
        """
        return kept[..., self.edge_sources]

    def pruned(self, kept: Flags) -> Flags:
        """(E,) without the edges that lie on no path of kept edges from the input to the logits.

        The fixed point of removing nodes without an edge in or out, in one sweep each way. Under patching it changes
        no number where heads do not touch each other: a node that reads no kept edge holds its counterfactual, and one
        that nobody reads has no effect. A post-norm, or a norm over all queries, couples the heads of a layer.
        """
        table = self.table(kept)
        reached = np.zeros(self.n_sources, bool)
        reached[0] = True
        needed = np.zeros(self.n_destinations, bool)
        needed[-1] = True
        order = range(self.n_destinations)
        for destination in order:  # sources are reached in the order in which they write
            if (table[destination] & reached).any():
                reached |= self.owners[destination]
        useful = np.zeros(self.n_sources, bool)
        for destination in reversed(order):
            needed[destination] |= bool((self.owners[destination] & useful).any())
            if needed[destination]:
                useful |= table[destination]
        pruned: Flags = kept & reached[self.edge_sources] & needed[self.edge_destinations]
        return pruned

    def absent(self, kept: Sequence[Flags] | Flags, device: torch.device | str = "cpu") -> Absent:
        """Circuits (C, E) of kept edges as `assay.engine.circuit_run` takes them."""
        return self._by_layer(torch.from_numpy(~self.table(np.asarray(kept, bool)).astype(bool)).to(device))

    def absent_shares(self, kept_CE: torch.Tensor) -> Absent:
        """The same for shares of edges between 0 and 1, through which gradients go."""
        table = kept_CE.new_ones(len(kept_CE), self.n_destinations, self.n_sources)
        table[:, self.edge_destinations, self.edge_sources] = 1 - kept_CE
        return self._by_layer(table)

    def _by_layer(self, table: torch.Tensor) -> Absent:
        readers, mlps = [], []
        for layer in range(self.n_layers):
            first = self.first_destination(layer)
            mlp = first + self.readers
            readers.append(table[:, first:mlp, : self.reach[first]])
            mlps.append(table[:, mlp, : self.reach[mlp]])
        return Absent(readers, mlps, table[:, -1])
