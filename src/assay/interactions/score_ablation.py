"""Set attention scores of single rows to the row's mean score and run the rest of the model again.

The intervention is made in assay's own attention function; the softmax is redone there, and everything after it is
computed anew, from the layer of the row and from its query on (`assay.engine.replay`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.engine.gradients import read_metric
from assay.engine.replay import Lane, Replay, ReplayTap
from assay.engine.response import Response
from assay.errors import InterventionError
from assay.interactions.attention_rows import MASKED, ablated


@dataclass(frozen=True)
class ScoreLane(Lane):
    """A sequence in which one row of attention loses one or two of its keys."""

    layer: int
    head: int
    query: int
    keys: tuple[int, int]
    """One key twice stands for that key alone."""
    scores: tuple[float, float]
    """What the keys' scores are in the base run."""

    @property
    def entry(self) -> int:
        return self.layer


@torch.no_grad()
def losses(response: Response, lanes: Sequence[ScoreLane]) -> Tensor:
    """(N,) metric(base) - metric(ablated) of each lane, in float64 and the lanes' order.

    Raises:
        InterventionError: a row did not hold its recorded scores, or was not ablated exactly once.
    """
    model, batch = response.model, response.batch
    response = response.of(response.components)  # proves that a replay ends where the recording did
    order = sorted(range(len(lanes)), key=lambda i: lanes[i].layer)
    found = torch.zeros(len(lanes), dtype=torch.float64, device=model.device)
    by_number = model.family.counts_positions or model.has_foreign_hooks

    def run(part: slice) -> None:
        places = order[part]
        chosen = [lanes[i] for i in places]
        first = min(response.end_start, *(lane.query for lane in chosen))
        replay = _ScoreReplay(
            model,
            response.base,
            response.source,
            0 if by_number else first,
            response.mask,
            response.cost,
            end_start=response.end_start,
        )
        residual = replay.run(list(chosen), torch.zeros(len(chosen), device=model.device))
        rows = torch.tensor([lane.row for lane in chosen], device=model.device)
        values = read_metric(model, residual, batch, response.metric, rows, replay.end_start)
        found[places] = (response.base_values[rows] - values).double()
        response.cost.interventions += len(chosen)
        response.advance(len(chosen))

    response.portions.run(len(order), run, lambda first: response.lanes_at_once(0, lanes[order[first]].layer))
    return found


class _ScoreReplay(Replay):
    def tap(self, lanes: list[Lane], strength: Tensor) -> ReplayTap:
        return _ScoreTap(self, lanes, strength)


class _ScoreTap(ReplayTap):
    """Ablates each lane's scores when its layer's attention runs."""

    def attention_scores(self, layer: int, scores_NHtS: Tensor, sinks_H: Tensor | None) -> Tensor:
        mine = [(i, lane) for i, lane in enumerate(self.lanes) if isinstance(lane, ScoreLane) and lane.layer == layer]
        mine = [(i, lane) for i, lane in mine if lane.query >= self.start]
        if not mine:
            return scores_NHtS
        numbers = [i for i, _ in mine]
        heads, queries = [lane.head for _, lane in mine], [lane.query - self.start for _, lane in mine]
        keys = torch.tensor([lane.keys for _, lane in mine], device=scores_NHtS.device)
        rows = scores_NHtS[numbers, heads, queries]
        self._require_recorded_scores(rows, keys, [lane for _, lane in mine])
        changed = scores_NHtS.clone()
        changed[numbers, heads, queries] = ablated(rows, keys)
        for number in numbers:
            self.fired[number] += 1
        return changed

    def _require_recorded_scores(self, rows: Tensor, keys: Tensor, lanes: list[ScoreLane]) -> None:
        expected = torch.tensor([lane.scores for lane in lanes], dtype=torch.float64, device=rows.device)
        drift = (rows.gather(1, keys).double() - expected).abs().amax(1)
        size = rows.where(rows > MASKED, 0.0).abs().amax(1).clamp(min=1.0)
        if not (drift <= self.tolerance * size).all():
            worst = lanes[int((drift / size).argmax())]
            raise InterventionError(
                f"Head {worst.head} of layer {worst.layer} does not hold its recorded scores when they are ablated "
                f"(off by {drift.max().item():.3g}); the model changes between two runs of one prompt."
            )

    def require_all_fired(self) -> None:
        for lane, times in zip(self.lanes, self.fired, strict=True):
            if isinstance(lane, ScoreLane) and times != 1:
                raise InterventionError(
                    f"The ablation at query {lane.query} of head {lane.head} in layer {lane.layer} fired {times} times "
                    "instead of once."
                )
