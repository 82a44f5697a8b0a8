"""Evaluate patches by running again only what they change.

A patched sequence is called a *lane*. It starts from the recorded residual stream of its component's
layer (nothing before that layer is computed) and from the first patched position (keys and values of
earlier positions come from the recording). Lanes of many components and rows run side by side: a lane
joins the batch at its layer, so every layer is called once for all lanes that have begun.

Axes: N lanes, t positions from ``start`` on, S all positions, M d_model, H heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.engine.cost import CostMeter
from assay.errors import InterventionError
from assay.model import Model
from assay.model.attention import tapped
from assay.model.checks import LIMITS
from assay.model.recording import Recording, first_of, forward_hook, replace_first
from assay.sites import Component


@dataclass(frozen=True)
class Lane:
    """One row of the recording with one component changed (none: the row as it was)."""

    row: int
    component: Component | None

    @property
    def layer(self) -> int:
        return 0 if self.component is None else self.component.layer


class Replay:
    """Replays a recording with patches.

    Args:
        recording: the base run, R rows.
        source: what the patched components are set to at full strength: ``heads`` and ``mlps`` per layer.
        start: first position that any patch changes; earlier ones are taken from the recording.
        cost: is charged with what really runs.
    """

    def __init__(self, model: Model, recording: Recording, source: Recording, start: int, cost: CostMeter) -> None:
        self.model = model
        self.recording = recording
        self.source = source
        self.start = start
        self.cost = cost

    def run(self, lanes: list[Lane], strength: Tensor) -> Tensor:
        """Final residual stream (N, t, M) of the lanes, before the final norm.

        Args:
            lanes: in ascending order of their layers.
            strength: (N,) how far each component goes from its base (0) to its source value (1).
                Gradients flow to it.

        Raises:
            InterventionError: a patch did not reach its component.
        """
        rows = torch.tensor([lane.row for lane in lanes], device=self.model.device)
        layers = [lane.layer for lane in lanes]
        assert layers == sorted(layers), "lanes must be in the order of their layers"
        tap = _ReplayTap(self, lanes, rows, strength)
        hidden: Tensor | None = None
        begun = 0
        with tapped(self.model.hf, tap), self.model.frozen():
            for layer in self.model.layers[layers[0] :]:
                joining = layers.count(layer.index)
                if joining:
                    fresh = self.recording.residuals[layer.index][rows[begun : begun + joining], self.start :]
                    hidden = fresh if hidden is None else torch.cat([hidden, fresh])
                    begun += joining
                assert hidden is not None
                tap.enter(layer.index, begun)
                args, kwargs = self.recording.arguments[layer.index].select(rows[:begun], self.start)
                with forward_hook(layer.mlp_contribution, tap.mlp_contribution):
                    hidden = first_of(layer.module(hidden, *args, **kwargs))
                self.cost.forward(begun, hidden.shape[1])
        tap.require_all_fired()
        assert hidden is not None
        return hidden


class _ReplayTap:
    """Prepends recorded keys and values, and sets the patched components of lanes that just joined."""

    def __init__(self, replay: Replay, lanes: list[Lane], rows: Tensor, strength: Tensor) -> None:
        self.recording, self.source, self.start = replay.recording, replay.source, replay.start
        self.lanes, self.rows, self.strength = lanes, rows, strength
        self.layer = -1
        self.begun = 0
        self.joining: list[int] = []
        self.fired = [0] * len(lanes)
        self.tolerance = LIMITS[replay.model.dtype]

    def enter(self, layer: int, begun: int) -> None:
        self.joining = list(range(self.begun, begun))
        self.layer, self.begun = layer, begun

    def keys_values(self, layer: int, k_NKtD: Tensor, v_NKtD: Tensor) -> tuple[Tensor, Tensor]:
        self._require_layer(layer)
        if self.start == 0:
            return k_NKtD, v_NKtD
        rows = self.rows[: self.begun]
        k_before = self.recording.keys[layer][:, :, : self.start][rows]
        v_before = self.recording.values[layer][:, :, : self.start][rows]
        return torch.cat([k_before, k_NKtD], dim=2), torch.cat([v_before, v_NKtD], dim=2)

    def head_outputs(self, layer: int, z_NtHD: Tensor) -> Tensor:
        self._require_layer(layer)
        lanes, heads = self._joining_at("heads")
        if not lanes:
            return z_NtHD
        before = z_NtHD[lanes, :, heads]
        target = self._patched(self.recording.heads, self.source.heads, before, lanes, heads)
        changed = z_NtHD.clone() if z_NtHD.requires_grad or target.requires_grad else z_NtHD
        changed[lanes, :, heads] = target
        return changed

    def mlp_contribution(self, _: nn.Module, __: Any, output: Any) -> Any:
        lanes, _units = self._joining_at("mlps")
        if not lanes:
            return output
        contribution = first_of(output)
        changed = contribution.clone()
        changed[lanes] = self._patched(self.recording.mlps, self.source.mlps, contribution[lanes], lanes, None)
        return replace_first(output, changed)

    def _patched(
        self, base: list[Tensor], source: list[Tensor], before: Tensor, lanes: list[int], heads: list[int] | None
    ) -> Tensor:
        """Base + strength x (source - base) for these lanes, from ``start`` on; proves what it replaces."""
        rows = self.rows[lanes]
        here, there = base[self.layer][:, self.start :], source[self.layer][:, self.start :]
        here, there = (x[rows] if heads is None else x[rows, :, heads] for x in (here, there))
        drift = (before - here).detach().abs().amax((1, 2))
        if not (drift <= self.tolerance * here.detach().abs().amax().clamp(min=1e-6)).all():
            worst = self.lanes[lanes[int(drift.argmax())]].component
            raise InterventionError(
                f"{worst.name if worst else 'A component'} does not hold its recorded value when it is patched "
                f"(off by {drift.max().item():.3g}); the model changes between two runs of one prompt."
            )
        target = torch.lerp(here, there, self.strength[lanes].view(-1, 1, 1).to(here.dtype))
        for lane in lanes:
            self.fired[lane] += 1
        return target

    def _joining_at(self, site: str) -> tuple[list[int], list[int]]:
        found = [
            (lane, component.unit or 0)
            for lane in self.joining
            if (component := self.lanes[lane].component) is not None and component.site == site
        ]
        return [lane for lane, _ in found], [unit for _, unit in found]

    def _require_layer(self, layer: int) -> None:
        if layer != self.layer:
            raise InterventionError(f"Layer {self.layer} was replayed, but the attention of layer {layer} ran.")

    def require_all_fired(self) -> None:
        for lane, times in zip(self.lanes, self.fired, strict=True):
            if lane.component is not None and times != 1:
                raise InterventionError(f"The patch of {lane.component.name} fired {times} times instead of once.")
