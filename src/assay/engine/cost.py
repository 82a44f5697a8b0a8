"""What a run cost, in passes really made and in seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class CostMeter:
    """Counts token positions times layers, forward and backward.

    One *forward-equivalent* is one forward pass of every prompt of the run through every layer; a
    backward pass counts as two. Embedding and unembedding are not counted.
    """

    layer_tokens_forward: int = 0
    layer_tokens_backward: int = 0
    interventions: int = 0
    """Patched sequences that were run (component x row)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of work, stage by stage: added up over processes, and over sittings for what was kept of each."""

    def forward(self, sequences: int, positions: int, layers: int = 1) -> None:
        self.layer_tokens_forward += sequences * positions * layers

    def backward(self, sequences: int, positions: int, layers: int = 1) -> None:
        self.layer_tokens_backward += sequences * positions * layers

    def since(self, before: CostMeter) -> CostMeter:
        """What was spent after ``before``, a copy of this meter, was made."""
        return CostMeter(
            self.layer_tokens_forward - before.layer_tokens_forward,
            self.layer_tokens_backward - before.layer_tokens_backward,
            self.interventions - before.interventions,
            {name: total - before.seconds.get(name, 0.0) for name, total in self.seconds.items()},
        )

    def add(self, other: CostMeter) -> None:
        self.layer_tokens_forward += other.layer_tokens_forward
        self.layer_tokens_backward += other.layer_tokens_backward
        self.interventions += other.interventions
        for name, seconds in other.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def summary(self, layer_tokens_per_forward: int) -> dict[str, Any]:
        """Totals; ``layer_tokens_per_forward`` is what one plain pass of all prompts takes."""
        spent = self.layer_tokens_forward + 2 * self.layer_tokens_backward
        return {
            "forward_equivalents": spent / layer_tokens_per_forward,
            "layer_tokens_forward": self.layer_tokens_forward,
            "layer_tokens_backward": self.layer_tokens_backward,
            "interventions": self.interventions,
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
        }
