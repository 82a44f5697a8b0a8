"""Path patching: let a sender's change reach chosen receivers, and nothing else, directly.

The sender's change of the residual stream is added to what each receiver reads; all heads and MLPs between are
held at their base values. What the receivers then compute (queries, keys, values, MLP outputs) is set in a second
run of the base, in which everything after them is computed anew.

Axes: N lanes, S positions, M d_model, H heads, D head width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.engine.gradients import read_metric
from assay.engine.response import Response
from assay.errors import InterventionError, OptionError
from assay.model import Model
from assay.model.attention import tapped
from assay.model.recording import site_hook
from assay.sites import Component, Selection, parse, select

RECEIVERS = ("q", "k", "v", "mlps")
LOGITS = "logits"
RECEIVERS_ARE = f"Receivers are {', '.join(RECEIVERS)} and {LOGITS}, for example q[9:12],mlps[10],{LOGITS}."


@dataclass(frozen=True)
class Receivers:
    """What reads the sender: components of the kinds q, k, v and mlps, and the unembedding if ``logits``."""

    components: tuple[Component, ...]
    logits: bool

    @property
    def layers(self) -> list[int]:
        return sorted({component.layer for component in self.components})

    def at(self, layer: int, site: str) -> list[int]:
        """Units of this kind that receive at this layer."""
        return [c.unit or 0 for c in self.components if c.layer == layer and c.site == site]


def require_receivers(phrase: str | Selection) -> None:
    """Refuse what can receive in no model: kinds, positions and wording, named as they were given.

    Raises:
        OptionError: a kind that cannot receive, a position, a phrase that does not parse, or nothing.
    """
    if isinstance(phrase, str):
        terms, logits = _terms(phrase)
        given = [(term, kind, position) for term in terms for kind, *_, position in parse(term)]
    else:
        given, logits = [(component.name, component.site, component.position) for component in phrase], False
    if not given and not logits:
        raise OptionError(f"There are no receivers. {RECEIVERS_ARE}")
    for name, kind, position in given:
        if kind not in RECEIVERS:
            raise OptionError(f"{name!r} cannot receive. {RECEIVERS_ARE}")
        if position is not None:
            raise OptionError(
                f"{name!r} cannot receive at a position of its own; leave @{position} out. {RECEIVERS_ARE}"
            )


def parse_receivers(model: Model, phrase: str | Selection) -> Receivers:
    """Receivers of a phrase such as ``q[9:12],mlps[10],logits``.

    Raises:
        OptionError: as `require_receivers`, or a layer that this model does not have.
    """
    require_receivers(phrase)
    if not isinstance(phrase, str):
        return Receivers(tuple(phrase), logits=False)
    terms, logits = _terms(phrase)
    return Receivers(tuple(select(model, ",".join(terms))) if terms else (), logits)


def _terms(phrase: str) -> tuple[list[str], bool]:
    """The terms that name components, and whether one names the logits."""
    terms = [term.strip() for term in phrase.split(",") if term.strip()]
    return [term for term in terms if term != LOGITS], LOGITS in terms


class PathPatch:
    """The effects of the paths from each of a response's components to the receivers."""

    def __init__(self, response: Response, receivers: Receivers) -> None:
        self.response, self.model, self.receivers = response, response.model, receivers

    def require_any(self, senders: Sequence[Component]) -> None:
        """Refuse senders of which none writes before any receiver reads."""
        if not any(self._reaches_any(sender) for sender in senders):
            raise OptionError("No sender writes before any receiver reads: there is no path between them.")

    @torch.no_grad()
    def values(self) -> Tensor:
        """(C, R) metric with each component's change on the paths to the receivers alone."""
        response, rows = self.response, self.response.batch.rows
        values = response.base_values.expand(len(response.components), -1).clone()
        for site, layer, delta, numbers in response.deltas():
            sender = response.components[numbers[0]]
            if not self._reaches_any(sender):
                response.advance(len(numbers) * rows)
                continue  # no path: no effect, exactly

            def run(
                part: slice, site: str = site, layer: int = layer, delta: Tensor = delta, numbers: list[int] = numbers
            ) -> None:
                change = torch.cat([self._change(site, layer, delta, number) for number in numbers[part]])
                of_lanes = torch.arange(change.shape[0], device=change.device) % rows
                values[numbers[part]] = self._run(response.components[numbers[0]], of_lanes, change).view(-1, rows)
                response.cost.interventions += change.shape[0]
                response.advance(change.shape[0])

            response.portions.run(len(numbers), run, lambda _: response.lanes_at_once() // rows)
        return values

    def _change(self, site: str, layer: int, delta: Tensor, number: int) -> Tensor:
        """(R, S, M): what a sender's change adds to the residual stream."""
        base, found = self.response.base, self.model.layers[layer]
        component = self.response.components[number]
        mask = self.response.mask(component)
        moved = delta if mask is None else delta * mask.view(*mask.shape, 1, 1)
        if site != "heads":
            return moved.squeeze(2) * self.model.residual_multiplier
        z = base.heads[layer].clone()
        z[:, :, component.unit or 0] += moved[:, :, component.unit or 0]
        outputs = [found.output_projection(x.flatten(2)) for x in (z, base.heads[layer])]
        if found.has_attention_post_norm:
            outputs = [found.attention_contribution(x) for x in outputs]
        change: Tensor = (outputs[0] - outputs[1]) * self.model.residual_multiplier
        return change

    def _reaches(self, sender: Component, layer: int, site: str) -> bool:
        """Whether the sender writes before the receiver reads."""
        if sender.layer < layer:
            return True
        same_half = site == "mlps" and sender.site != "mlps" and not self.model.is_parallel
        return sender.layer == layer and same_half

    def _reaches_any(self, sender: Component) -> bool:
        return self.receivers.logits or any(self._reaches(sender, c.layer, c.site) for c in self.receivers.components)

    def _run(self, sender: Component, rows: Tensor, change: Tensor) -> Tensor:
        """(N,) metric of the lanes."""
        base = self.response.base
        reached = [c for c in self.receivers.components if self._reaches(sender, c.layer, c.site)]
        hidden = base.residuals[-1][rows]
        if reached:
            targets = {layer: self._received(reached, layer, rows, change) for layer in {c.layer for c in reached}}
            first = min(targets)
            hidden = base.residuals[first][rows]
            for layer in range(first, self.model.n_layers):
                hidden = self._layer(layer, hidden, rows, _Setting(self.receivers, layer, targets.get(layer, {})))
        if self.receivers.logits:
            hidden = hidden + change
        return read_metric(self.model, hidden, self.response.batch, self.response.metric, rows)

    def _received(self, reached: list[Component], layer: int, rows: Tensor, change: Tensor) -> dict[str, Tensor]:
        """What the receivers of one layer compute when the change is added to what they read, kind by kind."""
        base, kinds = self.response.base, {c.site for c in reached if c.layer == layer}
        found: dict[str, Tensor] = {}
        if kinds & {"q", "k", "v"}:
            seen = _Capturing(layer)
            self._layer(layer, base.residuals[layer][rows] + change, rows, seen)
            found.update({kind: seen.kept[kind] for kind in kinds if kind in seen.kept})
        if "mlps" in kinds:
            kept: list[Tensor] = []

            def keep(value: Tensor) -> Tensor:
                kept.append(value)
                return value

            attention = base.attentions[layer][rows]
            hidden = base.residuals[layer][rows]
            if self.model.is_parallel:
                hidden = hidden + change
            else:
                attention = attention + change / self.model.residual_multiplier
            with (
                site_hook(self.model.layers[layer], "attention", hidden.shape[:2], lambda _: attention),
                site_hook(self.model.layers[layer], "mlps", hidden.shape[:2], keep),
            ):
                self._layer(layer, hidden, rows, _Capturing(layer))
            (found["mlps"],) = kept
        return found

    def _layer(self, layer: int, hidden: Tensor, rows: Tensor, tap: _Capturing | _Setting) -> Tensor:
        args, kwargs = self.response.base.arguments[layer].select(rows, 0)
        with tapped(self.model.hf, tap), self.model.frozen(), ExitStack() as hooks:
            if isinstance(tap, _Setting) and "mlps" in tap.targets:
                target = tap.targets["mlps"]
                hooks.enter_context(site_hook(self.model.layers[layer], "mlps", hidden.shape[:2], lambda _: target))
            output = self.model.layers[layer].module(hidden, *args, **kwargs)
        tap.require_used()
        self.response.cost.forward(*hidden.shape[:2])
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result


class _Capturing:
    """Keeps what the attention function of one layer receives."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.kept: dict[str, Tensor] = {}

    def attention_inputs(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.kept = {"q": q, "k": k, "v": v}
        return q, k, v

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor:
        return z_BTHD

    def require_used(self) -> None:
        if not self.kept:
            raise InterventionError(f"The attention of layer {self.layer} did not run, so nothing was received.")


class _Setting:
    """Sets the receivers' queries, keys and values of one layer."""

    def __init__(self, receivers: Receivers, layer: int, targets: dict[str, Tensor]) -> None:
        self.receivers, self.layer, self.targets = receivers, layer, targets
        self.fired: defaultdict[str, int] = defaultdict(int)

    def attention_inputs(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._set("q", q), self._set("k", k), self._set("v", v)

    def _set(self, kind: str, value: Tensor) -> Tensor:
        if kind not in self.targets:
            return value
        units = self.receivers.at(self.layer, kind)
        value = value.clone()
        value[:, units] = self.targets[kind][:, units]
        self.fired[kind] += 1
        return value

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor:
        return z_BTHD

    def require_used(self) -> None:
        for kind in set(self.targets) - {"mlps"}:
            if self.fired[kind] != 1:
                raise InterventionError(
                    f"The {kind} of layer {self.layer} were set {self.fired[kind]} times, not once."
                )
