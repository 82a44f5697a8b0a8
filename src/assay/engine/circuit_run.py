"""Runs of the model in which only some edges carry what they carry, and the absent ones a counterfactual.

Every reader (the q, k, v of a head, an MLP, the logits) reads the clean run's residual stream plus, for each *absent*
edge, what its source writes in the counterfactual run less what it writes in this one. So kept edges carry what is
computed anew inside the circuit (Mueller et al., arXiv 2504.13151, section 3.2; Hanna et al., arXiv 2403.17806).
The sum over all sources that have written is one product of a table of absent edges with a table of differences.

Axes: C circuits, R rows, N = C R lanes (circuit by circuit), S sources, U readers of a layer, t positions, M d_model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.data.metrics import Metric
from assay.engine.batches import Batch
from assay.engine.contributions import count_sources, head_contributions, sources_of
from assay.engine.cost import CostMeter
from assay.engine.destinations import Readers, ReadersTap, count_readers, reading
from assay.engine.gradients import read_metric
from assay.engine.proofs import require_same_end
from assay.errors import InterventionError
from assay.model import Model
from assay.model.recording import Recording, site_hook


@dataclass(frozen=True)
class Absent:
    """The edges that C circuits leave out: True, or 1, where the source's counterfactual is read instead."""

    readers: list[Tensor]
    """Per layer (C, U, s): of the s sources that have written before the layer."""
    mlps: list[Tensor]
    """Per layer (C, s)"""
    logits: Tensor
    """(C, S)"""

    def part(self, circuits: slice) -> Absent:
        return Absent([x[circuits] for x in self.readers], [x[circuits] for x in self.mlps], self.logits[circuits])

    @property
    def circuits(self) -> int:
        return self.logits.shape[0]


@dataclass(frozen=True)
class AbsentNeurons:
    """MLP neurons that C circuits leave out; they hold their counterfactual value."""

    absent: Tensor
    """(C, layers, F) bool"""
    counterfactual: list[Tensor]
    """Per layer (R, t, F): what the down-projection reads."""

    def part(self, circuits: slice) -> AbsentNeurons:
        return AbsentNeurons(self.absent[circuits], self.counterfactual)


