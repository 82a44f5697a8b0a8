"""The clean run and the counterfactual of the same prompts, by what every source writes in each.

Axes: S sources, R rows, t positions from ``start`` on, M d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from assay.circuits.graph import Graph
from assay.circuits.work import Values, Work
from assay.data.baseline import Baseline
from assay.data.encoding import Align
from assay.data.metrics import Metric
from assay.data.readers import AnyPairs
from assay.engine.baseline import PlainRuns
from assay.engine.batches import DEFAULT_MEMORY, Batch
from assay.engine.circuit_run import CircuitRunner
from assay.engine.circuit_streams import SumOfKept, WithDifferences
from assay.engine.contributions import count_sources, head_contributions, sources_of, written
from assay.engine.cost import CostMeter
from assay.engine.destinations import count_readers
from assay.engine.edge_gradients import EdgeGradients, Rules, no_rules
from assay.engine.edge_patch import EdgePatch
from assay.engine.graph import graph_bytes
from assay.engine.memory import Portions
from assay.engine.response import Response
from assay.engine.sources import MeanOver, Means
from assay.errors import OptionError, instead_of
from assay.methods.method import Method
from assay.methods.preparation import Prepared, prepared
from assay.model import Model
from assay.model.recording import Recording
from assay.sites import Component

Ablation = Literal["patch", "zero", "mean"]
"""What an absent edge carries: what its source writes on the corrupted prompt, nothing, or a mean."""


class Contrast:
    """Some rows of one batch: the clean run, and what is written in the counterfactual.

    Args:
        response: of clean rows, with the corrupted ones as source.
        means: gives what sources write on average, for mean ablation.
        work: keeps and tells what is done.
        name: of these rows, the same in every sitting.
        plain: their plain runs.
    """

    def __init__(
        self, response: Response, graph: Graph, ablation: Ablation, means: Means | None, work: Work, name: str,
        plain: PlainRuns,
    ) -> None:  # fmt: skip
        self.work, self.name, self.plain = work, name, plain
        self.response, self.graph, self.ablation, self.means = response, graph, ablation, means
        self.model, self.batch, self.metric = response.model, response.batch, response.metric
        self.start = start_of(response, ablation)
        self.base: Recording = response.base

    def piece(self, content: str, stage: str, compute: Callable[[], Values]) -> Values:
        """A piece of the work on these rows, from the run folder if it is there."""
        return self.work.piece(f"{self.name}, {content}", stage, self.response.cost, compute)

    def require_same(self) -> None:
        """See that what was recorded is what the model does by itself.

        Raises:
            InterventionError: it is not.
        """
        self.response.require_same_as(self.plain)

    @property
    def examples(self) -> np.ndarray:
        """(R,) which example each row belongs to."""
        return self.batch.examples.cpu().numpy()

    @cached_property
    def clean(self) -> Tensor:
        """(S, R, t, M)"""
        return written(self.model, self.base.site, self.start)

    @cached_property
    def counterfactual(self) -> Tensor:
        """(S, R, t, M)"""
        with torch.no_grad():
            if self.ablation == "zero":
                return torch.zeros_like(self.clean)
            if self.means is not None:
                return self._mean(self.means)
            return written(self.model, self.response.source, self.start)

    def _mean(self, means: Means) -> Tensor:
        def mean(site: str, layer: int) -> Tensor:
            return means(self.batch, self.base, site, layer).permute(2, 0, 1, 3).to(self.clean.dtype)

        table = torch.empty_like(self.clean)
        table[:1] = mean("residual-pre", 0)
        for layer in range(self.model.n_layers):
            heads, mlp = sources_of(self.model, layer)
            table[heads], table[mlp : mlp + 1] = mean("heads", layer), mean("mlps", layer)
        return table

    @cached_property
    def differences(self) -> Tensor:
        """(S, R, t, M) counterfactual less clean; exactly 0 where two prompts have not differed yet."""
        difference = self.counterfactual - self.clean
        if self.ablation == "patch":
            positions = torch.arange(self.start, self.batch.positions, device=difference.device)
            before = positions < self.batch.starts.unsqueeze(1)
            difference.masked_fill_(before[None, :, :, None], 0)
        return difference

    def stream(self, towards_clean: float) -> Tensor:
        """(R, t, M) the first residual stream, between the corrupted prompt's (0) and the clean one's (1)."""
        clean = self.base.residuals[0][:, self.start :]
        if towards_clean == 1:
            return clean
        corrupted = self.response.source("residual-pre", 0)[:, self.start :, 0]
        return torch.lerp(corrupted, clean, towards_clean)

    def neurons(self, layer: int) -> Tensor:
        """(R, t, F) counterfactual values of a layer's neurons, as its down-projection reads them."""
        if self.ablation == "patch":
            return self.response.source("neurons", layer)[:, self.start :, :, 0]
        clean = self.base.site("neurons", layer)
        if self.means is not None:
            clean = self.means(self.batch, self.base, "neurons", layer)
            return clean[..., 0]
        return torch.zeros_like(clean[..., 0])

    def gradients(self, rules: Rules = no_rules) -> EdgeGradients:
        response = self.response
        return EdgeGradients(
            self.model,
            self.batch,
            self.metric,
            self.base,
            self.start,
            response.cost,
            ungrouped=self.graph.ungrouped,
            rules=rules,
        )

    @cached_property
    def edge_patch(self) -> EdgePatch:
        response = self.response
        return EdgePatch(
            self.model, self.batch, self.metric, self.base, self.start, response.cost, response.memory,
            ungrouped=self.graph.ungrouped,
        )  # fmt: skip

    def runner(self) -> CircuitRunner:
        return self._runner

    @cached_property
    def _runner(self) -> CircuitRunner:
        return CircuitRunner(
            self.model, self.batch, self.metric, self.base, self.counterfactual, self.start, self.response.cost,
            streams=WithDifferences if self.ablation == "patch" else SumOfKept, ungrouped=self.graph.ungrouped,
        )  # fmt: skip


