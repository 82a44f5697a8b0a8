"""What a screening found: the scores of all components, those that matter measured, and how sure the others are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.errors import OptionError
from assay.reliability import Calibration, bootstrap_mean, violation_rate
from assay.scores import Scores
from assay.store import RunFiles

SOURCES = ("exact", "no change", "first order", "first order + curvature", "hvp", "ms-hvp")
"""How a value is known. ``no change``: the patch changes nothing on any prompt, so the effect is 0."""
KIND = "screening"
"""Of run folder, in run.json."""
ARRAYS = (
    "leaders", "unsettled", "source", "lower", "upper", "reliability", "bound", "flagged", "first_order", "far_end",
    "quadratic", "quadratic_stderr", "pilot",
)  # fmt: skip
"""Kept in tensors.safetensors, as ``screening.<name>``."""
SAVED = (
    "level", "probes", "threshold", "found_outside", "expected_outside", "outside_bound", "exhausted", "smooth",
    "notes",
)  # fmt: skip
"""Kept in run.json."""
CALIBRATION = ("kind", "level", "uses_curvature", "quantile", "widened")


@dataclass(frozen=True)
class Stage:
    """What a step of the workflow cost."""

    name: str
    forward_equivalents: float
    seconds: float
    runs: int = 0
    """Components that were patched exactly."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScreenedScores(Scores):
    """Effects of C components on n examples, known in different ways.

    ``values`` are exact where a component was patched, else estimates. Arrays over components are in the order of
    ``components``; intervals are for the mean effect on these prompts.
    """

    leaders: NDArray[np.intp]
    """The k components of largest absolute mean effect among those whose effect is known exactly, largest first."""
    unsettled: NDArray[np.intp]
    """Components not patched that may still belong to the top k, as far as anybody knows."""
    source: NDArray[np.intp]
    """(C,) how each value is known, as an index into `SOURCES`."""
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    """(C,) ends of the interval; NaN where there is none, the effect where it is known."""
    reliability: NDArray[np.float64]
    """(C,) R; NaN where the first-order term is below the floor or no curvature was probed."""
    bound: NDArray[np.float64]
    """(C,) estimated bound on |exact effect - first order|, where MS-HVP gave one; NaN elsewhere."""
    flagged: NDArray[np.bool_]
    """(C,) curvature surely exceeds ``threshold`` times the first-order term."""
    verdicts: tuple[str, ...]
    """Of each component: ``verified``, ``bounded`` or ``unresolved``."""
    first_order: NDArray[np.float64]
    far_end: NDArray[np.float64]
    quadratic: NDArray[np.float64]
    quadratic_stderr: NDArray[np.float64]
    """(C, n) first order by the gradient at the base run and at the source run, and half the curvature at the base run
    with its standard error; NaN where none were made."""
    pilot: NDArray[np.intp]
    calibrations: tuple[Calibration, ...]
    level: float
    probes: int
    """Of curvature, for each kind, as really used: 0 if everything was patched, or model or metric did not allow it."""
    threshold: float
    found_outside: int
    expected_outside: float | None
    """None if there are components without interval."""
    outside_bound: int
    exhausted: tuple[str, ...]
    """Kinds of which every component was patched because that cost less, or because there was no other way."""
    smooth: bool
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]
    """Sentences about what was done otherwise than asked, and why."""

    @property
    def runs(self) -> int:
        """Components that were patched exactly."""
        return int((self.source == SOURCES.index("exact")).sum())

    @property
    def certified(self) -> bool:
        """Every effect is known exactly."""
        return all(verdict == "verified" for verdict in self.verdicts)

    @property
    def screened(self) -> bool:
        """Every one of the top k was patched, and no unverified interval reaches the k-th value."""
        return not len(self.unsettled)

    @property
    def bound_violations(self) -> float | None:
        """Share of bounds that the exact error of the first order exceeds; None where none can be checked."""
        known = self.source == SOURCES.index("exact")
        error = (self.values - self.first_order).mean(1)[known]
        rate = violation_rate(self.bound[known], error)
        return None if np.isnan(rate) else rate

    def summary(self) -> dict[str, Any]:
        """On the whole, for JSON."""
        names = ("runs", "certified", "screened", "expected_outside", "outside_bound", "bound_violations")
        return {name: getattr(self, name) for name in names}

    def to_pandas(self) -> pd.DataFrame:
        """One row per component, as of `Scores`, with interval, reliability and verdict."""
        frame = super().to_pandas()
        for name in ("lower", "upper", "reliability"):
            frame[name] = getattr(self, name)
        frame["verdict"] = list(self.verdicts)
        return frame

    def top(self, k: int = 20) -> pd.DataFrame:
        """The leaders, then the other components by absolute value; ``k`` rows. Everything but ``mean`` is importance.

        ``low`` and ``high`` are the interval; ``prompts_low`` and ``prompts_high`` say what other prompts might give
        (95 %, bootstrap over pairs), for the value as it is.

        Raises:
            OptionError: k below 1.
        """
        if k < 1:
            raise OptionError(f"The number of components to show must be at least 1, not {k}.")
        by_size = np.argsort(-np.abs(self.importance), kind="stable")
        order = np.concatenate([self.leaders, by_size[~np.isin(by_size, self.leaders)]])[:k]
        ends = np.sort(self.sign * np.stack([self.lower, self.upper]), axis=0)
        spread = bootstrap_mean(self.sign * self.values[order], seed=self.configuration.get("seed", 0))
        return pd.DataFrame(
            {
                "component": [self.components[i].name for i in order],
                "importance": self.importance[order],
                "low": ends[0, order],
                "high": ends[1, order],
                "reliability": self.reliability[order],
                "verdict": [str(self.verdicts[i]) for i in order],
                "flagged": self.flagged[order],
                "source": [SOURCES[self.source[i]] for i in order],
                "stderr_prompts": spread.stderr,
                "prompts_low": spread.lower,
                "prompts_high": spread.upper,
                "mean": self.values[order].mean(1),
            }
        )

    @property
    def _ended_at_a_limit(self) -> bool:
        return not self.screened

    def _files(self) -> RunFiles:
        files = super()._files()
        tensors = {f"screening.{name}": getattr(self, name) for name in ARRAYS}
        for each in self.calibrations:
            for name in ("members", "sample"):
                tensors[f"screening.calibration.{each.kind}.{name}"] = getattr(each, name)
        screening = {
            **self.summary(),
            **{name: getattr(self, name) for name in SAVED},
            "calibrations": [{name: getattr(each, name) for name in CALIBRATION} for each in self.calibrations],
            "stages": [asdict(stage) for stage in self.stages],
        }
        run = {**files.run, "kind": KIND, "screening": screening}
        return replace(files, run=run, tensors={**files.tensors, **tensors})

    @classmethod
    def _further_fields(cls, files: RunFiles) -> dict[str, Any]:
        if files.run["kind"] != KIND:
            raise ValueError(f"run.json is that of {files.run['kind']}, not of a screening")
        screening, tensors = files.run["screening"], files.tensors
        calibrations = tuple(
            Calibration(
                **each,
                members=tensors[f"screening.calibration.{each['kind']}.members"],
                sample=tensors[f"screening.calibration.{each['kind']}.sample"],
            )
            for each in screening["calibrations"]
        )
        return {
            **{name: tensors[f"screening.{name}"] for name in ARRAYS},
            **{name: screening[name] for name in SAVED},
            **{name: tuple(screening[name]) for name in ("exhausted", "notes")},
            "verdicts": tuple(files.components["verdict"]),
            "calibrations": calibrations,
            "stages": tuple(Stage(**stage) for stage in screening["stages"]),
        }

    def _require_consistent(self, files: RunFiles) -> None:
        super()._require_consistent(files)
        count = len(self.components)
        if any(len(getattr(self, name)) != count for name in ("source", "lower", "upper", "flagged", "first_order")):
            raise ValueError("tensors.safetensors is of other components than the run")

    def __repr__(self) -> str:
        model = self.provenance.get("model", {}).get("name", "?")
        state = "certified" if self.certified else "screened" if self.screened else "stopped by the budget"
        return (
            f"ScreenedScores({model}, {self.pairs.task}: top {len(self.leaders)} of {len(self.components)} components, "
            f"{state}, {self.runs} exact runs, level {self.level:g}, {self.metric} in {self.unit})"
        )
