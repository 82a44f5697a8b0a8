"""Evaluate patches by running again only what they change.

A patched sequence is called a *lane*. It starts from the recorded residual stream of the first layer that
its patch changes (nothing before is computed) and from the first patched position (keys and values of
earlier positions come from the recording). Lanes of many components and rows run side by side: a lane
joins the batch at its layer, so every layer is called once for all lanes that have begun. In the last layer only
the positions that are read afterwards are computed; of the others only keys and values.

Axes: N lanes, t positions from ``start`` on, S all positions, M d_model, H heads, U units, D their width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.engine.cost import CostMeter
from assay.errors import InterventionError
from assay.model import Model
from assay.model.attention import tapped
from assay.model.checks import LIMITS
from assay.model.recording import Recording, as_units, first_residual, site_hook
from assay.sites import Component

Activations = Callable[[str, int], Tensor]
"""A site's value, (R, S, U, D), by kind and layer."""


@dataclass(frozen=True)
class Lane:
    """One row of the recording with one component changed (none: the row as it was)."""

    row: int
    component: Component | None

    @property
    def entry(self) -> int:
        return 0 if self.component is None else self.component.entry


class Replay:
    """Replays a recording with patches.

    Args:
        recording: the base run, R rows.
        source: what patched components are set to at full strength.
        start: first position that any patch changes; earlier ones are taken from the recording.
        masks: for a component at named positions, (R, S) which ones; None: all.
        cost: is charged with what really runs.
        end_start: first position of the residual stream that is wanted after the last layer.
        from_layer: begin at the layer that a patch changes; else every lane begins at the first.
    """

    def __init__(
        self,
        model: Model,
        recording: Recording,
        source: Activations,
        start: int,
        masks: Callable[[Component], Tensor | None],
        cost: CostMeter,
        *,
        end_start: int | None = None,
        from_layer: bool = True,
    ) -> None:
        self.model = model
        self.recording = recording
        self.source = source
        self.start = start
        self.masks = masks
        self.cost = cost
        self.end_start = start if end_start is None else max(start, end_start)
        self.from_layer = from_layer

    def run(self, lanes: list[Lane], strength: Tensor) -> Tensor:
        """Final residual stream (N, S - end_start, M) of the lanes, before the final norm.

        Args:
            lanes: in ascending order of their entry layers.
            strength: (N,) how far each component goes from its base (0) to its source value (1).
                Gradients flow to it.

        Raises:
            InterventionError: a patch did not reach its component.
        """
        entries = [lane.entry for lane in lanes]
        assert entries == sorted(entries), "lanes must be in the order of their layers"
        begins = entries if self.from_layer else [0] * len(lanes)
        tap = self.tap(lanes, strength)
        hidden: Tensor | None = None
        last = self.model.n_layers - 1
        with tapped(self.model.hf, tap), self.model.frozen():
            for index in range(begins[0], self.model.n_layers + 1):
                hidden = tap.enter(index, begins.count(index), hidden)
                if index < last:
                    hidden = tap.run_layer(hidden)
                elif index == last:
                    hidden = tap.run_last_layer(hidden)
        tap.require_all_fired()
        assert hidden is not None
        return hidden

    def tap(self, lanes: list[Lane], strength: Tensor) -> ReplayTap:
        """What sets the components of the lanes."""
        return ReplayTap(self, lanes, strength)


class _HasKeysAndValues(Exception):  # noqa: N818
    """Ends a layer early: its keys and values are all that was wanted."""


