"""Run folders of audits.

run.json             request, configuration, provenance, cost, components, sets, orders of pruning
scores.parquet       one line per set, component and example: the causal loss
components.parquet   one line per set and component (`Audit.to_pandas`)
tensors.safetensors  every value of every set
prompts.jsonl        the prompt pairs of all sets, one after the other
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.audit.pruning import PrunedSet, Pruning
from assay.audit.result import Audit, AuditedSet
from assay.data.baseline import Baseline
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import AssayError, StoreError
from assay.interactions.joint_ablation import GroupEffect
from assay.sites import Component
from assay.store import RunFiles, read_run, write_run

KIND = "audit"
FIELDS = (
    "ablation", "mlp_weights", "metric", "unit", "gradient_metric", "cost", "configuration", "provenance", "request",
)  # fmt: skip
Tensors = dict[str, np.ndarray]


def save_audit(result: Audit, folder: str | Path, finish: Callable[[Path], object] = lambda _: None) -> None:
    """Write the folder whole, or nothing.

    Args:
        finish: called with the temporary folder, to add more files.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    tensors: Tensors = {}
    for number, of in enumerate(result.sets):
        values = {"causal": of.causal, "magnitude": of.magnitude}
        values |= {f"baseline.{name}": array.astype(float) for name, array in vars(of.baseline).items()}
        values |= {f"rival.{name}": array for name, array in of.rivals.items()}
        tensors |= {f"{number}.{name}": array for name, array in values.items()}
    run = {
        "kind": KIND,
        **{name: getattr(result, name) for name in FIELDS},
        "components": [asdict(component) for component in result.components],
        "sets": [
            {
                "name": of.name,
                "n": len(of.pairs),
                "seed": of.seed,
                "task": {"name": of.pairs.task, "metric": of.pairs.metric, "options": of.pairs.options},
            }
            for of in result.sets
        ],
        "pruning": None if result.pruning is None else _of_pruning(result.pruning, tensors),
        "summary": result.summary(),
    }
    losses = [
        pd.DataFrame(
            {
                "set": of.name,
                "component": np.repeat(result.names, of.causal.shape[1]),
                "example": np.tile(np.arange(of.causal.shape[1]), len(result.components)),
                "loss": of.causal.reshape(-1),
            }
        )
        for of in result.sets
    ]
    tables = [result.to_pandas(of).assign(set=of.name) for of in result.sets]
    prompts = [record for of in result.sets for record in of.pairs.to_records()]
    write_run(folder, RunFiles(run, pd.concat(losses), pd.concat(tables), prompts, tensors), finish=finish)


def _of_pruning(pruning: Pruning, tensors: Tensors) -> dict[str, Any]:
    for number, of in enumerate(pruning.sets):
        tensors[f"{number}.pruned.clean"] = of.clean
        tensors.update({f"{number}.pruned.by.{name}": table for name, table in of.values.items()})
        for name, group in of.groups.items():
            tensors[f"{number}.group.{name}.single"] = group.single
            tensors[f"{number}.group.{name}.joint"] = group.joint
    groups = {name: [list(group.names), group.seed] for name, group in pruning.sets[0].groups.items()}
    return {"sizes": pruning.sizes, "orders": pruning.orders, "groups": groups, "cost": pruning.cost}


def load_audit(folder: str | Path) -> Audit:
    """Read a folder that `save_audit` or ``assay audit`` wrote.

    Raises:
        StoreError: not such a folder, or a damaged one.
    """
    files = read_run(folder)
    run = files.run
    if run.get("kind") != KIND:
        raise StoreError(f"{folder} holds no audit.")
    try:
        sets, first = [], 0
        for number, of in enumerate(run["sets"]):
            prompts = files.prompts[first : first + of["n"]]
            first += of["n"]
            mine = _below(files.tensors, f"{number}.")
            pairs = PromptPairs(
                tuple(PromptPair(**prompt) for prompt in prompts), of["task"]["name"], of["task"]["metric"],
                of["task"]["options"],
            )  # fmt: skip
            baseline = Baseline(**_below(mine, "baseline."))
            rivals = {name: mine[f"rival.{name}"] for name in run["configuration"]["rivals"]}
            sets.append(AuditedSet(of["name"], pairs, baseline, mine["causal"], mine["magnitude"], rivals, of["seed"]))
        pruning = run["pruning"]
        return Audit(
            components=tuple(Component(**component) for component in run["components"]),
            sets=tuple(sets),
            pruning=None if pruning is None else _pruning(pruning, [of.name for of in sets], files.tensors),
            **{name: run[name] for name in FIELDS},
        )
    except (KeyError, TypeError, ValueError, AssayError) as error:
        raise StoreError(f"The files of {folder} do not fit together: {error}") from error


def _pruning(kept: dict[str, Any], names: list[str], tensors: Tensors) -> Pruning:
    sets = []
    for number, name in enumerate(names):
        mine = _below(tensors, f"{number}.")
        found = _below(mine, "pruned.by.")
        values = {measure: found[measure] for measure in kept["orders"]}
        groups = {
            of: GroupEffect(tuple(members), mine[f"group.{of}.single"], mine[f"group.{of}.joint"], seed=seed)
            for of, (members, seed) in kept["groups"].items()
        }
        sets.append(PrunedSet(name, mine["pruned.clean"], values, groups))
    orders = {name: tuple(order) for name, order in kept["orders"].items()}
    return Pruning(tuple(kept["sizes"]), orders, tuple(sets), kept["cost"])


def _below(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
