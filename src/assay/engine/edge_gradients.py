"""The gradient of the metric at what every destination of a circuit reads, destination by destination.

One backward pass gives the gradient where queries, keys and values enter attention and where an MLP's stream branches
off. From there each head's gradient is taken back through its slice of the projection and the layer's norm, all heads
of a layer together: the transpose of what `assay.engine.destinations.Readers` does forward. Only one layer's gradients,
one stream for each reader, are held at a time.

Axes: R rows, U readers of a layer, t positions from ``start`` on, M d_model, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from assay.data.metrics import Metric
from assay.engine.batches import Batch
from assay.engine.cost import CostMeter
from assay.engine.destinations import Readers, ReadersTap, reading
from assay.engine.gradients import answer_logits, objective_of, unscaled
from assay.errors import InterventionError
from assay.model import Model
from assay.model.recording import Recording, site_hook

Change = Callable[[str, int, Tensor], Tensor]
"""Kind (``attention`` or ``mlps``), layer and what it adds, (R, t, M), to what it shall add instead."""

Receive = Callable[[int, Tensor], object]
Rules = Callable[[Model], AbstractContextManager[object]]
"""Makes a context in which a model's backward pass follows other rules."""


def no_rules(_: Model) -> AbstractContextManager[object]:
    return nullcontext()


def as_it_is(site: str, layer: int, value: Tensor) -> Tensor:
    return value


@dataclass
class _Branches:
    """Where streams branch off into readers in one forward pass, with its graph."""

    streams: list[Tensor] = field(default_factory=list)
    """Before each layer, and after the last."""
    attention: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """What each attention function got, (R, units, t, D) each; keys and values of every query head if ungrouped."""
    mlps: list[Tensor] = field(default_factory=list)
    """(R, t, M): the tensor through which each MLP's stream reaches the MLP, and nothing else."""


