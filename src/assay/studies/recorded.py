"""Runs of methods that give several values of every component, kept like any other run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data import PromptPairs
from assay.engine.cost import CostMeter
from assay.methods.method import Method
from assay.methods.plan import describe_cut, make_plan
from assay.methods.preparation import prepared
from assay.methods.sharded import Computer, Jobs, require_finished
from assay.model import Model
from assay.scores import Scores
from assay.sites import AnySites
from assay.store import RunFiles

KIND = "tables"
"""Of run folder, in run.json."""


@dataclass(frozen=True, kw_only=True)
class Recorded(Scores):
    """Scores of C components on n examples, and tables of the same shape. ``values`` is the first table."""

    tables: dict[str, NDArray[np.float64]]
    """(C, n) each, by name; kept in tensors.safetensors as ``tables.<name>``."""

    def _files(self) -> RunFiles:
        files = super()._files()
        tensors = {f"tables.{name}": np.asarray(table, np.float64) for name, table in self.tables.items()}
        run = {**files.run, "kind": KIND, "tables": list(self.tables)}
        return replace(files, run=run, tensors={**files.tensors, **tensors})

    @classmethod
    def _further_fields(cls, files: RunFiles) -> dict[str, Any]:
        if files.run["kind"] != KIND:
            raise ValueError(f"run.json is that of {files.run['kind']}, not of {KIND}")
        return {"tables": {name: files.tensors[f"tables.{name}"] for name in files.run["tables"]}}


def record(
    method: Method,
    names: Sequence[str],
    model: Model,
    pairs: PromptPairs,
    folder: Path,
    *,
    sites: AnySites,
    seed: int = 0,
    progress: bool = False,
    jobs: Jobs = None,
) -> Recorded:
    """Run a method of several outputs, shard by shard; on a finished folder, read it.

    It goes on too where the model cannot tell clean from corrupted: the baseline of the result says so.

    Args:
        names: of the outputs, in their order.
        folder: where the run is kept.
        jobs: as in `assay.measure`.

    Raises:
        AssayError: as `assay.measure`.
    """
    with prepared(method, model, pairs, sites=sites, seed=seed, jobs=jobs, run_folder=folder) as run:
        kept = run.folder
        assert kept is not None
        if kept.is_finished:
            require_finished(kept, run.configuration)
            return Recorded.load(kept.path)
        cost = CostMeter()
        baseline, measured = run.measure_baseline(cost, by_start=method.by_component, force=True)
        batches = [batch for batch, _ in measured]
        shards = make_plan(model, run.setting.components, batches, by_component=method.by_component)
        kept.begin(run.plan(**describe_cut(run.setting.components, shards)))
        computer = Computer(run, measured, cost, by_start=method.by_component, show=progress)
        tables = dict(zip(names, computer.values(method, shards), strict=True))
        found = Recorded(
            components=tuple(run.setting.components),
            values=next(iter(tables.values())),
            tables=tables,
            pairs=run.pairs,
            method=method.name,
            direction=run.direction,
            metric=run.setting.metric.name,
            unit=run.setting.metric.unit,
            exact=method.exact,
            estimates_effect=method.estimates_effect,
            signed=method.signed,
            baseline=baseline,
            cost=cost.summary(run.layer_tokens),
            configuration=run.configuration,
            provenance=run.provenance(method.source_note),
        )
        found.save(kept)
    return found
