"""What stages will cost, in the meter's own unit: token positions times layers, forward 1 and backward 2.

Passes that rounding, equal beginnings or zero patches save are not foreseen, so a run costs no more than is said here
(unless memory runs out and something is run twice).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.engine.batches import Batch
from assay.engine.response import Response
from assay.methods.method import Setting


@dataclass(frozen=True, eq=False)
class Prices:
    """In layer tokens."""

    exact: NDArray[np.float64]
    """(C,) an exact run of each component on all prompts. At least 1."""
    hvp: NDArray[np.float64]
    """(C,) a Hessian-vector product at a point of each component's own patch, on all prompts."""
    recordings: float
    """Base and source runs that every stage needs, and the proof that replay is faithful."""
    gradient: float
    """A graph from the first difference on, and a pass back through it."""
    probe: float
    """A Hessian-vector product through that graph."""

    @classmethod
    def of(cls, setting: Setting, batches: Sequence[Batch]) -> Prices:
        model = setting.model
        full = suffix = last = 0
        for batch in batches:
            response = Response(model, batch, setting.metric, setting.components[:1])
            full += batch.rows * batch.positions
            suffix += batch.rows * (batch.positions - response.start)
            last += batch.rows * (batch.positions - max(response.start, response.end_start))
        # Of the last layer a replay runs only what the metric reads.
        layers = np.array([model.n_layers - component.entry for component in setting.components], np.float64)
        replays = np.where(layers > 0, (layers - 1) * suffix + last, 0)
        through = suffix * model.n_layers
        return cls(
            exact=np.maximum(replays, 1.0),
            # A gradient's backward pass, tangents up and gradients back down run all positions of every layer.
            hvp=np.maximum(replays, 1.0) + 5 * layers * suffix,
            recordings=float(full * model.n_layers + through + (model.n_layers - 1) * suffix + last),
            gradient=3.0 * max(through, 1),
            probe=3.0 * through,
        )

    def estimates(self, probes: int) -> float:
        """First order at both ends and curvature of all components of one kind."""
        return self.recordings + 2 * self.gradient + probes * self.probe
