"""What an edge method declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from assay.circuits.contrast import Ablation, Contrast, Study
from assay.circuits.graph import Graph
from assay.circuits.work import Values


@dataclass(frozen=True)
class EdgeMethod:
    """A way to score edges; ``compute`` gives (R, E) of some rows."""

    name: str
    compute: Callable[[Contrast], Tensor]
    gradients: bool = True
    exact: bool = False
    estimates_effect: bool = True
    has_unit: bool = True
    parameters: dict[str, Any] = field(default_factory=dict)
    ablations: tuple[Ablation, ...] = ("patch",)
    second_order: bool = False
    """Takes second derivatives, so half precision is refused."""
    description: str = ""
    source: str = ""
    sweeps: Callable[[Graph], int] = lambda _: 1
    """How many parts of about equal work ``compute`` tells `Work.advance` of, for each row."""
    pieces: tuple[Callable[[Graph], Sequence[str]], Callable[[Contrast, int], Values]] | None = None
    """It keeps its pieces by itself, since all of them together may take hours: what they are called, and what gives
    them by their number."""
    clean_only: bool = False
    """Looks at the clean run alone, at all its positions."""
    learn: Callable[[Study], np.ndarray] | None = None
    """Instead of ``compute``: gives (1, E) scores that no single example has."""