def start_of(response: Response, ablation: Ablation) -> int:
    """The first position that is run; a pair without a difference is run at its last."""
    return min(response.start if ablation == "patch" else 0, response.batch.positions - 1)


@dataclass(frozen=True)
class Study:
    """Prompts that a model was run on, clean and corrupted, for one graph."""

    prepared: Prepared
    graph: Graph
    baseline: Baseline
    measured: list[tuple[Batch, PlainRuns]]
    cost: CostMeter
    ablation: Ablation
    order: int
    """Of the derivatives that will be taken."""
    work: Work = field(default_factory=Work)
    given: dict[str, Any] = field(default_factory=dict)
    """What `studied` was called with, but for the model and who works."""
    portions: Portions = field(default_factory=Portions)

    @property
    def model(self) -> Model:
        return self.prepared.model

    @property
    def metric(self) -> Metric:
        return self.prepared.setting.metric

    @property
    def memory(self) -> int:
        return self.prepared.setting.memory

    @property
    def n(self) -> int:
        return len(self.prepared.pairs)

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch, _ in self.measured)

    @cached_property
    def blocks(self) -> list[tuple[int, slice]]:
        """Rows of each batch, as many at once as fit into memory."""
        found = []
        for number, (batch, _) in enumerate(self.measured):
            most = max(1, self.memory // self._row_bytes(batch))
            found += [(number, slice(first, min(first + most, batch.rows))) for first in range(0, batch.rows, most)]
        return found

    def name_of(self, block: int) -> str:
        """Of a block's rows, the same in every sitting."""
        number, rows = self.blocks[block]
        return f"{self.prepared.method.name} by {self.ablation}, rows {rows.start}-{rows.stop} of batch {number}"

    def contrast(self, block: int) -> Contrast:
        """The rows of a block."""
        number, rows = self.blocks[block]
        means = self._means if self.ablation == "mean" else None
        plain = self.measured[number][1].part(rows)
        return Contrast(self._response(block), self.graph, self.ablation, means, self.work, self.name_of(block), plain)

    def positions(self, block: int) -> int:
        """That are run of these rows."""
        response = self._response(block)
        return response.batch.positions - start_of(response, self.ablation)

    def _response(self, block: int) -> Response:
        number, rows = self.blocks[block]
        batch, recorded = self.measured[number][0], self.prepared.recorded
        if recorded and (rows.start, rows.stop) == (0, batch.rows):
            response = recorded[number]
            response.cost = self.cost
            return response
        return Response(self.model, batch.part(rows), self.metric, self._seen, memory=self.memory, cost=self.cost)

    def contrasts(self) -> Iterator[Contrast]:
        """Those of all blocks."""
        for block in range(len(self.blocks)):
            contrast = self.contrast(block)
            yield contrast
            contrast.require_same()

    @property
    def _seen(self) -> list[Component]:
        """What recordings must hold besides what they always do: one neuron stands for all."""
        return [component for component in self.prepared.setting.components[:1] if component.site == "neurons"]

    def _row_bytes(self, batch: Batch) -> int:
        """Of one row: tables of what is written, the graph of a gradient, and a stream for each reader of a layer."""
        model = self.model
        start = batch.start if self.ablation == "patch" else 0
        positions = max(1, batch.positions - start)
        readers = count_readers(model, ungrouped=self.graph.ungrouped) + 1
        tables = (5 * count_sources(model) + 8 * readers) * model.d_model * positions * max(4, model.dtype.itemsize)
        graph = graph_bytes(model, positions, batch.positions, order=max(1, self.order))
        if self.order > 1:  # the graph then goes through a stream for each reader
            graph += 24 * readers * model.d_model * positions * model.dtype.itemsize
        return tables + model.n_layers * graph

    @cached_property
    def _means(self) -> Means:
        setting = self.prepared.setting
        model = setting.model
        sites = ("heads", "mlps", *(component.site for component in self._seen))
        places = {(site, layer) for layer in range(model.n_layers) for site in sites}
        references = setting.rows if setting.reference is None else _encoded(self.prepared)
        return Means(
            model, references, places | {("residual-pre", 0)}, setting.mean, setting.rows, 16, self.cost,
            read=partial(_contributions, model),
        )  # fmt: skip


def _contributions(model: Model, recording: Recording, site: str, layer: int) -> Tensor:
    """(R, T, units, M) of what is written."""
    if site == "heads":
        with torch.no_grad():
            return head_contributions(model, layer, recording.heads[layer]).permute(1, 2, 0, 3)
    value = recording.site(site, layer)
    return value * model.residual_multiplier if site == "mlps" else value


def _encoded(prepared: Prepared) -> Any:
    from assay.data.encoding import encode

    setting = prepared.setting
    assert setting.reference is not None
    return encode(setting.model, setting.reference, setting.metric, setting.align)


@contextmanager
def studied(
    model: Model,
    pairs: AnyPairs,
    name: str,
    *,
    order: int,
    neurons: bool = False,
    ungrouped: bool = False,
    ablation: Ablation = "patch",
    mean: MeanOver | None = None,
    reference: AnyPairs | None = None,
    metric: str | Metric | None = None,
    memory: str = DEFAULT_MEMORY,
    align: Align = "reject",
    chat: bool = False,
    force: bool = False,
    work: Work | None = None,
) -> Iterator[Study]:
    """Prompts run clean and corrupted, with everything checked that `assay.measure` checks.

    Args:
        name: of what is done with them, for messages.
        order: of the derivatives that will be taken; 0: none.
        neurons: whether recordings must hold MLP neurons.
        work: keeps and tells what is done; see `assay.circuits.work`.

    Raises:
        OptionError: an ablation that does not exist; otherwise as `assay.measure`.
    """
    if ablation not in get_args(Ablation):
        raise OptionError(f"There is no ablation {ablation!r}. {instead_of(ablation, get_args(Ablation))}")
    method = described(name, order, ablation)
    given = {
        "pairs": pairs, "name": name, "order": order, "neurons": neurons, "ungrouped": ungrouped, "ablation": ablation,
        "mean": mean, "reference": reference, "metric": metric, "memory": memory, "align": align, "chat": chat,
        "force": force,
    }  # fmt: skip
    with prepared(
        method, model, pairs, sites="neurons" if neurons else "mlps", metric=metric, direction="noise", memory=memory,
        mean=mean, reference=reference, align=align, chat=chat,
    ) as settled:  # fmt: skip
        cost = CostMeter()
        baseline, measured = settled.measure_baseline(cost, by_start=True, force=force)
        work = work or Work()
        yield Study(
            settled, Graph.of(model, ungrouped=ungrouped), baseline, measured, cost, ablation, order, work, given
        )
        work.charge(cost.summary(settled.layer_tokens))


def described(name: str, order: int, ablation: Ablation) -> Method:
    """What is done with a graph, as `prepared` and what is refused beforehand need to know it."""
    return Method(
        name, "circuits", "", compute=_not_called, uses_gradients=order > 0, second_order=order > 1,
        takes_model_apart=True,
        uses_means=ablation == "mean", uses_reference=ablation == "mean",
    )  # fmt: skip


def _not_called(*_: Any) -> Tensor:
    raise AssertionError("circuits are not measured component by component")
