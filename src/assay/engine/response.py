"""The one idea: patch a component with strength a and watch the metric, g(a).

activation := base + a * (source - base), for a in [0, 1]. The causal effect is g(1) - g(0). Every method
is a way to know or guess that number from `Response.value`, `.slope` and `.curvature`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from functools import cached_property, partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from assay.data.metrics import METRICS, Metric, Targets
from assay.engine.baseline import PlainRuns
from assay.engine.batches import Batch, lane_bytes
from assay.engine.cost import CostMeter
from assay.engine.gradients import Place, answer_logits, objective_of, read_metric, stream_gradients, unscaled
from assay.engine.graph import graph_bytes, require_precision
from assay.engine.memory import Portions
from assay.engine.proofs import require_equal_beginnings, require_same_end, require_same_logits
from assay.engine.replay import Activations, Lane, Replay
from assay.engine.savings import EVERY_SAVING, Savings
from assay.errors import OptionError
from assay.model import Model
from assay.model.recording import Recording, record
from assay.model.suffix import joined, record_suffix
from assay.sites import KINDS, Component, Position

Source = Callable[[Batch, Recording, str, int], Tensor]
"""What a site of a kind and layer is set to, (R, T, U, D), given a batch and its base recording."""


class Response:
    """g(a) and its derivatives for C components and the R rows of one batch.

    Args:
        components: what to patch, one at a time.
        source: where patched values come from; the batch's source prompts if None.
        savings: what is left out because it changes nothing.
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
        savings: Savings = EVERY_SAVING,
        memory: int = 2 << 30,
        cost: CostMeter | None = None,
        advance: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.model = model
        self.batch = batch
        self.metric = metric
        self.components = list(components)
        self.savings = savings
        self.memory = memory
        self.cost = cost or CostMeter()
        self.advance = advance
        self._make_source = source
        self._keep = {c.site for c in components if KINDS[c.site].of_mlp}
        # Causal attention gives both prompts the same activations up to their first difference. A hook of the
        # user's may not, or treat positions by their number; so do some layers. Then all positions are run.
        self._equal_beginnings = source is None and not model.has_foreign_hooks
        self._equal_until = batch.start if self._equal_beginnings else 0
        by_number = model.family.counts_positions or model.has_foreign_hooks
        self.start = self._equal_until if savings.positions and not by_number else 0
        reads_from = int(batch.targets.positions.min())
        self.end_start = reads_from if savings.last_layer and not by_number else self.start
        """Where the residual stream after the last layer is wanted from."""
        self._base: Recording | None = None
        self.portions = Portions()
        self._replay_is_faithful = False

    def of(self, components: Sequence[Component]) -> Response:
        """The same rows for some of the components: recordings, and what was proved of them, are shared.

        Whatever was recorded or replayed before, here or for other components, the new response gives the same bits.
        """
        self._require_faithful_replay()
        _ = self.source, self.base_values
        part = copy(self)
        part.components = list(components)
        part.__dict__.pop("moves", None)
        return part

    # The two runs

    @property
    def base(self) -> Recording:
        if self._base is None:
            self._base = self._record(self.batch.base)
        return self._base

    @cached_property
    def source(self) -> Activations:
        """A site's source value (R, T, U, D) by kind and layer."""
        if self._make_source is not None:
            return partial(self._make_source, self.batch, self.base)
        return self._source_recording.site

    @cached_property
    def _source_recording(self) -> Recording:
        if 0 < self.start < self.batch.positions:
            return joined(self.base, self._record(self.batch.source, self.start), self.start)
        recording = self._record(self.batch.source)
        require_equal_beginnings(self.model, self.base, recording, self._equal_until)
        return recording

    def _record(self, ids: Tensor, start: int = 0, *, gradients: bool = False, also: Collection[str] = ()) -> Recording:
        keep = {*self._keep, *also}
        if start > 0:
            recording = record_suffix(self.model, ids, self.base, start, gradients=gradients, keep=keep)
        else:
            recording = record(self.model, ids, gradients=gradients, keep=keep)
        self.cost.forward(self.batch.rows, self.batch.positions - start, self.model.n_layers)
        return recording

    def record_graph(self, also: Collection[str] = ()) -> tuple[Recording, int]:
        """The base run with its graph, and the position from which on it was run: nothing before differs.

        Args:
            also: kinds of sites to keep besides those of the components.
        """
        start = self.start % self.batch.positions
        recording = self._record(self.batch.base, start, gradients=True, also=also)
        if start == 0:
            self._base = self._base or recording.detached()
        return recording, start

    def part(self, rows: slice) -> Response:
        """The same components for some of the rows."""
        return Response(
            self.model, self.batch.part(rows), self.metric, self.components, source=self._make_source,
            savings=self.savings, memory=self.memory, cost=self.cost, advance=self.advance,
        )  # fmt: skip

    def reversed(self) -> Response:
        """The same components and recordings, with base and source exchanged.

        Raises:
            OptionError: the source is not a run of the model.
        """
        if self._make_source is not None:
            raise OptionError("Only a source that is a run of the model can be patched the other way.")
        other = Response(
            self.model, self.batch.reversed, self.metric, self.components,
            savings=self.savings, memory=self.memory, cost=self.cost, advance=lambda _: None,
        )  # fmt: skip
        other._base, other.__dict__["_source_recording"] = self._source_recording, self.base
        return other

    @cached_property
    def base_values(self) -> Tensor:
        """(R,) metric of the unpatched rows, g(0)."""
        with torch.no_grad():
            return read_metric(self.model, self.base.residuals[-1], self.batch, self.metric)

    def mask(self, component: Component) -> Tensor | None:
        """(R, T) bool: the positions at which the component is patched; None for all."""
        return self.batch.mask(component.position)

    def deltas(self) -> Iterator[tuple[str, int, Tensor, list[int]]]:
        """Kind, layer, delta (R, T, U, D) and component numbers, site by site."""
        for (site, layer), numbers in self._numbers().items():
            yield site, layer, self.delta(site, layer), numbers

    def _numbers(self) -> dict[Place, list[int]]:
        """The numbers of the components of each site and layer."""
        groups: defaultdict[Place, list[int]] = defaultdict(list)
        for i, component in enumerate(self.components):
            groups[component.site, component.layer].append(i)
        return groups

    def delta(self, site: str, layer: int) -> Tensor:
        """Source - base, (R, T, U, D), on the model's device."""
        base = self.base.site(site, layer)
        delta = (self.source(site, layer).to(base.device) - base).to(self.model.device)
        if self._equal_beginnings:
            # Exactly, not up to rounding: causal attention cannot tell the prompts apart here.
            before = torch.arange(delta.shape[1], device=delta.device) < self.batch.starts.unsqueeze(1)
            delta.masked_fill_(before[:, :, None, None], 0)
        return delta

    def reduce(self, per_position: Tensor, numbers: list[int]) -> Tensor:
        """(R, T, U) summed over each component's positions: (C', R)."""
        at: defaultdict[Position, list[int]] = defaultdict(list)
        for place, number in enumerate(numbers):
            at[self.components[number].position].append(place)
        found = per_position.new_empty(len(numbers), len(per_position))
        for position, places in at.items():
            mask = self.batch.mask(position)
            units = [self.components[numbers[place]].unit or 0 for place in places]
            summed = per_position.sum(1) if mask is None else (per_position * mask.unsqueeze(2)).sum(1)
            found[places] = summed[:, units].T
        return found

    @cached_property
    def moves(self) -> Tensor:
        """(C, R) bool: whether the patch changes anything at all."""
        moves = torch.zeros(len(self.components), self.batch.rows, dtype=torch.bool, device=self.model.device)
        if self._equal_until == self.batch.positions:
            return moves
        for _, _, delta, numbers in self.deltas():
            moves[numbers] = self.reduce((delta != 0).any(3).long(), numbers) > 0
        return moves

    # g and its derivatives

    def value(self, a: float) -> Tensor:
        """(C, R) g(a): the metric with each component alone patched at strength ``a``."""
        with torch.no_grad():
            strengths = self._strengths(a)
            values = self.base_values.expand(len(self.components), -1).clone()

            def of_lanes(lanes: list[Lane], index: tuple[Tensor, Tensor]) -> None:
                values[index] = self._run(lanes, strengths[index])

            self._over_lanes(of_lanes)
            return values

    def slope(self, a: float) -> Tensor:
        """(C, R) g'(a). At a = 0 one backward pass serves all components; elsewhere each pays its own.

        Raises:
            OptionError: the metric has no gradient.
        """
        self.require_differentiable()
        if a == 0:
            return self._slope_at_base()
        strengths = self._strengths(a)
        slopes = torch.zeros_like(strengths)

        def of_lanes(lanes: list[Lane], index: tuple[Tensor, Tensor]) -> None:
            strength = strengths[index].requires_grad_(True)
            with torch.enable_grad():
                _, objective, scale = objective_of(self.model, self.metric, *self._logits(lanes, strength))
            slopes[index] = unscaled(torch.autograd.grad(objective, strength)[0], scale)
            self._charge_backward(lanes)

        self._over_lanes(of_lanes, order=1)
        return slopes

    def curvature(self, a: float) -> Tensor:
        """(C, R) g''(a): delta' H delta along each component's own patch, at the cost of `slope_and_curvature`."""
        return self.slope_and_curvature(a)[1]

    def slope_and_curvature(self, a: float) -> tuple[Tensor, Tensor]:
        """(C, R) g'(a) and (C, R) g''(a), from one graph: a gradient, and the gradient of that gradient.

        Lanes do not touch each other, so the gradient of the summed slopes is each lane's own second derivative.

        Raises:
            OptionError: the metric has no gradient, or the model's precision is too low.
        """
        self.require_differentiable()
        require_precision(self.model)
        strengths = self._strengths(a)
        slopes, curvatures = torch.zeros_like(strengths), torch.zeros_like(strengths)

        def of_lanes(lanes: list[Lane], index: tuple[Tensor, Tensor]) -> None:
            strength = strengths[index].requires_grad_(True)
            with torch.enable_grad():
                total = self._run(lanes, strength).sum()
                (slope,) = torch.autograd.grad(total, strength, create_graph=True)
            self._charge_backward(lanes)
            slopes[index] = slope.detach()
            if slope.requires_grad:
                (curvature,) = torch.autograd.grad(slope.sum(), strength, allow_unused=True)
                curvatures[index] = 0.0 if curvature is None else curvature  # None: a straight line
                self._charge_backward(lanes, with_tangents=True)

        self._over_lanes(of_lanes, order=2)
        return slopes, curvatures

    def _charge_backward(self, lanes: list[Lane], with_tangents: bool = False) -> None:
        """A pass down the layers; for a second derivative, tangents go up through them first."""
        for layer in range(lanes[0].entry, self.model.n_layers):
            begun = sum(lane.entry <= layer for lane in lanes)
            self.cost.backward(begun, self.batch.positions - self.start)
            if with_tangents:
                self.cost.forward(begun, self.batch.positions - self.start)

    def _slope_at_base(self) -> Tensor:
        """The gradients of each site meet their deltas as they arrive; nothing of them is kept."""
        recording, start = self.record_graph()
        slopes = torch.zeros(len(self.components), self.batch.rows, dtype=torch.float64, device=self.model.device)
        numbers = self._numbers()

        def meet(place: Place, gradient: Tensor) -> None:
            delta = self.delta(*place)[:, start:]
            products = (gradient.to(delta.device).double() * delta.double()).sum(3)
            slopes[numbers[place]] = self.reduce(F.pad(products, (0, 0, start, 0)), numbers[place])

        self.source(*next(iter(numbers)))  # may run the model, which must not happen within a backward pass
        values = stream_gradients(self.model, self.batch, self.metric, recording, start, numbers, meet, self.cost)
        self.__dict__.setdefault("base_values", values)
        self.advance(slopes.numel())
        return slopes

    def _strengths(self, a: float) -> Tensor:
        shape = (len(self.components), self.batch.rows)
        return torch.full(shape, float(a), dtype=self.base_values.dtype, device=self.model.device)

    # Lanes

    def _over_lanes(self, job: Callable[[list[Lane], tuple[Tensor, Tensor]], None], order: int = 0) -> None:
        """Call ``job`` with lanes that fit in memory together, layer by layer, and their (component, row) indices.

        Args:
            order: of the derivative that will be taken (0: none).
        """
        self._require_faithful_replay()
        moves = self.moves if self.savings.zeros else torch.ones_like(self.moves)
        self.advance(int((~moves).sum()))
        by_entry = sorted(range(len(self.components)), key=lambda i: self.components[i].entry)
        pairs = [(i, row) for i in by_entry for row in moves[i].nonzero().flatten().tolist()]

        def run(part: slice) -> None:
            places, rows = torch.tensor(pairs[part], device=self.model.device).unbind(1)
            job([Lane(row, self.components[i]) for i, row in pairs[part]], (places, rows))
            self.cost.interventions += len(places)
            self.advance(len(places))

        self.portions.run(
            len(pairs), run, lambda first: self.lanes_at_once(order, self.components[pairs[first][0]].entry)
        )

    def _run(self, lanes: list[Lane], strength: Tensor) -> Tensor:
        return self.metric.values(*self._logits(lanes, strength))

    def _logits(self, lanes: list[Lane], strength: Tensor) -> tuple[Tensor, Targets]:
        """What the metric reads of the lanes, and what it is told of them."""
        replay = self._replay()
        residual = replay.run(lanes, strength)
        targets = self.batch.targets.rows(torch.tensor([lane.row for lane in lanes], device=self.model.device))
        only_read = self.savings.unembedding
        return answer_logits(self.model, residual, targets, self.metric, replay.end_start, only_read), targets

    def _replay(self) -> Replay:
        return Replay(
            self.model,
            self.base,
            self.source,
            self.start,
            self.mask,
            self.cost,
            end_start=self.end_start,
            from_layer=self.savings.layers,
        )

    def lanes_at_once(self, order: int = 0, entry: int = 0) -> int:
        """How many patched sequences fit into the memory budget.

        Args:
            order: of the derivative that will be taken; its graph keeps every layer from ``entry`` on.
        """
        answers = self.batch.targets.positions.shape[1]
        each = lane_bytes(
            self.model,
            self.batch.positions - self.start,
            self.batch.positions,
            answers,
            self.metric.reads == "vocabulary",
        )
        if order:
            layers = self.model.n_layers - entry
            each += layers * graph_bytes(self.model, self.batch.positions - self.start, self.batch.positions, order)
        return max(1, self.memory // each)

    # Proofs

    @torch.no_grad()
    def logits(self) -> tuple[Tensor, Tensor]:
        """(R, P, V) of the base and the source run at the answers' positions."""
        ends = (self.base.residuals[-1], self._source_recording.residuals[-1])
        base, source = (answer_logits(self.model, end, self.batch.targets, METRICS["log-prob"]) for end in ends)
        return base, source

    def require_same_as(self, plain: PlainRuns) -> None:
        """The runs that were recorded must give the logits of plain forward passes.

        Raises:
            InterventionError: they do not.
        """
        runs = ((self._base, plain.base), (self.__dict__.get("_source_recording"), plain.source))
        for recording, expected in runs:
            if recording is not None:
                require_same_logits(self.model, self.batch, self.metric, recording, expected)

    @torch.no_grad()
    def _require_faithful_replay(self) -> None:
        if self._replay_is_faithful or self.start >= self.batch.positions:
            return
        rows = list(range(self.batch.rows))
        if self.model.has_foreign_hooks:
            rows += rows  # a hook may treat batch entries by their number
        replay = self._replay()
        ends = replay.run([Lane(row, None) for row in rows], torch.zeros(len(rows), device=self.model.device))
        require_same_end(self.model, self.start, self.base.residuals[-1][rows, replay.end_start :], ends)
        self._replay_is_faithful = True

    def require_differentiable(self) -> None:
        """Refuse (`OptionError`) a metric that has no gradient."""
        if not self.metric.differentiable:
            raise OptionError(f"{self.metric.name} has no gradient. Use it with activation-patching or an ablation.")