class EdgeGradients:
    """Gradients at the destinations of the R rows of one batch.

    Args:
        base: recording that gives layer arguments, and keys and values before ``start``.
        rules: in which gradients are taken, forward and back.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        metric: Metric,
        base: Recording,
        start: int,
        cost: CostMeter,
        *,
        ungrouped: bool = False,
        rules: Rules = no_rules,
    ) -> None:
        self.model, self.batch, self.metric, self.cost, self.start = model, batch, metric, cost, start
        self.readers = [Readers(model, layer, base, start, ungrouped=ungrouped) for layer in range(model.n_layers)]
        self.rows = torch.arange(batch.rows, device=model.device)
        self.rules = rules

    def of_run(self, receive: Receive, stream: Tensor, change: Change = as_it_is, first_layer: int = 0) -> None:
        """Run from a residual stream (R, t, M) before ``first_layer`` on, and back.

        Args:
            receive: gets a layer and the gradients (U + 1, R, t, M) at what its readers and its MLP read; last, the
                number of layers and the gradient (1, R, t, M) at what the logits read. In float32 or better.
            change: what attention layers and MLPs add instead, where they are interpolated. What the metric then does
                not depend on any more has a gradient of 0.
        """
        with self.rules(self.model), reading(self.model, self.readers, self.rows, gradients=True) as tap:
            branches = self._forward(stream.detach().requires_grad_(True), change, first_layer, tap)
            at_attention, at_mlps, at_end, scale = self._backward(branches, may_be_cut=change is not as_it_is)
            tap.given = None
            for number, layer in enumerate(range(first_layer, self.model.n_layers)):
                of_readers = self._through_projections(
                    layer, branches.streams[number].detach(), at_attention[number], tap
                )
                found = torch.cat([of_readers, at_mlps[number].unsqueeze(0)])
                receive(layer, torch.stack([unscaled(part, scale) for part in found]))
            receive(self.model.n_layers, unscaled(at_end, scale).unsqueeze(0))

    def _forward(self, hidden: Tensor, change: Change, first_layer: int, tap: ReadersTap) -> _Branches:
        branches, multiplier = _Branches(), self.model.residual_multiplier
        for layer in range(first_layer, self.model.n_layers):
            readers = self.readers[layer]
            branches.streams.append(hidden)
            added: dict[str, Tensor] = {}
            tap.given = self._own_attention_inputs(readers, hidden, tap)
            branch = hidden.view_as(hidden)

            def after_attention(value: Tensor, layer: int = layer, added: dict[str, Tensor] = added) -> Tensor:
                value = added["attention"] = change("attention", layer, value)
                if not self.model.is_parallel:
                    branches.mlps.append(value.view_as(value))
                    return branches.mlps[-1]
                return value

            def after_mlp(value: Tensor, layer: int = layer, added: dict[str, Tensor] = added) -> Tensor:
                added["mlps"] = change("mlps", layer, value)
                return value

            with ExitStack() as hooks:
                shape = hidden.shape[:2]
                found = self.model.layers[layer]
                hooks.enter_context(site_hook(found, "attention", shape, after_attention))
                hooks.enter_context(site_hook(found, "mlps", shape, after_mlp))
                readers.run(branch, self.rows)
            if self.model.is_parallel:
                branches.mlps.append(branch)
            assert tap.seen is not None
            branches.attention.append(tap.seen)
            hidden = hidden + (added["attention"] + added["mlps"]) * multiplier
        branches.streams.append(hidden)
        self.cost.forward(self.batch.rows, hidden.shape[1], self.model.n_layers - first_layer)
        return branches

    def _own_attention_inputs(
        self, readers: Readers, hidden: Tensor, tap: ReadersTap
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Queries, keys and values apart from the layer's own run, where their gradients must not mix with others'."""
        if not self.model.is_parallel and readers.groups == 1:
            return None
        with tap.until_attention():
            q, k, v = readers.until_reached(hidden, self.rows)
        return q, k.repeat_interleave(readers.groups, 1), v.repeat_interleave(readers.groups, 1)

    def _backward(
        self, branches: _Branches, *, may_be_cut: bool
    ) -> tuple[list[tuple[Tensor, ...]], list[Tensor], Tensor, Tensor | None]:
        end = branches.streams[-1]
        targets = self.batch.targets
        logits = answer_logits(self.model, end, targets, self.metric, self.start)
        _, objective, scale = objective_of(self.model, self.metric, logits, targets)
        of_attention = [part for parts in branches.attention for part in parts]
        wanted = [*of_attention, *branches.mlps, end]
        gradients = torch.autograd.grad(objective, wanted, allow_unused=True)
        self.cost.backward(self.batch.rows, end.shape[1], len(branches.mlps))
        if not may_be_cut and any(gradient is None for gradient in gradients):
            raise InterventionError("The metric does not depend on something that the circuit reads: no gradient.")
        gradients = tuple(
            torch.zeros_like(at) if gradient is None else gradient
            for at, gradient in zip(wanted, gradients, strict=True)
        )
        count = len(of_attention)
        at_attention = [tuple(gradients[i : i + 3]) for i in range(0, count, 3)]
        factor = 1.0 if self.model.is_parallel else 1.0 / self.model.residual_multiplier
        return at_attention, [part * factor for part in gradients[count:-1]], gradients[-1], scale

    def _through_projections(
        self, layer: int, stream: Tensor, gradients: tuple[Tensor, ...], tap: ReadersTap
    ) -> Tensor:
        """(U, R, t, M) from the gradients where attention gets queries, keys and values."""
        readers = self.readers[layer]
        inputs = stream.expand(readers.count, *stream.shape).contiguous().requires_grad_(True)
        q, k, v = readers.read(inputs, self.rows)
        attended = readers.attended(tap, q, k, v, stream, self.rows)
        (found,) = torch.autograd.grad(attended, inputs, gradients)
        return found
