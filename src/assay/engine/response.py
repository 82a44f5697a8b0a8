"""The one idea: patch a component with strength a and watch the metric, g(a).

activation := base + a * (source - base), for a in [0, 1]. The causal effect is g(1) - g(0). Every method
is a way to know or guess that number from `Response.value` and `Response.slope`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from assay.data.metrics import Metric
from assay.engine.batches import Batch, lane_bytes
from assay.engine.cost import CostMeter
from assay.engine.gradients import read_metric, site_gradients
from assay.engine.replay import Lane, Replay
from assay.errors import InterventionError, OptionError
from assay.model import Model
from assay.model.checks import LIMITS, relative_difference
from assay.model.recording import Recording, record
from assay.sites import Component

Source = Callable[[Recording], Recording]
"""Makes, from the base recording of a batch, what patched components are set to (``heads`` and ``mlps``)."""


class Response:
    """g(a) and its derivatives for C components and the R rows of one batch.

    Args:
        components: what to patch, one at a time.
        source: where patched values come from; the batch's source prompts if None.
        start: first position that a patch may change. By default the batch's first difference where the
            source prompts serve, else 0.
        skip: leave out what is known to change nothing: positions before ``start``, and components whose
            source equals their base. Off, everything is run (to test that nothing is lost).
        memory: bytes that patched sequences may take at once.
        advance: called with the number of (component, row) pairs done.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        metric: Metric,
        components: Sequence[Component],
        *,
        source: Source | None = None,
        skip: bool = True,
        memory: int = 2 << 30,
        cost: CostMeter | None = None,
        advance: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.model = model
        self.batch = batch
        self.metric = metric
        self.components = list(components)
        self.skip = skip
        self.memory = memory
        self.cost = cost or CostMeter()
        self.advance = advance
        self._make_source = source
        # A hook of the user's may treat positions by their number, so they must all be there.
        cut = skip and source is None and not model.has_foreign_hooks
        self.start = batch.start if cut else 0
        self._base: Recording | None = None
        self._slopes: Tensor | None = None

    # The two runs

    @property
    def base(self) -> Recording:
        if self._base is None:
            self._base = record(self.model, self.batch.base)
            self.cost.forward(self.batch.rows, self.batch.positions, self.model.n_layers)
        return self._base

    @cached_property
    def source(self) -> Recording:
        if self._make_source is not None:
            return self._make_source(self.base)
        recording = record(self.model, self.batch.source)
        self.cost.forward(self.batch.rows, self.batch.positions, self.model.n_layers)
        return recording

    @cached_property
    def base_values(self) -> Tensor:
        """(R,) metric of the unpatched rows, g(0)."""
        with torch.no_grad():
            return read_metric(self.model, self.base.residuals[-1], self.batch, self.metric)

    @cached_property
    def _moves(self) -> Tensor:
        """(C, R) bool: whether the patch changes anything at all."""
        moves = torch.zeros(len(self.components), self.batch.rows, dtype=torch.bool)
        if self.batch.start == self.batch.positions and self._make_source is None:
            return moves
        for i, component in enumerate(self.components):
            moves[i] = (self._delta(component) != 0).flatten(1).any(1)
        return moves

    def _delta(self, component: Component) -> Tensor:
        """(R, T, D) or (R, T, M): source minus base; exactly 0 before the first difference."""
        site = component.site
        source, base = (getattr(run, site)[component.layer] for run in (self.source, self.base))
        delta: Tensor
        delta = source - base if component.unit is None else source[:, :, component.unit] - base[:, :, component.unit]
        if self._make_source is None:
            delta = delta.clone()
            delta[:, : self.batch.start] = 0
        return delta

    # g and its derivatives

    def value(self, a: float) -> Tensor:
        """(C, R) g(a): the metric with each component alone patched at strength ``a``."""
        with torch.no_grad():
            strengths = torch.full((len(self.components), self.batch.rows), float(a), dtype=self.base_values.dtype)
            return self._value(strengths.to(self.model.device))

    def slope(self, a: float) -> Tensor:
        """(C, R) g'(a). At a = 0 one backward pass serves all components; elsewhere each pays its own.

        Raises:
            OptionError: the metric has no gradient.
        """
        self._require_differentiable()
        if a == 0:
            return self._slope_at_base()
        strengths = torch.full(
            (len(self.components), self.batch.rows), float(a), dtype=self.base_values.dtype, device=self.model.device
        )
        return self._slope(strengths)

    def _value(self, strengths: Tensor) -> Tensor:
        values = self.base_values.expand(len(self.components), -1).clone()
        for lanes, index in self._chunks():
            values[index] = self._run(lanes, strengths[index])
        return values

    def _slope(self, strengths: Tensor) -> Tensor:
        slopes = torch.zeros_like(strengths)
        for lanes, index in self._chunks():
            strength = strengths[index].requires_grad_(True)
            (gradient,) = torch.autograd.grad(self._run(lanes, strength).sum(), strength)
            for layer in range(lanes[0].layer, self.model.n_layers):
                begun = sum(lane.layer <= layer for lane in lanes)
                self.cost.backward(begun, self.batch.positions - self.start)
            slopes[index] = gradient
        return slopes

    def _slope_at_base(self) -> Tensor:
        wanted = {(component.site, component.layer) for component in self.components}
        self._base, gradients, values = site_gradients(self.model, self.batch, self.metric, wanted, self.cost)
        self.__dict__["base_values"] = values
        slopes = torch.zeros(len(self.components), self.batch.rows, dtype=torch.float64, device=self.model.device)
        for i, component in enumerate(self.components):
            gradient = getattr(gradients, component.site)[component.layer]
            gradient = gradient if component.unit is None else gradient[:, :, component.unit]
            slopes[i] = (gradient * self._delta(component)).double().flatten(1).sum(1)
        self.advance(slopes.numel())
        return slopes

    # Lanes

    def _chunks(self) -> list[tuple[list[Lane], tuple[Tensor, Tensor]]]:
        """Lanes that fit in memory together, layer by layer, with their (component, row) indices."""
        self._require_faithful_replay()
        moves = self._moves if self.skip else torch.ones_like(self._moves)
        self.advance(int((~moves).sum()))
        order = sorted(range(len(self.components)), key=lambda i: self.components[i].layer)
        pairs = [(i, row) for i in order for row in moves[i].nonzero().flatten().tolist()]
        size = self._lanes_at_once()
        chunks = []
        for first in range(0, len(pairs), size):
            part = pairs[first : first + size]
            places, rows = torch.tensor(part, device=self.model.device).unbind(1)
            chunks.append(([Lane(row, self.components[i]) for i, row in part], (places, rows)))
        return chunks

    def _run(self, lanes: list[Lane], strength: Tensor) -> Tensor:
        residual = Replay(self.model, self.base, self.source, self.start, self.cost).run(lanes, strength)
        rows = torch.tensor([lane.row for lane in lanes], device=self.model.device)
        self.cost.interventions += len(lanes)
        self.advance(len(lanes))
        return read_metric(self.model, residual, self.batch, self.metric, rows, self.start)

    def _lanes_at_once(self) -> int:
        answers = self.batch.targets.positions.shape[1]
        each = lane_bytes(
            self.model,
            self.batch.positions - self.start,
            self.batch.positions,
            answers,
            self.metric.reads == "vocabulary",
        )
        return max(1, self.memory // each)

    @torch.no_grad()
    def _require_faithful_replay(self) -> None:
        """Replay the rows unpatched: they must end where the recording ended."""
        rows = self.batch.rows
        if self.start >= self.batch.positions:
            return
        lanes = [Lane(row, None) for row in range(rows)]
        replay = Replay(self.model, self.base, self.source, self.start, self.cost)
        ends = replay.run(lanes, torch.zeros(rows, device=self.model.device))
        off = relative_difference(self.base.residuals[-1][:, self.start :], ends)
        limit = LIMITS[self.model.dtype]
        if not off <= limit:
            raise InterventionError(
                f"Replaying {self.model.name} from position {self.start} does not reproduce its own run: relative "
                f"deviation {off:.3g}, limit {limit:.0e}. A hook or a layer with state may be the cause."
            )

    def _require_differentiable(self) -> None:
        if not self.metric.differentiable:
            raise OptionError(
                f"{self.metric.name} has no gradient. Use it with activation-patching or an ablation, or choose "
                "another metric."
            )