class CircuitRunner:
    """Runs circuits on the R rows of one batch.

    Args:
        base: recording of the clean prompts.
        counterfactual: (S, R, t, M) what every source writes in the counterfactual run, from ``start`` on.
        start: first position at which the two runs differ.
        ungrouped: keys and values for every query head.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        metric: Metric,
        base: Recording,
        counterfactual: Tensor,
        start: int,
        cost: CostMeter,
        *,
        ungrouped: bool = False,
    ) -> None:
        self.model, self.batch, self.metric, self.base, self.cost = model, batch, metric, base, cost
        self.counterfactual, self.start = counterfactual, start
        self.readers = [Readers(model, layer, base, start, ungrouped=ungrouped) for layer in range(model.n_layers)]

    @torch.no_grad()
    def values(self, absent: Absent, neurons: AbsentNeurons | None = None) -> Tensor:
        """(C, R) metric of each circuit."""
        circuits = absent.circuits
        rows = torch.arange(self.batch.rows, device=self.model.device).repeat(circuits)
        final = self._final_stream(absent, neurons, rows)
        values = read_metric(self.model, final, self.batch, self.metric, rows, self.start)
        self.cost.interventions += len(rows)
        return values.view(circuits, -1)

    def shares(self, absent: Absent) -> Tensor:
        """(C, R) metric with its graph, where ``absent`` has the share of each edge that is counterfactual."""
        rows = torch.arange(self.batch.rows, device=self.model.device).repeat(absent.circuits)
        with self.model.frozen(), torch.enable_grad():
            final = self._final_stream(absent, None, rows, gradients=True)
            values = read_metric(self.model, final, self.batch, self.metric, rows, self.start)
        self.cost.interventions += len(rows)
        return values.view(absent.circuits, -1)

    @torch.no_grad()
    def require_faithful(self, full: Absent) -> None:
        """A circuit that leaves out nothing must end where the recording ended.

        Args:
            full: one circuit without absent edges.

        Raises:
            InterventionError: it does not.
        """
        rows = torch.arange(self.batch.rows, device=self.model.device)
        end = self._final_stream(full, None, rows)
        require_same_end(self.model, self.start, self.base.residuals[-1][:, self.start :], end)

    def _final_stream(
        self, absent: Absent, neurons: AbsentNeurons | None, rows: Tensor, *, gradients: bool = False
    ) -> Tensor:
        """(N, t, M) that the logits read."""
        model, circuits = self.model, absent.circuits
        hidden = self.base.residuals[0][:, self.start :].repeat(circuits, 1, 1)
        differences = (_GraphedDifferences if gradients else _Differences)(self.counterfactual, circuits)
        differences.set(slice(0, 1), hidden.unsqueeze(0))
        with reading(model, self.readers, rows, gradients=gradients) as tap:
            for layer in range(model.n_layers):
                with ExitStack() as hooks:
                    if neurons is not None:
                        hooks.enter_context(self._patching(neurons, layer, hidden))
                    hidden = self._run_layer(layer, hidden, rows, absent, differences, tap)
        return (hidden + differences.absent(absent.logits.unsqueeze(1))[0]).to(hidden.dtype)

    @contextmanager
    def _patching(self, neurons: AbsentNeurons, layer: int, hidden: Tensor) -> Iterator[None]:
        """Absent neurons of a layer hold their counterfactual; proves that they were met once."""
        absent, counterfactual = neurons.absent[:, layer], neurons.counterfactual[layer]
        met: list[int] = []

        def patch(value: Tensor) -> Tensor:
            met.append(1)
            by_circuit = value.view(len(absent), -1, *value.shape[1:])
            patched = torch.where(absent[:, None, None], counterfactual.to(value.dtype), by_circuit)
            return patched.view(value.shape)

        with site_hook(self.model.layers[layer], "neurons", hidden.shape[:2], patch):
            yield
        if len(met) != 1:
            raise InterventionError(f"The neurons of layer {layer} were met {len(met)} times in a circuit, not once.")

    def _run_layer(
        self, layer: int, hidden: Tensor, rows: Tensor, absent: Absent, differences: _Differences, tap: ReadersTap
    ) -> Tensor:
        model, readers = self.model, self.readers[layer]
        multiplier = model.residual_multiplier
        heads, mlp = sources_of(model, layer)
        shape = hidden.shape[:2]
        inputs = (hidden + differences.absent(absent.readers[layer])).to(hidden.dtype)
        q, k, v = readers.read(inputs, rows)
        del inputs
        added: dict[str, Tensor] = {}

        def after_attention(value: Tensor) -> Tensor:
            assert tap.heads is not None
            added["attention"] = value
            differences.set(heads, head_contributions(model, layer, tap.heads))
            if model.is_parallel:
                return value
            change = differences.absent(absent.mlps[layer].unsqueeze(1))[0]
            return (value + change / multiplier).to(value.dtype)

        def after_mlp(value: Tensor) -> Tensor:
            added["mlps"] = value
            return value

        read_by_mlp = hidden
        if model.is_parallel:
            read_by_mlp = (hidden + differences.absent(absent.mlps[layer].unsqueeze(1))[0]).to(hidden.dtype)
        tap.given = None
        if readers.groups > 1:
            tap.given = readers.attended(tap, q, k, v, hidden, rows)
            k, v = k[:, :, :: readers.groups], v[:, :, :: readers.groups]
        with ExitStack() as hooks:
            hooks.enter_context(readers.projecting(q, k, v))
            hooks.enter_context(site_hook(model.layers[layer], "attention", shape, after_attention))
            hooks.enter_context(site_hook(model.layers[layer], "mlps", shape, after_mlp))
            readers.run(read_by_mlp, rows)
        self.cost.forward(*shape)
        if set(added) != {"attention", "mlps"}:
            raise InterventionError(f"Attention or MLP of layer {layer} did not run in a circuit.")
        differences.set(slice(mlp, mlp + 1), added["mlps"].unsqueeze(0) * multiplier)
        return hidden + (added["attention"] + added["mlps"]) * multiplier


class _Differences:
    """Counterfactual less current of every source that has written, (C, S, R t M), filled as the run goes on."""

    def __init__(self, counterfactual: Tensor, circuits: int) -> None:
        self.counterfactual, self.circuits = counterfactual, circuits
        self.sources, self.rows, self.positions, self.width = counterfactual.shape
        self._begin()

    def _begin(self) -> None:
        like = self.counterfactual
        self.table = torch.empty(self.circuits, self.sources, like[0].numel(), dtype=like.dtype, device=like.device)

    def set(self, sources: slice, current: Tensor) -> None:
        """Args: current: (sources, N, t, M)."""
        current = current.view(-1, self.circuits, *self.counterfactual.shape[1:]).transpose(0, 1)
        self._keep(sources, (self.counterfactual[sources] - current).flatten(2))

    def _keep(self, sources: slice, difference: Tensor) -> None:
        self.table[:, sources] = difference

    def _summed(self, edges_CUs: Tensor) -> Tensor:
        return torch.matmul(edges_CUs.to(self.table.dtype), self.table[:, : edges_CUs.shape[2]])

    def absent(self, edges_CUs: Tensor) -> Tensor:
        """(U, N, t, M): summed over each reader's absent edges, from the s sources that come first."""
        circuits, readers, _ = edges_CUs.shape
        summed = self._summed(edges_CUs)
        shape = (circuits, readers, self.rows, self.positions, self.width)
        return summed.view(shape).transpose(0, 1).flatten(1, 2)


class _GraphedDifferences(_Differences):
    """The same for autograd, which allows no table that is filled in place."""

    def _begin(self) -> None:
        self.parts: list[tuple[slice, Tensor]] = []

    def _keep(self, sources: slice, difference: Tensor) -> None:
        self.parts.append((sources, difference))

    def _summed(self, edges_CUs: Tensor) -> Tensor:
        edges = edges_CUs.to(self.counterfactual.dtype)
        read = [(sources, part) for sources, part in self.parts if sources.stop <= edges.shape[2]]
        return torch.stack([torch.matmul(edges[:, :, sources], part) for sources, part in read]).sum(0)


def circuit_bytes(model: Model, positions: int, *, ungrouped: bool = False) -> int:
    """Roughly what one lane of a circuit run takes."""
    readers = count_readers(model, ungrouped=ungrouped)
    per_token = (count_sources(model) + 8 * readers + 3 * model.n_heads) * model.d_model + 3 * model.d_mlp
    return int(positions * per_token * max(4, model.dtype.itemsize))
