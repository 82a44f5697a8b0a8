"""The exact effect of single edges: one reader sees what one source writes change, and all after it is computed anew.

Patched sequences, *lanes*, begin at the reader's layer and at the first position that differs, and run side by side;
before that nothing changes, so it comes from the recording (compare `assay.engine.replay`, `assay.engine.paths`).

Axes: E edges into one destination, R rows, N = E R lanes (edge by edge), t positions from ``start`` on, M d_model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.data.metrics import Metric
from assay.engine.batches import Batch, lane_bytes
from assay.engine.cost import CostMeter
from assay.engine.destinations import Readers, ReadersTap, reading
from assay.engine.gradients import read_metric
from assay.engine.memory import Portions
from assay.errors import InterventionError
from assay.model import Model
from assay.model.recording import Recording, site_hook


class EdgePatch:
    """Patches edges on the R rows of one batch.

    Args:
        base: recording of the clean prompts.
        memory: bytes that lanes may take at once.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        metric: Metric,
        base: Recording,
        start: int,
        cost: CostMeter,
        memory: int,
        *,
        ungrouped: bool = False,
    ) -> None:
        self.model, self.batch, self.metric, self.base, self.start, self.cost = model, batch, metric, base, start, cost
        self.readers = [Readers(model, layer, base, start, ungrouped=ungrouped) for layer in range(model.n_layers)]
        answers, whole = batch.targets.positions.shape[1], metric.reads == "vocabulary"
        each = lane_bytes(model, batch.positions - start, batch.positions, answers, whole)
        self.edges_at_once = max(1, memory // (each * batch.rows))
        self._portions = Portions()

    def of_readers(self, layer: int, changes: Tensor) -> Tensor:
        """(U, E, R) metric with each reader of a layer, in turn, seeing each change (E, R, t, M)."""
        readers = self.readers[layer]
        rows = torch.arange(self.batch.rows, device=self.model.device)
        with torch.no_grad(), reading(self.model, self.readers, rows):
            normed = readers.normed(self._stream(layer, rows), rows)
            base = readers.project_all(normed.expand(readers.count, *normed.shape))
        sizes = [self.model.n_heads, readers.kv_units, readers.kv_units]
        units = [(kind, unit) for kind, size in zip("qkv", sizes, strict=True) for unit in range(size)]
        return torch.stack([self._over(changes, self._reader(layer, base, *unit)) for unit in units])

    def of_mlp(self, layer: int, changes: Tensor) -> Tensor:
        """(E, R) metric with a layer's MLP seeing each change (E, R, t, M)."""
        return self._over(changes, lambda tap, rows, change: self._mlp(layer, tap, rows, change))

    def of_logits(self, changes: Tensor) -> Tensor:
        """(E, R) metric with the logits seeing each change (E, R, t, M)."""
        last = self.model.n_layers
        return self._over(changes, lambda tap, rows, change: (last, self._stream(last, rows) + change))

    def _stream(self, layer: int, rows: Tensor) -> Tensor:
        return self.base.residuals[layer][:, self.start :][rows]

    @torch.no_grad()
    def _over(self, changes: Tensor, enter: Callable[[ReadersTap, Tensor, Tensor], tuple[int, Tensor]]) -> Tensor:
        """(E, R); ``enter`` gives the layer from which lanes go on, and their streams (N, t, M) before it."""
        count, rows_in_batch = changes.shape[:2]
        values = torch.empty(count, rows_in_batch, dtype=torch.float64, device=changes.device)

        def run(part: slice) -> None:
            change = changes[part].flatten(0, 1).to(self.base.residuals[0].dtype)
            rows = torch.arange(rows_in_batch, device=changes.device).repeat(len(changes[part]))
            with reading(self.model, self.readers, rows) as tap:
                first, hidden = enter(tap, rows, change)
                tap.given = None
                for layer in range(first, self.model.n_layers):
                    hidden = self.readers[layer].run(hidden, rows)
            self.cost.forward(len(rows), hidden.shape[1], self.model.n_layers - first)
            self.cost.interventions += len(rows)
            found = read_metric(self.model, hidden, self.batch, self.metric, rows, self.start)
            values[part] = found.view(-1, rows_in_batch).double()

        self._portions.run(count, run, lambda _: self.edges_at_once)
        return values

    def _reader(
        self, layer: int, base: tuple[Tensor, Tensor, Tensor], kind: str, unit: int
    ) -> Callable[[ReadersTap, Tensor, Tensor], tuple[int, Tensor]]:
        readers = self.readers[layer]

        def enter(tap: ReadersTap, rows: Tensor, change: Tensor) -> tuple[int, Tensor]:
            stream = self._stream(layer, rows)
            q, k, v = (part[rows] for part in base)
            changed = {"q": q, "k": k, "v": v}[kind]
            changed[:, :, unit] = readers.project(readers.normed(stream + change, rows), kind, unit)
            if readers.groups > 1:
                tap.given = readers.attended(tap, q, k, v, stream, rows)
                k, v = k[:, :, :: readers.groups], v[:, :, :: readers.groups]
            with readers.projecting(q, k, v):
                after = readers.run(stream, rows)
            self.cost.forward(*stream.shape[:2])
            return layer + 1, after

        return enter

    def _mlp(self, layer: int, tap: ReadersTap, rows: Tensor, change: Tensor) -> tuple[int, Tensor]:
        stream, added = self._stream(layer, rows), []
        found, multiplier = self.model.layers[layer], self.model.residual_multiplier
        attention = self.base.attentions[layer][:, self.start :][rows]
        seen = attention if self.model.is_parallel else attention + change / multiplier
        read = stream + change if self.model.is_parallel else stream
        with (
            site_hook(found, "attention", stream.shape[:2], lambda _: seen),
            site_hook(found, "mlps", stream.shape[:2], lambda value: added.append(value) or value),  # type: ignore[func-returns-value]
        ):
            self.readers[layer].run(read, rows)
        self.cost.forward(*stream.shape[:2])
        if len(added) != 1:
            raise InterventionError(f"The MLP of layer {layer} ran {len(added)} times, not once.")
        return layer + 1, stream + (attention + added[0]) * multiplier
