"""Circuits that are run side by side on the same prompts, and the pieces that this is cut into."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from assay.circuits.ahead import Piece
from assay.circuits.contrast import Contrast, Study
from assay.circuits.graph import Flags, Graph
from assay.circuits.work import digest
from assay.engine.circuit_run import AbsentNeurons, circuit_bytes
from assay.methods.plan import LANES
from assay.model import Model


@dataclass(frozen=True)
class Circuits:
    """Those that are run, with the empty one last where its run is nobody's own."""

    kept: Flags
    neurons: Flags | None
    memory: int

    @classmethod
    def of(cls, study: Study, kept: Flags, neurons: Flags | None) -> Circuits:
        if study.ablation != "patch":
            nothing = np.zeros_like(kept[:1])
            if neurons is not None:  # MLPs stay, without their neurons: their biases are in every circuit
                nothing = study.graph.nodes(study.graph.are_mlps[None])
                neurons = np.concatenate([neurons, np.zeros_like(neurons[:1])])
            kept = np.concatenate([kept, nothing])
        return cls(kept, neurons, study.memory)

    @cached_property
    def digest(self) -> str:
        return digest(self.kept, self.neurons)

    def content(self, part: slice) -> str:
        return f"circuits {part.start}-{part.stop} of {self.digest}"

    def at_once(self, model: Model, graph: Graph, rows: int, positions: int) -> int:
        """How many run side by side: what fits into memory, but no more than keeps a processor busy."""
        fit = self.memory // (circuit_bytes(model, positions, ungrouped=graph.ungrouped) * rows)
        busy = fit if model.device.type != "cpu" else -(-LANES // rows)
        return max(1, min(fit, busy))

    def pieces(self, study: Study) -> list[Piece]:
        found = []
        for block, (_, rows) in enumerate(study.blocks):
            most = self.at_once(study.model, study.graph, rows.stop - rows.start, study.positions(block))
            for first in range(0, len(self.kept), most):
                part = slice(first, min(first + most, len(self.kept)))
                content = f"{study.name_of(block)}, {self.content(part)}"
                found.append(Piece(block, (part.start, part.stop), content))
        return found

    def values(self, contrast: Contrast, part: tuple[int, int]) -> NDArray[np.float64]:
        """(c, R)"""
        chosen, device = slice(*part), contrast.model.device
        neurons = None
        if self.neurons is not None:
            counterfactual = [contrast.neurons(layer) for layer in range(contrast.model.n_layers)]
            neurons = AbsentNeurons(torch.from_numpy(~self.neurons[chosen]).to(device), counterfactual)
        absent = contrast.graph.absent(self.kept[chosen], device)
        found: NDArray[np.float64] = contrast.runner().values(absent, neurons).double().cpu().numpy()
        return found