class ReplayTap:
    """Prepends recorded keys and values, and sets the patched components of the lanes at their layers."""

    def __init__(self, replay: Replay, lanes: list[Lane], strength: Tensor) -> None:
        self.replay, self.model, self.recording, self.start = replay, replay.model, replay.recording, replay.start
        self.lanes, self.strength = lanes, strength
        self.layer = -1
        self._devices = [*(layer.device for layer in replay.model.layers), replay.model.device]
        rows = torch.tensor([lane.row for lane in lanes], device=replay.model.device)
        self._rows = {device: rows.to(device) for device in dict.fromkeys(self._devices)}
        self.begun = 0
        self.at_layer: defaultdict[int, list[int]] = defaultdict(list)
        for number, lane in enumerate(lanes):
            if lane.component is not None:
                self.at_layer[lane.entry].append(number)
        self.joining: dict[str, list[int]] = {}
        self.fired = [0] * len(lanes)
        self.tolerance = LIMITS[replay.model.dtype]
        self.seeks_keys_and_values = False
        self.keys_and_values: tuple[Tensor, Tensor] | None = None
        """Of all positions, where the last layer runs at some of them only."""

    @property
    def device(self) -> torch.device:
        """Of the layer that is run."""
        return self._devices[self.layer]

    @property
    def rows(self) -> Tensor:
        """(N,) of the lanes, where the layer is."""
        return self._rows[self.device]

    # Layers

    def enter(self, layer: int, count: int, hidden: Tensor | None) -> Tensor:
        """Let ``count`` more lanes begin at ``layer``; the residual stream, patched where that is the site."""
        first, self.begun = self.begun, self.begun + count
        self.layer = layer
        if layer == self.model.n_layers:
            self.start = self.replay.end_start
        self.joining = {}
        for lane in self.at_layer[layer]:
            component = self.lanes[lane].component
            assert component is not None
            self.joining.setdefault(component.site, []).append(lane)
        if count:
            fresh = self.recording.residuals[layer][self.rows[first : self.begun], self.start :]
            hidden = fresh if hidden is None else torch.cat([hidden.to(self.device), fresh])
        assert hidden is not None
        hidden = hidden.to(self.device)
        for site in ("residual-pre", "residual-post", "embeddings"):
            # A residual stream after one layer is the one before the next; no lane does both at once here.
            if lanes := self.joining.get(site):
                hidden = hidden.clone()
                if site == "embeddings":
                    hidden[lanes] = self._from_embeddings(lanes)
                else:
                    hidden[lanes] = self._patched(site, lanes, hidden[lanes].unsqueeze(2)).squeeze(2)
        return hidden

    def run_last_layer(self, hidden: Tensor) -> Tensor:
        """The last layer at the positions that are read afterwards; keys and values come from all."""
        positions = hidden.shape[1]
        wanted = positions - (self.replay.end_start - self.start)
        if wanted == positions:
            return self.run_layer(hidden)
        self.seeks_keys_and_values = True
        with suppress(_HasKeysAndValues):
            self._call(hidden)
        assert self.keys_and_values is not None, "the last layer ran without attention"
        self.seeks_keys_and_values = False
        self.start = self.replay.end_start
        return self.run_layer(hidden[:, -wanted:].contiguous())

    def run_layer(self, hidden: Tensor) -> Tensor:
        self.replay.cost.forward(*hidden.shape[:2])
        shape = hidden.shape[:2]
        layer = self.model.layers[self.layer]
        with ExitStack() as hooks:
            for site in ("attention", "residual-mid", "neurons-pre", "neurons", "mlps"):
                if lanes := self.joining.get(site):
                    place = "attention" if site == "residual-mid" else site
                    hooks.enter_context(site_hook(layer, place, shape, self._setter(site, lanes)))
            return self._call(hidden)

    @property
    def attending(self) -> Tensor:
        """The rows of the lanes that the layer's attention is run for."""
        return self.rows[: self.begun]

    def _call(self, hidden: Tensor) -> Tensor:
        return self._run(hidden, *self._arguments(self.rows[: self.begun]))

    def _arguments(self, rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.recording.arguments[self.layer].select(rows, self.start)

    def _run(self, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        output = self.model.layers[self.layer].module(hidden, *args, **kwargs)
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result

    # Attention

    def attention_inputs(
        self, layer: int, q_NHtD: Tensor, k_NKtD: Tensor, v_NKtD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        self._require_layer(layer)
        if self.keys_and_values is not None:
            return self._set_units("q", q_NHtD), *self.keys_and_values
        k, v = self._whole(layer, self._set_units("k", k_NKtD), self._set_units("v", v_NKtD))
        if self.seeks_keys_and_values:
            self.keys_and_values = k, v
            raise _HasKeysAndValues
        return self._set_units("q", q_NHtD), k, v

    def _whole(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions."""
        if self.start > 0:
            k, v = self._behind_recorded(self.recording.k[layer], k), self._behind_recorded(self.recording.v[layer], v)
        return k, v

    def _behind_recorded(self, recorded_RSKD: Tensor, fresh_NKtD: Tensor) -> Tensor:
        """(N, K, S, D). Rows are copied whole and written over: a third of the time of putting two parts together."""
        whole = recorded_RSKD.transpose(1, 2).index_select(0, self.attending)
        whole[:, :, self.start :] = fresh_NKtD
        return whole

    def head_outputs(self, layer: int, z_NtHD: Tensor) -> Tensor:
        self._require_layer(layer)
        if lanes := self.joining.get("heads"):
            return self._setter("heads", lanes)(z_NtHD)
        return z_NtHD

    def _set_units(self, site: str, x_NUtD: Tensor) -> Tensor:
        if lanes := self.joining.get(site):
            return self._setter(site, lanes)(x_NUtD.transpose(1, 2)).transpose(1, 2)
        return x_NUtD

    # Patches

    def _setter(self, site: str, lanes: list[int]) -> Callable[[Tensor], Tensor]:
        """A function that sets these lanes' component in the (N, t, ...) value of its site."""
        units = [self._unit(lane) for lane in lanes]

        def set_components(value: Tensor) -> Tensor:
            changed = value.clone()
            seen = as_units(site, changed)  # a view: writing to it writes to ``changed``
            seen[lanes, :, units] = self._patched(site, lanes, seen[lanes, :, units].unsqueeze(2)).squeeze(2)
            return changed

        return set_components

    def _patched(self, site: str, lanes: list[int], before: Tensor) -> Tensor:
        """Base + strength x (source - base), (n, t, 1, D), at the component's positions; proves what it replaces."""
        here, there = self._ends(site, lanes)
        target = self._between(here, there, lanes)
        if site == "residual-mid":
            target = self._attention_to(target, lanes)
            here = self.recording.attentions[self.layer][self.rows[lanes], self.start :].unsqueeze(2)
        self._require_recorded_value(lanes, before, here)
        for lane in lanes:
            self.fired[lane] += 1
        return self._at_positions(lanes, target, before)

    def _between(self, here: Tensor, there: Tensor, lanes: list[int]) -> Tensor:
        """Base + strength x (source - base), in float32 or better: the strength's gradient is a sum over the site."""
        precision = torch.promote_types(here.dtype, torch.float32)
        strength = self.strength[lanes].to(here.device, precision).view(-1, *[1] * (here.ndim - 1))
        return torch.lerp(here.to(precision), there.to(precision), strength).to(here.dtype)

    def _attention_to(self, target: Tensor, lanes: list[int]) -> Tensor:
        """What attention must add for the residual stream after it to be ``target``, to the last bit where that is 0.

        A norm behind it would blow a rounding error of a stream of zeros up to the size of any other.
        """
        multiplier = self.model.residual_multiplier
        before = self.recording.residuals[self.layer][self.rows[lanes], self.start :].unsqueeze(2)
        added = (target - before) / multiplier
        added = added + (target - (before + added * multiplier)) / multiplier
        left = (before + added * multiplier).masked_select(target == 0)
        if left.any():
            raise InterventionError(
                f"The residual-mid of layer {self.layer} cannot be set to 0 exactly in "
                f"{str(target.dtype).removeprefix('torch.')}, and what is left of it would be taken for a value. Use "
                "residual-pre or residual-post."
            )
        return added

    def _ends(self, site: str, lanes: list[int]) -> tuple[Tensor, Tensor]:
        """Base and source value of these lanes' components from ``start`` on, (n, t, 1, D) each."""
        layer = self.layer - 1 if site == "residual-post" else self.layer
        rows, units = self.rows[lanes], [self._unit(lane) for lane in lanes]
        here, there = (
            values[:, self.start :][rows.to(values.device), :, units].unsqueeze(2).to(self.device)
            for values in (self.recording.site(site, layer), self.replay.source(site, layer))
        )
        return here, there

    def _from_embeddings(self, lanes: list[int]) -> Tensor:
        """The residual stream that the model makes of patched token embeddings, from ``start`` on."""
        rows = self.rows[lanes]
        here, there = (
            values[rows.to(values.device), :, 0].to(self.device)
            for values in (self.recording.site("embeddings", 0), self.replay.source("embeddings", 0))
        )
        target = self._between(here, there, lanes)
        for lane in lanes:
            self.fired[lane] += 1
        whole = torch.zeros_like(here[:, : self.start])  # positions before ``start`` are not looked at
        kept = self._at_positions(lanes, target[:, self.start :].unsqueeze(2), here[:, self.start :].unsqueeze(2))
        patched = first_residual(self.model, embeddings=torch.cat([whole, kept.squeeze(2)], dim=1))
        return patched[:, self.start :].to(self.device)

    def _at_positions(self, lanes: list[int], target: Tensor, before: Tensor) -> Tensor:
        masks = [self.replay.masks(component) if (component := self.lanes[lane].component) else None for lane in lanes]
        if all(mask is None for mask in masks):
            return target
        chosen = torch.stack(
            [
                torch.ones(target.shape[1], dtype=torch.bool, device=target.device)
                if mask is None
                else mask[self.lanes[lane].row, self.start :].to(target.device)
                for lane, mask in zip(lanes, masks, strict=True)
            ]
        )
        return torch.where(chosen.view(*chosen.shape, 1, 1), target, before)

    def _unit(self, lane: int) -> int:
        component = self.lanes[lane].component
        return 0 if component is None or component.unit is None else component.unit

    # Proofs

    def _require_recorded_value(self, lanes: list[int], before: Tensor, here: Tensor) -> None:
        drift = (before - here).detach().abs().flatten(1).amax(1)
        if not (drift <= self.tolerance * here.detach().abs().amax().clamp(min=1e-6)).all():
            worst = self.lanes[lanes[int(drift.argmax())]].component
            raise InterventionError(
                f"{worst.name if worst else 'A component'} does not hold its recorded value when it is patched "
                f"(off by {drift.max().item():.3g}); the model changes between two runs of one prompt."
            )

    def _require_layer(self, layer: int) -> None:
        if layer != self.layer:
            raise InterventionError(f"Layer {self.layer} was replayed, but the attention of layer {layer} ran.")

    def require_all_fired(self) -> None:
        for lane, times in zip(self.lanes, self.fired, strict=True):
            if lane.component is not None and times != 1:
                raise InterventionError(f"The patch of {lane.component.name} fired {times} times instead of once.")
