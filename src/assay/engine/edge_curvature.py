"""Second derivatives of the metric in what the destinations of a circuit read: products with their Hessian.

The model is run once with a stream of its own for every reader, and its gradient is kept with its graph, so that
products with any direction are one more backward pass each (compare `assay.engine.curvature`, where signs are drawn).

Axes: R rows, U readers of a layer, t positions from ``start`` on, M d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor

from assay.engine.destinations import ReadersTap, reading
from assay.engine.edge_gradients import EdgeGradients
from assay.engine.gradients import read_metric
from assay.model.recording import site_hook


class EdgeHessian:
    """The Hessian of each row's metric in all that the destinations read, at one run.

    Args:
        edges: the rows, and their readers.
        stream: (R, t, M) before the first layer.
    """

    def __init__(self, edges: EdgeGradients, stream: Tensor) -> None:
        self.edges, self.model = edges, edges.model
        self._streams: list[Tensor] = []
        """Per layer what its readers read (U, R, t, M), then what its MLP reads; last what the logits read."""
        with reading(self.model, edges.readers, edges.rows, gradients=True) as tap:
            hidden = self._forward(stream.detach().requires_grad_(True), tap)
            self._streams.append(hidden)
            objective = read_metric(self.model, hidden, edges.batch, edges.metric, start=edges.start).sum()
            self._gradients = torch.autograd.grad(objective, self._streams, create_graph=True)
        self._work = (edges.batch.rows, stream.shape[1], self.model.n_layers)
        edges.cost.forward(*self._work)
        edges.cost.backward(*self._work)

    @property
    def gradients(self) -> list[Tensor]:
        """Per layer (U + 1, R, t, M), last the logits' (1, R, t, M)."""
        return self._by_layer([gradient.detach() for gradient in self._gradients])

    def times(self, direction: Callable[[int], Tensor]) -> list[Tensor]:
        """The Hessian's product with a direction, as `gradients`.

        Args:
            direction: gives the (U + 1, R, t, M) of a layer, and the (1, R, t, M) of the logits.
        """
        parts = []
        for layer in range(self.model.n_layers):
            of_layer = direction(layer).to(self.model.dtype)
            parts += [of_layer[:-1], of_layer[-1] * self._mlp_factor]
        parts.append(direction(self.model.n_layers)[0].to(self.model.dtype))
        with torch.enable_grad():
            bent = [(g, part) for g, part in zip(self._gradients, parts, strict=True) if g.requires_grad]
            along = torch.stack([(gradient * part).sum() for gradient, part in bent]).sum()
            products = torch.autograd.grad(along, self._streams, retain_graph=True, allow_unused=True)
        self.edges.cost.forward(*self._work)  # tangents go up through the layers, and gradients back down
        self.edges.cost.backward(*self._work)
        return self._by_layer(
            [torch.zeros_like(at) if p is None else p for at, p in zip(self._streams, products, strict=True)]
        )

    @property
    def _mlp_factor(self) -> float:
        """An MLP's stream is moved by what attention adds, before a residual multiplier."""
        return 1.0 if self.model.is_parallel else 1.0 / self.model.residual_multiplier

    def _by_layer(self, found: list[Tensor]) -> list[Tensor]:
        pairs = zip(found[:-1:2], found[1:-1:2], strict=True)
        layers = [torch.cat([readers, mlp.unsqueeze(0) * self._mlp_factor]) for readers, mlp in pairs]
        return [*layers, found[-1].unsqueeze(0)]

    def _forward(self, hidden: Tensor, tap: ReadersTap) -> Tensor:
        model, rows = self.model, self.edges.rows
        for layer, readers in enumerate(self.edges.readers):
            inputs = hidden.expand(readers.count, *hidden.shape).clone()
            q, k, v = readers.read(inputs, rows)
            tap.given = readers.attended(tap, q, k, v, hidden, rows)
            read_by_mlp = hidden.clone()
            mlp_stream = [read_by_mlp]
            added: dict[str, Tensor] = {}

            def after_attention(
                value: Tensor, added: dict[str, Tensor] = added, mlp_stream: list[Tensor] = mlp_stream
            ) -> Tensor:
                added["attention"] = value
                if not model.is_parallel:
                    mlp_stream[0] = value = value.clone()
                return value

            def after_mlp(value: Tensor, added: dict[str, Tensor] = added) -> Tensor:
                added["mlps"] = value
                return value

            with ExitStack() as hooks:
                found = model.layers[layer]
                hooks.enter_context(site_hook(found, "attention", hidden.shape[:2], after_attention))
                hooks.enter_context(site_hook(found, "mlps", hidden.shape[:2], after_mlp))
                readers.run(read_by_mlp, rows)
            self._streams += [inputs, mlp_stream[0]]
            hidden = hidden + (added["attention"] + added["mlps"]) * model.residual_multiplier
        return hidden
