"""Scores edges and runs circuits of every setting into a folder. Whatever is finished is not done again.

FOLDER/study.json                         sizes
FOLDER/<setting>/prompts.json             pairs, and whether the model can do the task
FOLDER/<setting>/<method>.safetensors     mean score of every edge, metric of every circuit on every pair
FOLDER/<setting>/<method>.json            cost and parameters; written last
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from assay.circuits import EdgeScores, Graph, circuit_curve, edge_scores, ensemble
from assay.circuits.faithfulness import CircuitValues
from assay.circuits.registry import edge_method
from assay.data.readers import PromptSource
from assay.errors import DataError, StoreError
from assay.methods.sharded import Jobs
from assay.methods.spread import spread
from assay.model import Model
from assay.store.differences import differences
from assay.studies.folder import read_json, write_json
from assay.studies.gim_circuits.choosing import Chosen, choose
from assay.studies.gim_circuits.settings import ENSEMBLES, METHODS, ONE_RANKING, RULES, Setting, Sizes

STUDY, PROMPTS = "study.json", "prompts.json"
WHAT = "a study of circuits"
RANKINGS = ("signed", "absolute")


@dataclass(frozen=True)
class Found:
    """What one method gives in one setting."""

    scores: NDArray[np.float64]
    """(E,) means."""
    circuits: dict[str, CircuitValues]
    """By ranking."""
    cost: dict[str, Any]


def carry_out(
    folder: Path,
    sizes: Sizes,
    settings: Sequence[Setting],
    load: Callable[[str], Model],
    data: Mapping[str, PromptSource] | None = None,
    say: Callable[[str], object] = lambda _: None,
    jobs: Jobs = None,
) -> None:
    """Measure what is not measured yet.

    Args:
        load: a model by its name; called once for consecutive settings of a model, and only where something is missing.
        data: questions of data sets, by their names.
        say: told of each setting and method.
        jobs: as in `assay.measure`; methods are measured side by side.

    Raises:
        StoreError: the folder holds a study of other sizes, data or weights, or cannot be written.
        AssayError: as `assay.circuits.edge_scores` and `assay.circuits.circuit_curve`.
    """
    begin(folder, sizes)
    model: tuple[str, Model] | None = None
    for number, setting in enumerate(settings, 1):
        title = f"{number} of {len(settings)}: {setting.model}, {setting.task}"
        inside, questions = folder / setting.folder, (data or {}).get(setting.task)
        chosen = read_chosen(inside)
        if chosen is not None and questions is not None and chosen.sha256 != questions.sha256:
            raise StoreError(f"{inside} holds questions of a file with other content. Choose another --out.")
        if chosen is not None and not unfinished(inside, chosen):
            say(f"{title}: measured already")
            continue
        say(title)
        if model is None or model[0] != setting.model:
            model = setting.model, load(setting.model)
        if chosen is None:
            if setting.is_data_set and questions is None:
                raise DataError(f"The data set {setting.task} is not there: --data {setting.task}=FILE.")
            chosen = choose(model[1], setting, sizes, questions)
            write_json(inside / PROMPTS, chosen.to_dict())
        if chosen.weights != model[1].weight_hash:
            raise StoreError(f"{inside} was begun with other weights of {setting.model}. Choose another --out.")
        if not chosen.passes:
            say("  left out: the model cannot do it")
        wanted = unfinished(inside, chosen)
        for late in (False, True):
            together = [method for method in wanted if (method in ENSEMBLES) == late]
            tasks = [_Task(setting, sizes, chosen, method, _members(inside, method)) for method in together]
            with closing(spread(_measure, tasks, model[1], jobs)) as measured:
                for task, found in measured:
                    say(f"  {task.method}")
                    _write(inside / task.method, *found)


def begin(folder: Path, sizes: Sizes) -> None:
    """Note the sizes in the folder, or see that they are those that are noted there."""
    now = json.loads(json.dumps(asdict(sizes)))
    if not (folder / STUDY).exists():
        write_json(folder / STUDY, now)
    elif different := differences(read_json(folder / STUDY, WHAT), now):
        raise StoreError(f"{folder} holds a study of other sizes:\n" + "\n".join(different) + "\nChoose another --out.")


def read_chosen(inside: Path) -> Chosen | None:
    """The prompts of a setting; None if they were not chosen yet.

    Raises:
        StoreError: damaged.
    """
    if not (inside / PROMPTS).is_file():
        return None
    try:
        return Chosen.from_dict(read_json(inside / PROMPTS, WHAT))
    except (KeyError, TypeError, DataError) as error:
        raise StoreError(f"{inside / PROMPTS} is damaged: {error}") from error


def unfinished(inside: Path, chosen: Chosen) -> list[str]:
    """Methods that are not measured yet; none of a task that the model cannot do."""
    return [method for method in METHODS if chosen.passes and not (inside / f"{method}.json").is_file()]


def read_found(inside: Path, method: str) -> Found | None:
    """None if it is not measured.

    Raises:
        StoreError: damaged.
    """
    if not (inside / f"{method}.json").is_file():
        return None
    cost = read_json(inside / f"{method}.json", WHAT)["cost"]
    try:
        tensors = load_file(inside / f"{method}.safetensors")
        circuits = {
            ranking: CircuitValues(tensors[ranking], tensors["full"], tensors["empty"])
            for ranking in RANKINGS
            if ranking in tensors
        }
        return Found(tensors["scores"], circuits, cost)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise StoreError(f"{inside / method}.safetensors is damaged: {error}") from error


@dataclass(frozen=True)
class _Task:
    setting: Setting
    sizes: Sizes
    chosen: Chosen
    method: str
    members: dict[str, Found]
    """Of an ensemble."""

    def __str__(self) -> str:
        return f"{self.method} of {self.setting.folder}"


def _measure(model: Model, task: _Task) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays by name, and what else is kept."""
    scores = _scores(model, task)
    tensors = {"scores": scores.mean}
    for ranking in RANKINGS[: 1 if task.method in ONE_RANKING else 2]:
        curve = circuit_curve(
            model, task.chosen.evaluated, scores, sizes=task.sizes.shares, absolute=ranking == "absolute", force=True
        )
        found = curve.curve.circuits
        tensors |= {ranking: found.values, "full": found.full, "empty": found.empty}
    return tensors, {"cost": scores.cost, "configuration": scores.configuration}


def _write(path: Path, tensors: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
    written = path.parent / f"{path.name}.safetensors"
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, written)
    except OSError as error:
        raise StoreError(f"Cannot write {written}: {error.strerror or error}.") from error
    write_json(path.parent / f"{path.name}.json", about)


def _scores(model: Model, task: _Task) -> EdgeScores:
    method, sizes, pairs = task.method, task.sizes, task.chosen.scored
    if method in ENSEMBLES:
        graph = Graph.of(model)
        return ensemble(
            [
                EdgeScores(graph, found.scores[None], pairs, name, "", "none", False, False, cost=found.cost)
                for name, found in task.members.items()
            ]
        )
    parameters: dict[str, Any] = {
        "eap-ig-inputs": {"steps": sizes.steps},
        "edge-masks": {"steps": sizes.mask_steps},
    }.get(method, {})
    if method in RULES:
        method, parameters = "eap", {"rules": method}
    return edge_scores(model, pairs, edge_method(method, **parameters), force=True)


def _members(inside: Path, method: str) -> dict[str, Found]:
    """What an ensemble is made of."""
    members = {}
    for name in ENSEMBLES.get(method, ()):
        found = read_found(inside, name)
        if found is None:
            raise StoreError(f"{inside} lacks {name}, which an ensemble is made of.")
        members[name] = found
    return members
