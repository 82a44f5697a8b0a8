"""Several components patched in one run: joint effects, and the derivatives of the joint response.

f(a) is the metric with every component c of a group set to current + a_c (source - current), where *current* is what
it computes in the patched run itself. At a = 1 all of them hold their source values, so f(1) is the joint patch,
exactly; at a = 0 nothing is changed. Where one component feeds another, the second derivative of f also holds what the
first moves through the second: patched together, that way is cut.

Axes: G groups, C components, R rows, N lanes, P patches (component of a lane), T positions, U units, D their width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.engine.gradients import answer_logits
from assay.engine.graph import require_precision
from assay.engine.replay import Lane, Replay, ReplayTap
from assay.engine.response import Response
from assay.engine.sharing import Alike, alike, attending_once, without_mlp
from assay.errors import InterventionError
from assay.model.recording import as_units
from assay.sites import Component

KINDS_OF_GROUPS = ("heads", "mlps")
"""What can be patched together. Streams are not: patching one makes all that is before it of no account."""


CACHED = 128 << 20
"""Bytes of lanes that a CPU runs at once. With gigabytes of them every step reads main memory anew."""


@dataclass(frozen=True)
class GroupLane(Lane):
    """One row with several components patched.

    Args:
        members: those that this lane patches itself.
        parent: the lane of the run that it begins as a copy of; None: it begins as the recorded row.
    """

    members: tuple[Component, ...]
    parent: int | None = None

    @property
    def entry(self) -> int:
        return min(member.entry for member in self.members)


@torch.no_grad()
def joint_values(response: Response, groups: Sequence[Sequence[int]]) -> Tensor:
    """(G, R) the metric with all components of a group at their source values.

    A group that lies in several layers is run from the second of them on where the part of it in the first is a group
    of its own: all pairs of components cost little more than their later halves.

    Args:
        groups: numbers of the response's components, at least one each, none twice.

    Raises:
        InterventionError: a patch did not reach its component.
    """
    response = response.of(response.components)  # proves that a replay ends where the recording did
    _ = response.moves  # asks every source, which may run the model: that must not happen within a replay
    values = response.base_values.new_empty(len(groups), response.batch.rows)
    families = _families(response, groups)
    shares = not response.model.has_foreign_hooks  # a hook may tell lanes apart
    # The rows of a family stand together: its lanes are the same components for each of them.
    items = [(family, row) for family in families for row in range(response.batch.rows)]

    def run(part: slice) -> None:
        lanes, places = _lanes_of(response, groups, items[part])
        numbers, rows = torch.tensor(places, device=response.model.device).unbind(1)
        ones = torch.ones(sum(len(lane.members) for lane in lanes), device=response.model.device)
        values[numbers, rows] = _metric_of(response, lanes, ones, shares)
        response.cost.interventions += len(lanes)
        response.advance(len(lanes))

    def limit(first: int) -> int:
        room = _most(response, items[first][0].entry)
        for count, (family, _) in enumerate(items[first:]):
            room -= family.size
            if room < 0:
                return count
        return len(items)

    response.portions.run(len(items), run, limit)
    return values


def joint_derivatives(response: Response) -> tuple[Tensor, Tensor]:
    """(C, R) first and (C, C, R) second derivatives of f at 0, of all components of the response.

    One graph of a gradient, and a product with its Hessian for each component.

    Raises:
        OptionError: the metric has no gradient, or the model's precision is too low.
    """
    response.require_differentiable()
    require_precision(response.model)
    response = response.of(response.components)
    _ = response.moves
    model, batch, members = response.model, response.batch, tuple(response.components)
    count = len(members)
    slopes = torch.zeros(count, batch.rows, dtype=torch.float64, device=model.device)
    second = torch.zeros(count, count, batch.rows, dtype=torch.float64, device=model.device)
    entry = min(member.entry for member in members)

    def run(part: slice) -> None:
        rows = range(batch.rows)[part]
        lanes = [GroupLane(row, None, members) for row in rows]
        strength = torch.zeros(len(lanes) * count, dtype=response.base_values.dtype, device=model.device)
        strength.requires_grad_(True)
        passes = len(lanes), batch.positions - response.start, model.n_layers - entry
        with torch.enable_grad():
            total = _metric_of(response, lanes, strength).sum()
            (slope,) = torch.autograd.grad(total, strength, create_graph=True)
            slope_NC = slope.view(-1, count)
        response.cost.backward(*passes)
        slopes[:, part] = slope_NC.detach().T.double()
        for number in range(count):
            if slope.requires_grad:
                (found,) = torch.autograd.grad(
                    slope_NC[:, number].sum(), strength, retain_graph=True, allow_unused=True
                )
                if found is not None:  # None: a straight line in every component
                    second[number, :, part] = found.view(-1, count).T.double()
                response.cost.forward(*passes)
                response.cost.backward(*passes)
            response.advance(len(lanes))

    response.portions.run(batch.rows, run, lambda _: response.lanes_at_once(2, entry))
    return slopes, second


@dataclass(frozen=True)
class _Family:
    """A group, and others that begin as it stands where they leave it."""

    root: int
    children: tuple[int, ...]
    entry: int

    @property
    def size(self) -> int:
        return 1 + len(self.children)


def _families(response: Response, groups: Sequence[Sequence[int]]) -> list[_Family]:
    components = response.components
    known = {frozenset(group): number for number, group in enumerate(groups)}
    children: dict[int, list[int]] = {}
    roots = []
    for number, group in enumerate(groups):
        assert len(set(group)) == len(group) > 0, "a group names each of its components once"
        first = min(components[member].entry for member in group)
        head = frozenset(member for member in group if components[member].entry == first)
        parent = known.get(head) if len(head) < len(group) and response.savings.layers else None
        if parent is None:
            roots.append((first, number))
        else:
            children.setdefault(parent, []).append(number)
    families = []
    for entry, root in sorted(roots):
        mine, most = children.get(root, []), max(1, _most(response, entry) - 1)
        parts = [tuple(mine[first : first + most]) for first in range(0, len(mine), most)] or [()]
        families += [_Family(root, part, entry) for part in parts]
    return families


def _lanes_of(
    response: Response, groups: Sequence[Sequence[int]], items: Sequence[tuple[_Family, int]]
) -> tuple[list[GroupLane], list[tuple[int, int]]]:
    """Lanes in the order of their layers, and the group and row of each."""
    components = response.components
    patched: dict[int, tuple[Component, ...]] = {}
    found: list[tuple[int, int, int | None]] = []  # group, row, place of the parent in this list
    for family, row in items:
        root = len(found)
        shared = set(groups[family.root])
        for number in (family.root, *family.children):
            if number not in patched:
                own = groups[number] if number == family.root else [m for m in groups[number] if m not in shared]
                patched[number] = tuple(components[member] for member in own)
            found.append((number, row, None if number == family.root else root))
    entries = {number: min(component.entry for component in members) for number, members in patched.items()}
    order = sorted(range(len(found)), key=lambda i: entries[found[i][0]])
    place = [0] * len(found)
    for position, i in enumerate(order):
        place[i] = position
    lanes = []
    for i in order:
        number, row, parent = found[i]
        lanes.append(GroupLane(row, None, patched[number], None if parent is None else place[parent]))
    return lanes, [found[i][:2] for i in order]


def _most(response: Response, entry: int) -> int:
    """Lanes to run at once: what fits into memory, and not so much that it leaves the processor's caches."""
    most = response.lanes_at_once(0, entry)
    return most if response.model.device.type != "cpu" else min(most, max(1, most * CACHED // response.memory))


def _metric_of(response: Response, lanes: Sequence[GroupLane], strength: Tensor, shares: bool = False) -> Tensor:
    """(N,) of the lanes, given the strength (P,) of each patch, lane by lane in the order of its members."""
    replay = _GroupReplay(
        response.model, response.base, response.source, response.start, response.mask, response.cost,
        end_start=response.end_start, from_layer=response.savings.layers,
    )  # fmt: skip
    replay.shares = shares
    residual = replay.run(list(lanes), strength)
    targets = response.batch.targets.rows(torch.tensor([lane.row for lane in lanes], device=response.model.device))
    only_read = response.savings.unembedding
    logits = answer_logits(response.model, residual, targets, response.metric, replay.end_start, only_read)
    return response.metric.values(logits, targets)


class _GroupReplay(Replay):
    shares = False
    """Whether what lanes have in common within a layer is computed once."""

    def tap(self, lanes: list[Lane], strength: Tensor) -> ReplayTap:
        return _GroupTap(self, lanes, strength)


@dataclass(frozen=True)
class _Patch:
    lane: int
    component: Component
    untouched: bool
    """Nothing that it depends on is patched in its lane, so it must hold its recorded value."""


def _before_all_others(members: tuple[Component, ...]) -> list[bool]:
    """Whether no other of these can reach a component: those of the first layer, and its MLP only without heads."""
    layer = min(member.layer for member in members)
    has_heads = any(member.site == "heads" and member.layer == layer for member in members)
    return [member.layer == layer and (member.site == "heads" or not has_heads) for member in members]


class _GroupTap(ReplayTap):
    """Sets the members of each lane, layer by layer; ``joining`` and ``fired`` count patches instead of lanes."""

    def __init__(self, replay: _GroupReplay, lanes: list[Lane], strength: Tensor) -> None:
        super().__init__(replay, lanes, strength)
        self.patches: list[_Patch] = []
        self.groups: list[GroupLane] = []
        first: dict[tuple[Component, ...], list[bool]] = {}
        for number, lane in enumerate(lanes):
            assert isinstance(lane, GroupLane)
            self.groups.append(lane)
            if lane.members not in first:
                first[lane.members] = _before_all_others(lane.members)
            for component, untouched in zip(lane.members, first[lane.members], strict=True):
                self.patches.append(_Patch(number, component, untouched and lane.parent is None))
        self.of_layer: dict[int, dict[str, list[int]]] = {}
        for number, patch in enumerate(self.patches):
            sites = self.of_layer.setdefault(patch.component.layer, {})
            sites.setdefault(patch.component.site, []).append(number)
        self.fired = [0] * len(self.patches)
        self.alike: Alike | None = None
        self.shares = replay.shares
        self.needs_no_mlp: list[int] = []

    @property
    def attending(self) -> Tensor:
        return super().attending if self.alike is None else self.rows[self.alike.attending]

    def enter(self, layer: int, count: int, hidden: Tensor | None) -> Tensor:
        first = self.begun
        hidden = super().enter(layer, count, hidden)
        begun = enumerate(self.groups[first : self.begun], first)
        copies = [(number, lane.parent) for number, lane in begun if lane.parent is not None]
        if copies:
            numbers, parents = map(list, zip(*copies, strict=True))
            hidden[numbers] = hidden[parents]
        self.joining = self.of_layer.get(layer, {})
        self.alike = alike(self.begun, dict(copies), hidden.device) if self.shares else None
        patched = [self.patches[number].lane for number in self.joining.get("mlps", ())]
        self.needs_no_mlp = [lane for lane in patched if self.groups[lane].parent is not None and self.shares]
        return hidden

    def _call(self, hidden: Tensor) -> Tensor:
        layer = self.model.layers[self.layer]
        with ExitStack() as savings:
            if layer.mlp is not layer.neuron_output and layer.neuron_output is not None:
                savings.enter_context(without_mlp(layer, self.needs_no_mlp, self.begun))
            if self.alike is None:
                return super()._call(hidden)
            given, of_attending = self._arguments(self.rows[: self.begun]), self._arguments(self.attending)
            savings.enter_context(attending_once(self.model, layer, self.alike, given, of_attending, self._set_heads))
            return self._run(hidden, *given)

    def head_outputs(self, layer: int, z_NtHD: Tensor) -> Tensor:
        if self.alike is None:
            return super().head_outputs(layer, z_NtHD)
        self._require_layer(layer)
        return z_NtHD  # of the lanes that attend; all are set before W_O

    def _set_heads(self, z_NtHD: Tensor) -> Tensor:
        numbers = self.joining.get("heads")
        return self._setter("heads", numbers)(z_NtHD) if numbers else z_NtHD

    def _setter(self, site: str, numbers: list[int]) -> Callable[[Tensor], Tensor]:
        patches = [self.patches[number] for number in numbers]
        lanes, units = [patch.lane for patch in patches], [patch.component.unit or 0 for patch in patches]

        def set_components(value: Tensor) -> Tensor:
            changed = value.clone()
            seen = as_units(site, changed)  # a view: writing to it writes to ``changed``
            seen[lanes, :, units] = self._moved(site, numbers, seen[lanes, :, units])
            return changed

        return set_components

    def _moved(self, site: str, numbers: list[int], before_PtD: Tensor) -> Tensor:
        patches = [self.patches[number] for number in numbers]
        rows, units = self.rows[[p.lane for p in patches]], [p.component.unit or 0 for p in patches]
        here, there = (
            values[:, self.start :][rows.to(values.device), :, units].to(self.device)
            for values in (self.recording.site(site, self.layer), self.replay.source(site, self.layer))
        )
        self._require_recorded(patches, before_PtD, here)
        for number in numbers:
            self.fired[number] += 1
        precision = torch.promote_types(before_PtD.dtype, torch.float32)
        strength = self.strength[numbers].to(here.device, precision).view(-1, 1, 1)
        return torch.lerp(before_PtD.to(precision), there.to(precision), strength).to(before_PtD.dtype)

    def _require_recorded(self, patches: list[_Patch], before: Tensor, here: Tensor) -> None:
        untouched = [number for number, patch in enumerate(patches) if patch.untouched]
        if not untouched:
            return
        drift = (before[untouched] - here[untouched]).detach().abs().flatten(1).amax(1)
        if not (drift <= self.tolerance * here.detach().abs().amax().clamp(min=1e-6)).all():
            worst = patches[untouched[int(drift.argmax())]].component
            raise InterventionError(
                f"{worst.name} does not hold its recorded value when it is patched (off by {drift.max().item():.3g}); "
                "the model changes between two runs of one prompt."
            )

    def require_all_fired(self) -> None:
        for patch, times in zip(self.patches, self.fired, strict=True):
            if times != 1:
                raise InterventionError(f"The patch of {patch.component.name} fired {times} times instead of once.")
