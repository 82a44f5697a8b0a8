"""The one idea: patch a component with strength a and watch the metric, g(a).

activation := base + a * (source - base), for a in [0, 1]. The causal effect is g(1) - g(0). Every method
is a way to know or guess that number from `Response.value`, `.slope` and `.curvature`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from assay.data.metrics import Metric
from assay.engine.baseline import PlainLogits
from assay.engine.batches import Batch, lane_bytes
from assay.engine.cost import CostMeter
from assay.engine.gradients import answer_logits, read_metric, site_gradients
from assay.engine.graph import graph_bytes, require_precision
from assay.engine.replay import Activations, Lane, Replay
from assay.errors import InterventionError, OptionError
from assay.model import Model
from assay.model.checks import LIMITS, relative_difference
from assay.model.recording import Recording, record
from assay.sites import KINDS, Component

Source = Callable[[Batch, Recording, str, int], Tensor]
"""What a site of a kind and layer is set to, (R, T, U, D), given a batch and its base recording."""


class Response:
    """g(a) and its derivatives for C components and the R rows of one batch.

    Args:
        components: what to patch, one at a time.
        source: where patched values come from; the batch's source prompts if None.
        skip: leave out what is known to change nothing: positions before the first difference, and
            components whose source equals their base. Off, everything is run (to test that nothing is lost).
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
        self._keep = {c.site for c in components if KINDS[c.site].of_mlp}
        # Causal attention gives both prompts the same activations up to their first difference. A hook of the
        # user's may not, or treat positions by their number; so do some layers. Then all positions are run.
        self._equal_until = 0 if source is not None or model.has_foreign_hooks else batch.start
        self.start = self._equal_until if skip and not model.family.counts_positions else 0
        self._base: Recording | None = None

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
        recording = self._record(self.batch.source)
        self._require_equal_beginnings(recording)
        return recording.site

    def _record(self, ids: Tensor) -> Recording:
        recording = record(self.model, ids, keep=self._keep)
        self.cost.forward(self.batch.rows, self.batch.positions, self.model.n_layers)
        return recording

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
        groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for i, component in enumerate(self.components):
            groups[component.site, component.layer].append(i)
        for (site, layer), numbers in groups.items():
            delta = self.source(site, layer) - self.base.site(site, layer)
            if self._make_source is None:
                # Exactly, not up to rounding: causal attention cannot tell the prompts apart here.
                delta = delta.clone()
                delta[:, : self._equal_until] = 0
            yield site, layer, delta, numbers

    def reduce(self, per_position: Tensor, numbers: list[int]) -> Tensor:
        """(R, T, U) summed over each component's positions: (C', R)."""
        rows = []
        everywhere = per_position.sum(1)
        for i in numbers:
            component = self.components[i]
            mask = self.mask(component)
            unit = component.unit or 0
            rows.append(everywhere[:, unit] if mask is None else (per_position[:, :, unit] * mask).sum(1))
        return torch.stack(rows)

    @cached_property
    def _moves(self) -> Tensor:
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
            for lanes, index in self._chunks():
                values[index] = self._run(lanes, strengths[index])
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
        for lanes, index in self._chunks(order=1):
            strength = strengths[index].requires_grad_(True)
            with torch.enable_grad():
                total = self._run(lanes, strength).sum()
            (slopes[index],) = torch.autograd.grad(total, strength)
            self._charge_backward(lanes)
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
        for lanes, index in self._chunks(order=2):
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
        return slopes, curvatures

    def _charge_backward(self, lanes: list[Lane], with_tangents: bool = False) -> None:
        """A pass down the layers; for a second derivative, tangents go up through them first."""
        for layer in range(lanes[0].entry, self.model.n_layers):
            begun = sum(lane.entry <= layer for lane in lanes)
            self.cost.backward(begun, self.batch.positions - self.start)
            if with_tangents:
                self.cost.forward(begun, self.batch.positions - self.start)

    def _slope_at_base(self) -> Tensor:
        wanted = {(component.site, component.layer) for component in self.components}
        found = site_gradients(self.model, self.batch, self.metric, wanted, self._keep, self.cost)
        self._base, gradients, self.__dict__["base_values"] = found
        slopes = torch.zeros(len(self.components), self.batch.rows, dtype=torch.float64, device=self.model.device)
        for site, layer, delta, numbers in self.deltas():
            products = (gradients[site, layer].double() * delta.double()).sum(3)
            slopes[numbers] = self.reduce(products, numbers)
        self.advance(slopes.numel())
        return slopes

    def _strengths(self, a: float) -> Tensor:
        shape = (len(self.components), self.batch.rows)
        return torch.full(shape, float(a), dtype=self.base_values.dtype, device=self.model.device)

    # Lanes

    def _chunks(self, order: int = 0) -> Iterator[tuple[list[Lane], tuple[Tensor, Tensor]]]:
        """Lanes that fit in memory together, layer by layer, with their (component, row) indices.

        Args:
            order: of the derivative that will be taken (0: none).
        """
        self._require_faithful_replay()
        moves = self._moves if self.skip else torch.ones_like(self._moves)
        self.advance(int((~moves).sum()))
        by_entry = sorted(range(len(self.components)), key=lambda i: self.components[i].entry)
        pairs = [(i, row) for i in by_entry for row in moves[i].nonzero().flatten().tolist()]
        done = 0
        while done < len(pairs):
            part = pairs[done : done + self.lanes_at_once(order, self.components[pairs[done][0]].entry)]
            done += len(part)
            places, rows = torch.tensor(part, device=self.model.device).unbind(1)
            yield [Lane(row, self.components[i]) for i, row in part], (places, rows)

    def _run(self, lanes: list[Lane], strength: Tensor) -> Tensor:
        residual = self._replay().run(lanes, strength)
        rows = torch.tensor([lane.row for lane in lanes], device=self.model.device)
        self.cost.interventions += len(lanes)
        self.advance(len(lanes))
        return read_metric(self.model, residual, self.batch, self.metric, rows, self.start)

    def read(self, residual: Tensor, rows: Tensor) -> Tensor:
        """(N,) metric of sequences of these rows from their final residual stream (N, T, M)."""
        return read_metric(self.model, residual, self.batch, self.metric, rows)

    def _replay(self) -> Replay:
        return Replay(self.model, self.base, self.source, self.start, self.mask, self.cost)

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
    def require_same_as(self, plain: PlainLogits) -> None:
        """The base run must give the logits that Hugging Face gives, read the way the metric reads them.

        Raises:
            InterventionError: it does not.
        """
        if self._base is None:
            return
        logits = answer_logits(self.model, self._base.residuals[-1], self.batch.targets, self.metric)
        pair = logits if self.metric.reads == "tokens" else logits.gather(-1, self.batch.targets.pair)
        off = ((pair - plain.pair).double().square().mean().sqrt() / plain.scale).item()
        limit = LIMITS[self.model.dtype]
        if not off <= limit:
            raise InterventionError(
                f"{self.model.name} as assay runs it does not give the logits of a plain forward pass: relative "
                f"deviation {off:.3g}, limit {limit:.0e}. Something changed it since it was loaded: a hook, another "
                "attention implementation, a replaced forward method."
            )

    def _require_equal_beginnings(self, source: Recording) -> None:
        """Before their first difference the two prompts must have the same residual stream."""
        until = self._equal_until
        if until == 0:
            return
        for layer, (here, there) in enumerate(zip(self.base.residuals, source.residuals, strict=True)):
            off = relative_difference(here[:, :until], there[:, :until])
            if not off <= LIMITS[self.model.dtype]:
                raise InterventionError(
                    f"Clean and corrupted prompt differ from position {until} on, yet the residual stream at layer "
                    f"{layer} differs before it (by {off:.3g}): this model does not attend causally."
                )

    @torch.no_grad()
    def _require_faithful_replay(self) -> None:
        """Replay the rows unpatched: they must end where the recording ended."""
        if self.start >= self.batch.positions:
            return
        rows = list(range(self.batch.rows))
        if self.model.has_foreign_hooks:
            rows += rows  # a hook may treat batch entries by their number
        ends = self._replay().run([Lane(row, None) for row in rows], torch.zeros(len(rows), device=self.model.device))
        off = relative_difference(self.base.residuals[-1][rows, self.start :], ends)
        limit = LIMITS[self.model.dtype]
        if not off <= limit:
            raise InterventionError(
                f"Replaying {self.model.name} from position {self.start} does not reproduce its own run: relative "
                f"deviation {off:.3g}, limit {limit:.0e}. A hook or a layer with state may be the cause."
            )

    def require_differentiable(self) -> None:
        """Refuse a metric that has no gradient.

        Raises:
            OptionError: it has none.
        """
        if not self.metric.differentiable:
            raise OptionError(
                f"{self.metric.name} has no gradient. Use it with activation-patching or an ablation, or choose "
                "another metric."
            )
