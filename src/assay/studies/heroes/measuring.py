"""Audits every model of the study into a folder. Whatever is finished is not done again.

FOLDER/study.json                    sizes
FOLDER/models/<task>/                trainings, where no others are given
FOLDER/<setting>/chosen.json         the model, and the length out of distribution
FOLDER/<setting>/audit/              the audit, as `assay audit` keeps it
FOLDER/<setting>/groups.safetensors  losses of groups that are ablated together, and causal losses by log-prob
FOLDER/<setting>/groups.json         members of the groups; written last
FOLDER/<task>-dynamics/              the audit along the training of some seeds, as `assay dynamics` keeps it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from assay.audit import Audit, audit_gradients
from assay.audit.ranks import SHARE
from assay.audit.result import MAGNITUDE, AuditedSet
from assay.data import PromptPairs
from assay.data.tasks import make_pairs
from assay.errors import StoreError
from assay.interactions.joint_ablation import AblatedRuns, ablated_runs, group_ablation
from assay.methods import random_scores
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.sites import Selection
from assay.store.differences import differences
from assay.studies.dynamics import dynamics
from assay.studies.dynamics_audit import audit_at
from assay.studies.folder import read_json, write_json
from assay.studies.heroes.settings import LONGER, MODEL_MEAN, WINDOW, Setting, Sizes
from assay.training import train, training_setting
from assay.training.checkpoints import ABOUT, FINAL, read_checkpoint, seed_folder

STUDY, CHOSEN, AUDIT, GROUPS = "study.json", "chosen.json", "audit", "groups"
WHAT = "a study of heroes and bloats"
LOG_PROB = "log-prob"
ABLATION = "mean"
Say = Callable[[str], object]


@dataclass(frozen=True)
class Chosen:
    """A model of the study, and what it is audited on."""

    weights: str
    """Hash of the model's."""
    steps: int | None = None
    """Of the training."""
    held_out: float | None = None
    """Share of the training's held-out examples that are answered exactly."""
    reached: bool | None = None
    """Whether that is what the training wanted."""
    longer: dict[str, float] | None = None
    """Share answered exactly, by the length of longer prompts, up to the one that is taken."""
    length: int | None = None
    """Of prompts out of distribution; None where no length is within the window."""


def carry_out(
    folder: Path,
    sizes: Sizes,
    settings: Sequence[Setting],
    load: Callable[[str], Model],
    models: Path | None = None,
    say: Say = lambda _: None,
    processes: Jobs = None,
) -> bool:
    """Measure what is not measured yet.

    Args:
        load: a model by its name or folder; called only where something is missing.
        models: holds trainings of the sequence tasks, ``reverse`` and ``sort``; seeds that are not finished are taken
            up last, or left for later. The study trains its own if None.
        say: told of each setting.
        processes: the ``jobs`` of `assay.measure`, for ablations.

    Returns:
        Whether all is measured.

    Raises:
        StoreError: the folder holds a study of other sizes or weights, or cannot be written.
        AssayError: as `assay.audit_gradients` and `assay.training.train`.
    """
    begin(folder, sizes)
    trainings = models or folder / "models"
    jobs: list[Callable[[], bool]] = []
    for number, setting in enumerate(settings, 1):
        title = f"{number} of {len(settings)}: {setting.title}"

        def job(setting: Setting = setting, title: str = title) -> bool:
            place = folder / setting.folder
            if is_finished(place):
                say(f"{title}: measured already")
                return True
            source = _source(trainings, setting, own=models is None, say=say)
            if source is None:
                say(f"{title}: not trained yet")
                return False
            say(title)
            _measure(place, sizes, setting, load(source), Path(source), say, processes)
            return True

        jobs.append(job)
    for task in dict.fromkeys(setting.task for setting in settings if setting.is_trained):

        def along(task: str = task) -> bool:
            seeds = sizes.seeds_along()
            if not all(_is_trained(trainings / task, seed) for seed in seeds):
                say(f"{task} along its training: not trained yet")
                return False
            say(f"{task} along its training")
            _along(folder, sizes, task, trainings / task, seeds)
            return True

        jobs.append(along)
    later = [job for job in jobs if not job()]
    return not [job for job in later if not job()]


