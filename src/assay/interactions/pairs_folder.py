"""Run folders of interactions.

run.json             request, configuration, provenance, cost, components, group
scores.parquet       one line per pair that was run (`Interactions.to_pandas`)
components.parquet   one line per component
tensors.safetensors  every value per example, and the matrix of second derivatives
prompts.jsonl        the prompt pairs as they were used
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from assay.data.baseline import Baseline
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import AssayError, StoreError
from assay.interactions.joint_ablation import GroupEffect
from assay.interactions.pairs import Interactions
from assay.sites import Component
from assay.store import RunFiles, read_run, write_run

KIND = "interactions"
FIELDS = ("ablation", "metric", "unit", "cost", "configuration", "provenance", "request")
ARRAYS = ("single", "couples", "joint")
IF_ANY = ("slope", "second", "second_stderr")


def save_interactions(
    result: Interactions, folder: str | Path, finish: Callable[[Path], object] = lambda _: None
) -> None:
    """Write the folder whole, or nothing.

    Args:
        finish: called with the temporary folder, to add more files.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    pairs, group = result.pairs, result.group
    run = {
        "kind": KIND,
        **{name: getattr(result, name) for name in FIELDS},
        "task": {"name": pairs.task, "metric": pairs.metric, "options": pairs.options},
        "components": [asdict(component) for component in result.components],
        "group": group and {name: getattr(group, name) for name in ("first_order", "second_order", "seed")},
        "summary": result.summary(),
    }
    tensors = {name: getattr(result, name) for name in ARRAYS}
    tensors |= {name: array for name in IF_ANY if (array := getattr(result, name)) is not None}
    tensors |= {f"baseline.{name}": array.astype(float) for name, array in vars(result.baseline).items()}
    if group is not None:
        tensors["group.joint"] = group.joint
    files = RunFiles(run, result.to_pandas(), result.per_component(), pairs.to_records(), tensors)
    write_run(folder, files, finish=finish)


def load_interactions(folder: str | Path) -> Interactions:
    """Read a folder that `save_interactions` or ``assay interactions`` wrote.

    Raises:
        StoreError: not such a folder, or a damaged one.
    """
    files = read_run(folder)
    run, tensors = files.run, files.tensors
    if run.get("kind") != KIND:
        raise StoreError(f"{folder} holds no run of interactions.")
    try:
        task = run["task"]
        components = tuple(Component(**component) for component in run["components"])
        names = tuple(component.name for component in components)
        return Interactions(
            components=components,
            pairs=PromptPairs(
                tuple(PromptPair(**prompt) for prompt in files.prompts), task["name"], task["metric"], task["options"]
            ),
            baseline=Baseline(
                **{name.removeprefix("baseline."): array for name, array in tensors.items() if name[:9] == "baseline."}
            ),
            group=run["group"] and GroupEffect(names, tensors["single"], tensors["group.joint"], **run["group"]),
            single=tensors["single"],
            couples=tensors["couples"],
            joint=tensors["joint"],
            slope=tensors.get("slope"),
            second=tensors.get("second"),
            second_stderr=tensors.get("second_stderr"),
            **{name: run[name] for name in FIELDS},
        )
    except (KeyError, TypeError, ValueError, AssayError) as error:
        raise StoreError(f"The files of {folder} do not fit together: {error}") from error
