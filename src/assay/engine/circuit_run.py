"""Runs of the model in which only some edges carry what they carry, and the absent ones a counterfactual.

Every reader (the q, k, v of a head, an MLP, the logits) reads, for each *absent* edge, what its source writes in the
counterfactual run and, for each other, what its source writes in this one. So kept edges carry what is computed anew
inside the circuit (Mueller et al., arXiv 2504.13151, section 3.2; Hanna et al., arXiv 2403.17806). How that is summed
is `assay.engine.circuit_streams`.

Axes: C circuits, R rows, N = C R lanes (circuit by circuit), S sources, U readers of a layer, t positions, M d_model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from assay.data.metrics import Metric
from assay.engine.batches import Batch
from assay.engine.circuit_streams import Graphed, Streams, SumOfKept, WithDifferences
from assay.engine.contributions import attention_bias, count_sources, head_contributions, sources_of
from assay.engine.cost import CostMeter
from assay.engine.destinations import Readers, ReadersTap, count_readers, reading
from assay.engine.gradients import read_metric
from assay.engine.proofs import require_same_end
from assay.errors import InterventionError, OptionError
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
        streams: how a reader's sources are summed.
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
        streams: type[WithDifferences] | type[SumOfKept] = WithDifferences,
        ungrouped: bool = False,
    ) -> None:
        self.model, self.batch, self.metric, self.base, self.cost = model, batch, metric, base, cost
        self.counterfactual, self.start, self.streams = counterfactual, start, streams
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
        """(C, R) metric with its graph, where ``absent`` has the share of each edge that is counterfactual.

        Raises:
            OptionError: the counterfactual is no run of the model.
        """
        if self.streams is not WithDifferences:
            raise OptionError("Shares of edges are between two runs of the model: use patch ablation.")
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
        kind = Graphed if gradients else self.streams
        streams = kind(self.counterfactual, circuits)
        streams.set(slice(0, 1), hidden.unsqueeze(0))
        with reading(model, self.readers, rows, gradients=gradients) as tap:
            for layer in range(model.n_layers):
                with ExitStack() as hooks:
                    if neurons is not None:
                        hooks.enter_context(self._patching(neurons, layer, hidden))
                    hidden = self._run_layer(layer, hidden, rows, absent, streams, tap)
        return streams.read(absent.logits.unsqueeze(1), hidden)[0]

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
        self, layer: int, hidden: Tensor, rows: Tensor, absent: Absent, streams: Streams, tap: ReadersTap
    ) -> Tensor:
        model, readers = self.model, self.readers[layer]
        multiplier = model.residual_multiplier
        heads, mlp = sources_of(model, layer)
        shape = hidden.shape[:2]
        inputs = streams.read(absent.readers[layer], hidden)
        q, k, v = readers.read(inputs, rows)
        del inputs
        of_mlp = absent.mlps[layer].unsqueeze(1)
        added: dict[str, Tensor] = {}

        def after_attention(value: Tensor) -> Tensor:
            assert tap.heads is not None
            added["attention"] = value
            streams.set(heads, head_contributions(model, layer, tap.heads))
            streams.add_bias(partial(attention_bias, model, layer, tap.heads))
            return value if model.is_parallel else streams.for_mlp(of_mlp, hidden, value, multiplier)

        def after_mlp(value: Tensor) -> Tensor:
            added["mlps"] = value
            return value

        read_by_mlp = streams.read(of_mlp, hidden)[0] if model.is_parallel else streams.before_mlp(hidden)
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
        streams.set(slice(mlp, mlp + 1), added["mlps"].unsqueeze(0) * multiplier)
        return hidden + (added["attention"] + added["mlps"]) * multiplier


def circuit_bytes(model: Model, positions: int, *, ungrouped: bool = False) -> int:
    """Roughly what one lane of a circuit run takes."""
    readers = count_readers(model, ungrouped=ungrouped)
    per_token = (count_sources(model) + 8 * readers + 3 * model.n_heads) * model.d_model + 3 * model.d_mlp
    return int(positions * per_token * max(4, model.dtype.itemsize))
