"""What was measured of a setting, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.comparison import Comparison, compared, describe_method
from assay.data.baseline import Baseline
from assay.methods.method import Method
from assay.methods.registry import METHODS
from assay.scores import Scores
from assay.studies.folder import read_json
from assay.studies.patching_errors.measuring import SAMPLE, STUDY
from assay.studies.patching_errors.settings import OTHERS, SAMPLED, Setting, Sizes
from assay.studies.recorded import Recorded
from assay.studies.response_tables import RecordedResponse

Array = NDArray[np.float64]
WHAT = "a study of patching errors"


@dataclass(frozen=True, eq=False)
class Components:
    """Some components of a setting: exact effects, and what every method makes of them."""

    exact: Recorded
    weights: Array
    """(C,) how many of the population each stands for."""
    estimates: dict[str, Array]
    """(C, n) by the method's full name."""

    @property
    def truth(self) -> Array:
        """(C, n)"""
        return self.exact.values

    @property
    def response(self) -> RecordedResponse:
        return RecordedResponse(self.exact.tables)

    def error(self, name: str) -> float:
        """Sum of |estimate - exact| over that of |exact|, over components (by weight) and prompts."""
        truth = self.truth if METHODS[name.split(":")[0]].signed else np.abs(self.truth)
        return float(self.weights @ np.abs(self.estimates[name] - truth).sum(1) / self.total)

    @property
    def total(self) -> float:
        """Sum of |exact|, by weight."""
        return float(self.weights @ np.abs(self.truth).sum(1))

    def compared(self, name: str, method: Method, layers: int) -> Comparison:
        """As `assay compare` does, which knows of no weights."""
        scores = replace(self.exact, values=self.estimates[name], method=method.name, signed=method.signed)
        return compared(method, scores, self.exact, 5, layers)


@dataclass(frozen=True, eq=False)
class Measured:
    """A setting of which everything was measured."""

    setting: Setting
    baseline: Baseline
    metric: str
    unit: str
    layers: int
    population: int
    left_out: dict[str, str]
    """Methods that are not defined here, and why."""
    sample: Components | None
    """None if the model does not tell clean from corrupted prompts."""
    followed: Components | None
    """Those of the sample whose response is known on the way too."""
    first: Array
    far_end: Array
    quadratic: Array
    quadratic_stderr: Array
    """(C, n) of the sample, as screening estimates them for the whole population."""


def read_sizes(folder: Path) -> Sizes:
    """Of the study in a folder.

    Raises:
        StoreError: there is none, or it is damaged.
    """
    content = read_json(folder / STUDY, WHAT)
    tuples = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
    return Sizes(**{**content, **tuples})


def read_setting(folder: Path, setting: Setting, sizes: Sizes) -> Measured | None:
    """None if it was not measured to its end.

    Raises:
        StoreError: files are damaged or missing.
    """
    inside = folder / setting.folder
    if not (inside / SAMPLE).is_file():
        return None
    sample = read_json(inside / SAMPLE, WHAT)
    whole = Recorded.load(inside / "estimates")
    members = sample["members"]
    tables = {name: table[members] for name, table in whole.tables.items()}
    studied = followed = None
    if whole.baseline.tells_apart:
        path = Recorded.load(inside / "path")
        same = sample["path"] == members
        ends = path if same else Recorded.load(inside / "ends")
        others = {name: Scores.load(inside / name).values for name in OTHERS if (inside / name / "run.json").is_file()}
        others[SAMPLED] = tables["first order"] + tables["quadratic"]
        studied = Components(ends, np.array(sample["weights"]), _estimates(ends, sizes.on_ends) | others)
        place = [members.index(i) for i in sample["path"]]
        of_path = {name: values[place] for name, values in others.items()}
        followed = Components(path, np.array(sample["path_weights"]), _estimates(path, sizes.on_path) | of_path)
    return Measured(
        setting=setting,
        baseline=whole.baseline,
        metric=whole.metric,
        unit=whole.unit,
        layers=1 + max(component.layer for component in whole.components),
        population=sample["population"],
        left_out=sample["left_out"],
        sample=studied,
        followed=followed,
        first=tables["first order"],
        far_end=tables["far end"],
        quadratic=tables["quadratic"],
        quadratic_stderr=np.sqrt(tables["variance"]),
    )


def _estimates(recorded: Recorded, methods: list[Method]) -> dict[str, Array]:
    response = RecordedResponse(recorded.tables)
    return {describe_method(method): response.estimates(method) for method in methods}
