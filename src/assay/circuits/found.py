"""A tested circuit: scores, faithfulness over size, the circuit that was chosen; and its run folder.

Beside the files of its scores the folder has ``evaluation.jsonl``, the pairs that circuits were run on, and in
``tensors.safetensors`` the metric of every circuit on each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from assay.circuits.checks import require_level_of
from assay.circuits.edges import EdgeScores, label_of
from assay.circuits.faithfulness import CircuitValues, Curve, Estimate
from assay.circuits.folder import edges_of_files, files_of_edges
from assay.circuits.graph import Flags, Graph
from assay.circuits.runs import CircuitCurve
from assay.data.baseline import Baseline
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import AssayError, StoreError
from assay.scores import Scores
from assay.shown import Shown
from assay.store import RunFiles, RunFolder, read_run, write_run

KIND = "circuit"
RANKINGS = ("signed", "absolute")
_VALUES = ("values", "full", "empty")


@dataclass(frozen=True, eq=False)
class FoundCircuit(Shown):
    """Scores on some prompts, and on others what the circuits that they choose do."""

    level: str
    scores: EdgeScores | Scores
    evaluated: PromptPairs
    """What circuits were run on; none of it was used for the scores."""
    signed: CircuitCurve
    """Circuits of the highest scores; MIB's CPR."""
    absolute: CircuitCurve
    """Circuits of the highest absolute scores; MIB's CMD."""
    kept: Flags
    """The chosen circuit: (E,) edges; or sources and, after them, neurons layer by layer."""
    values: CircuitValues
    """Of the chosen circuit."""
    size: float | None
    """The share that it was chosen by, of what was scored ..."""
    target: float | None
    """... or the faithfulness that it was to reach."""
    seed: int = 0
    shared_prompts: int | None = None
    """How many distinct prompts of ``evaluated`` the scores were made on too, in other pairs; None if unknown."""
    request: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    random: CircuitCurve | None = None
    """Circuits that random scores choose, to compare with."""
    baseline: Baseline | None = None
    """Of the evaluation prompts."""
    setting: dict[str, Any] = field(default_factory=dict)
    """Metric, ablation, and how the circuit was chosen."""
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By stage: ``ends``, ``scores``, ``curves``, ``chosen`` or ``search``."""

    @property
    def curves(self) -> dict[str, CircuitCurve]:
        found = {"signed": self.signed, "absolute": self.absolute, "random": self.random}
        return {name: curve for name, curve in found.items() if curve is not None}

    def __post_init__(self) -> None:
        require_level_of(self.level, self.scores)

    @property
    def label(self) -> str:
        """What may be said of the scores; circuits are run."""
        return label_of(exact=self.scores.exact)

    @property
    def cpr(self) -> Estimate:
        return self.signed.curve.cpr

    @property
    def cmd(self) -> Estimate:
        return self.absolute.curve.cmd

    @property
    def faithfulness(self) -> Estimate:
        """Of the chosen circuit."""
        return self.values.estimates(seed=self.seed)[0]

    @property
    def graph(self) -> Graph:
        if isinstance(self.scores, EdgeScores):
            return self.scores.graph
        model = self.scores.provenance["model"]
        shape = model["layers"], model["heads"], model["key_value_heads"]
        return Graph(*shape, parallel=self.setting.get("parallel", False))

    def save(
        self,
        folder: str | Path | RunFolder,
        *,
        overwrite: bool = False,
        finish: Callable[[Path], object] = lambda _: None,
    ) -> Path:
        """Write a run folder.

        Args:
            overwrite: replace a run folder that is there already.
            finish: may add files before the folder gets its name.

        Raises:
            StoreError: the folder exists or cannot be written.
        """
        edges = isinstance(self.scores, EdgeScores)
        files = files_of_edges(self.scores) if isinstance(self.scores, EdgeScores) else self.scores._files()
        pairs = self.evaluated
        circuit = {
            "level": self.level,
            "size": self.size,
            "faithfulness": self.target,
            "seed": self.seed,
            "shared_prompts": self.shared_prompts,
            "evaluated": {"name": pairs.task, "metric": pairs.metric, "options": pairs.options},
            "curves": {name: describe_curve(curve) for name, curve in self.curves.items()},
            "setting": self.setting,
            "costs": self.costs,
        }
        run = {**files.run, "kind": KIND, "circuit": circuit, "label": self.label, "request": self.request}
        run["provenance"] = {**files.run["provenance"], **self.provenance}
        tensors = dict(files.tensors)
        for name, values in (
            *((name, curve.curve.circuits) for name, curve in self.curves.items()),
            *((f"{name}.complement", curve.complement) for name, curve in self.curves.items() if curve.complement),
            ("chosen", self.values),
        ):
            tensors |= {f"circuit.{name}.{part}": getattr(values, part) for part in _VALUES}
        if self.baseline is not None:
            tensors |= {f"circuit.baseline.{name}": array for name, array in vars(self.baseline).items()}
        tensors["circuit.kept"] = self.kept.astype(np.uint8)
        components = files.components if edges else files.components.assign(label=self.label)

        def further(scratch: Path) -> None:
            lines = [json.dumps(record, ensure_ascii=False) for record in pairs.to_records()]
            (scratch / "evaluation.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            finish(scratch)

        written = RunFiles(run, files.scores, components, files.prompts, tensors)
        if isinstance(folder, RunFolder):
            return folder.write(written, further)
        return write_run(folder, written, overwrite, further)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a run folder that `save` or ``assay circuit`` wrote.

        Raises:
            StoreError: not such a folder, or a damaged one.
        """
        files = read_run(folder)
        if files.run.get("kind") != KIND:
            raise StoreError(f"{folder} holds no circuit.")
        try:
            return cls._from(files, Path(folder))
        except (OSError, KeyError, TypeError, ValueError, AttributeError, AssayError) as error:
            raise StoreError(f"The files of {folder} do not fit together: {error}") from error

    @classmethod
    def _from(cls, files: RunFiles, folder: Path) -> Self:
        circuit, tensors = files.run["circuit"], files.tensors
        scores: EdgeScores | Scores
        if circuit["level"] == "edge":
            scores = EdgeScores(**edges_of_files(files, str(folder)))
        else:
            own = {name: array for name, array in tensors.items() if not name.startswith("circuit.")}
            scores = Scores._from_files(replace(files, tensors=own, components=files.components.drop(columns="label")))
        lines = (folder / "evaluation.jsonl").read_text("utf-8").split("\n")
        task = circuit["evaluated"]
        read = tuple(PromptPair(**json.loads(line)) for line in lines if line)

        def values(name: str) -> CircuitValues:
            found = CircuitValues(*(tensors[f"circuit.{name}.{part}"] for part in _VALUES))
            if found.values.ndim != 2 or not len(found.values) == len(found.full) == len(found.empty) == len(read):
                raise ValueError(f"the values of circuits ({name}) are not one for each prompt")
            return found

        curves = {}
        for name, kept in circuit["curves"].items():
            beside = f"{name}.complement"
            complement = values(beside) if f"circuit.{beside}.values" in tensors else None
            curve = Curve(kept["sizes"], values(name), seed=circuit["seed"])
            curves[name] = CircuitCurve(curve, kept["counts"], kept["pruned_counts"], complement, kept["settings"])
        prefix = "circuit.baseline."
        baseline = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
        return cls(
            circuit["level"], scores, PromptPairs(read, task["name"], task["metric"], task["options"]),
            curves["signed"], curves["absolute"], tensors["circuit.kept"].astype(bool), values("chosen"),
            circuit["size"], circuit["faithfulness"], circuit["seed"], circuit.get("shared_prompts"),
            files.run["request"], files.run["provenance"], curves.get("random"),
            Baseline(**baseline) if baseline else None, circuit.get("setting", {}), circuit.get("costs", {}),
        )  # fmt: skip


def describe_curve(curve: CircuitCurve) -> dict[str, Any]:
    return {
        "sizes": list(curve.curve.sizes),
        "counts": curve.counts,
        "pruned_counts": curve.pruned_counts,
        "settings": curve.settings,
        "faithfulness": [estimate_as_json(estimate) for estimate in curve.curve.faithfulness],
        "cpr": estimate_as_json(curve.curve.cpr),
        "cmd": estimate_as_json(curve.curve.cmd),
    }


def estimate_as_json(estimate: Estimate) -> dict[str, float | None]:
    """For JSON, which has no NaN."""
    return {name: value if np.isfinite(value) else None for name, value in estimate._asdict().items()}