def begin(folder: Path, sizes: Sizes) -> None:
    """Note the sizes in the folder, or see that they are those that are noted there; seeds may become more."""
    now = json.loads(json.dumps(asdict(sizes)))
    if (folder / STUDY).exists():
        there = read_json(folder / STUDY, WHAT)
        if different := differences({**there, "seeds": sizes.seeds}, now):
            raise StoreError(
                f"{folder} holds a study of other sizes:\n" + "\n".join(different) + "\nChoose another --out."
            )
        now["seeds"] = max(sizes.seeds, there["seeds"])
    write_json(folder / STUDY, now)


def is_finished(place: Path) -> bool:
    return (place / f"{GROUPS}.json").is_file()


def read_chosen(place: Path) -> Chosen | None:
    """None if the setting was not begun.

    Raises:
        StoreError: damaged.
    """
    if not (place / CHOSEN).is_file():
        return None
    try:
        return Chosen(**read_json(place / CHOSEN, WHAT))
    except TypeError as error:
        raise StoreError(f"{place / CHOSEN} is damaged: {error}") from error


def _is_trained(training: Path, seed: int) -> bool:
    return (seed_folder(training, seed) / FINAL / ABOUT).is_file()


def _source(trainings: Path, setting: Setting, own: bool, say: Say) -> str | None:
    """Name or folder of the setting's model; None where others train it and are not done."""
    if not setting.is_trained:
        return setting.model
    training = trainings / setting.task
    if not _is_trained(training, setting.seed):
        if not own:
            return None
        say(f"training {setting.title}")
        train(training_setting(setting.task), training, setting.seed + 1)
    about = read_json(training / ABOUT, "a training")
    if about.get("setting", {}).get("task") != setting.task:
        raise StoreError(f"{training} is no training of {setting.task}.")
    return str(seed_folder(training, setting.seed) / FINAL)


def _measure(place: Path, sizes: Sizes, setting: Setting, model: Model, source: Path, say: Say, jobs: Jobs) -> None:
    chosen = read_chosen(place)
    if chosen is None:
        chosen = _choose(sizes, setting, model, source)
        write_json(place / CHOSEN, asdict(chosen))
    if chosen.weights != model.weight_hash:
        raise StoreError(f"{place} was begun with other weights of {setting.title}. Choose another --out.")
    reference = None
    if not (place / AUDIT).is_dir():
        say("  audit")
        _audit(sizes, setting, model, chosen, jobs).save(place / AUDIT)
    audit = Audit.load(place / AUDIT)
    if not setting.is_trained:
        reference = make_pairs(model, setting.task, sizes.model_references, sizes.seed)
    say("  groups")
    _groups(place, audit, model, reference, sizes.seed)


def _choose(sizes: Sizes, setting: Setting, model: Model, source: Path) -> Chosen:
    if not setting.is_trained:
        return Chosen(model.weight_hash)
    checkpoint = read_checkpoint(source)
    longer, within = {}, None
    for length in LONGER:
        pairs = make_pairs(model, setting.task, sizes.examples, sizes.seed, length=length)
        right = random_scores(model, pairs, metric="exact-match", force=True).baseline.clean.mean()
        longer[str(length)] = float(right)
        if WINDOW[0] <= right <= WINDOW[1]:
            within = length
            break
    reached = bool(read_json(source / ABOUT, "a training").get("reached", False))
    return Chosen(model.weight_hash, checkpoint.step, checkpoint.accuracy, reached, longer, within)


def _audit(sizes: Sizes, setting: Setting, model: Model, chosen: Chosen, jobs: Jobs) -> Audit:
    common: dict[str, Any] = {
        "ablation": ABLATION,
        "batches": sizes.batches,
        "seed": sizes.seed,
        "force": True,
        "jobs": jobs,
    }
    if not setting.is_trained:
        pairs = make_pairs(model, setting.task, sizes.model_references, sizes.seed)
        return audit_gradients(
            model, pairs[: sizes.model_examples], reference=pairs, rivals=sizes.model_rivals, mean=MODEL_MEAN, **common
        )
    within, beyond = (
        None if length is None else make_pairs(model, setting.task, sizes.examples, sizes.seed, length=length)
        for length in (sizes.length, chosen.length)
    )
    assert within is not None
    return audit_gradients(
        model, within, ood=beyond, rivals=sizes.rivals, rival_examples=sizes.rival_examples, pruning=True,
        pruned_examples=sizes.pruned_examples, **common,
    )  # fmt: skip


def groups_of(audit: Audit, of: AuditedSet) -> dict[str, list[int]]:
    """Numbers of components by name of a group: classes, the same by Delta alone as the paper has them, layers."""
    delta, limit = of.audits[MAGNITUDE].delta, SHARE * len(audit.components)
    classes = np.array(of.classes)
    found = {
        "heroes": classes == "hero",
        "bloats": classes == "bloat",
        "heroes by Delta": delta <= -limit,
        "bloats by Delta": delta >= limit,
    }
    layers = np.array([component.layer for component in audit.components])
    found |= {f"layer {layer}": layers == layer for layer in dict.fromkeys(layers.tolist())}
    return {name: np.flatnonzero(members).tolist() for name, members in found.items() if members.sum() > 1}


def _groups(place: Path, audit: Audit, model: Model, reference: PromptPairs | None, seed: int) -> None:
    tensors, members = {}, {}
    for number, of in enumerate(audit.sets):
        groups = groups_of(audit, of)
        members[of.name] = groups
        with _runs(audit, of, model, reference, audit.metric, seed) as runs:
            for name, joint in zip(groups, runs.losses(list(groups.values())), strict=True):
                tensors[f"{number}.{name}"] = joint
        if audit.gradient_metric != audit.metric:
            with _runs(audit, of, model, reference, LOG_PROB, seed) as runs:
                tensors[f"{number}.{LOG_PROB}"] = runs.losses([[i] for i in range(len(audit.components))])
    path = place / f"{GROUPS}.safetensors"
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)
    except OSError as error:
        raise StoreError(f"Cannot write {path}: {error.strerror or error}.") from error
    write_json(place / f"{GROUPS}.json", members)


@contextmanager
def _runs(
    audit: Audit, of: AuditedSet, model: Model, reference: PromptPairs | None, metric: str, seed: int
) -> Iterator[AblatedRuns]:
    method, sites = group_ablation(audit.ablation), Selection(audit.components)
    others, mean = (of.pairs, None) if reference is None else (reference, MODEL_MEAN)
    with ablated_runs(
        method, model, of.pairs, sites=sites, reference=others, mean=mean, metric=metric, seed=seed, force=True
    ) as runs:  # fmt: skip
        yield runs


def _along(folder: Path, sizes: Sizes, task: str, training: Path, seeds: list[int]) -> None:
    """At the length out of distribution of each seed, so that every seed is a folder of its own."""
    for seed in seeds:
        chosen = read_chosen(folder / Setting(task, seed=seed).folder)
        length = LONGER[0] if chosen is None or chosen.length is None else chosen.length
        within, beyond = {"length": sizes.length}, {"length": length}
        n, kept = sizes.dynamic_examples, along_folder(folder, task, seed)
        measure = audit_at(
            task, within, beyond, n=n, seed=sizes.seed, ablation=ABLATION, rivals=("|grad.delta|",),
            rival_examples=sizes.rival_examples,
        )  # fmt: skip
        request = {"task": task, "within": within, "beyond": beyond, "n": n, "seed": sizes.seed, "ablation": ABLATION}
        dynamics(training, kept, measure, request, [seed], at_most=sizes.points)


def along_folder(folder: Path, task: str, seed: int) -> Path:
    return folder / f"{task}-dynamics" / f"seed-{seed}"
