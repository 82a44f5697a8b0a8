"""Measures responses and estimates of every setting into a folder. Whatever is finished is not done again.

FOLDER/<setting>/estimates        first order at both ends and sampled curvature of the whole population
FOLDER/<setting>/ends             exact effects, and derivatives at the ends, of the components studied
FOLDER/<setting>/path             values and derivatives on the way, of those of them that are followed
FOLDER/<setting>/atp-star, ...    methods that are not read from responses, of the components studied
FOLDER/<setting>/sample.json      which components are studied and followed, and how many each stands for
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from assay.data.tasks import make_pairs
from assay.errors import OptionError, StoreError
from assay.methods.method import measure
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.screening.estimates import estimates_with
from assay.sites import Selection
from assay.store.differences import differences
from assay.studies.folder import read_json, write_json
from assay.studies.patching_errors.settings import HEADS, OTHERS, SCALES, Setting, Sizes
from assay.studies.recorded import Recorded, record
from assay.studies.response_tables import Points, recording_method

ESTIMATES = ("first order", "far end", "quadratic", "variance", "moves", "base")
"""Tables of `assay.screening.estimates.estimates_with`."""
STUDY = "study.json"
SAMPLE = "sample.json"


@dataclass(frozen=True)
class Sample:
    """Components of a population, by their place in ``estimates``, and those of them that are followed on the way."""

    members: list[int]
    weights: list[float]
    """How many of the population each of the members stands for."""
    path: list[int]
    path_weights: list[float]
    population: int
    """Components that the patch changes at all."""


def carry_out(
    folder: Path,
    sizes: Sizes,
    settings: Sequence[Setting],
    load: Callable[[str], Model],
    say: Callable[[str], object] = lambda _: None,
    progress: bool = False,
    jobs: Jobs = None,
) -> None:
    """Measure all settings that are not measured yet.

    Args:
        load: a model by its name; called once for consecutive settings of a model, and only where something is missing.
        say: told of each setting.
        jobs: as in `assay.measure`.

    Raises:
        StoreError: the folder holds a study of other sizes, or cannot be written.
        AssayError: as `assay.measure`.
    """
    begin(folder, sizes)
    model: tuple[str, Model] | None = None
    for number, setting in enumerate(settings, 1):
        title = f"{number} of {len(settings)}: {setting.model}, {setting.task_name}, {setting.site}"
        if (folder / setting.folder / SAMPLE).is_file():
            say(f"{title}: measured already")
            continue
        say(title)
        if model is None or model[0] != setting.model:
            model = setting.model, load(setting.model)
        _measure(folder / setting.folder, sizes, setting, model[1], progress, jobs)


def begin(folder: Path, sizes: Sizes) -> None:
    """Note the sizes in the folder, or see that they are those that are noted there."""
    now = json.loads(json.dumps(asdict(sizes)))
    if not (folder / STUDY).exists():
        write_json(folder / STUDY, now)
    elif different := differences(read_json(folder / STUDY, "a study of patching errors"), now):
        raise StoreError(f"{folder} holds a study of other sizes:\n" + "\n".join(different) + "\nChoose another --out.")


def _measure(folder: Path, sizes: Sizes, setting: Setting, model: Model, progress: bool, jobs: Jobs) -> None:
    options = {} if setting.corruption is None else {"corruption": setting.corruption}
    pairs = make_pairs(model, setting.task, sizes.pairs, sizes.seed, **options)
    estimates = record(
        estimates_with(sizes.probes), ESTIMATES, model, pairs, folder / "estimates",
        sites=setting.site, seed=sizes.seed, progress=progress, jobs=jobs,
    )  # fmt: skip
    sample = choose(estimates, sizes, setting.site)
    left_out = {}
    if estimates.baseline.tells_apart:
        members, path = (Selection([estimates.components[i] for i in of]) for of in (sample.members, sample.path))
        wanted = [("path", Points.of(sizes.on_path, SCALES), path)]
        if sample.path != sample.members:
            wanted.insert(0, ("ends", Points.of(sizes.on_ends), members))
        for part, points, of in wanted:
            record(
                recording_method(points), points.names, model, pairs, folder / part, sites=of, progress=progress,
                jobs=jobs,
            )  # fmt: skip
        for name in OTHERS:
            try:
                measure(name, model, pairs, sites=members, jobs=jobs, run_folder=folder / name)
            except OptionError as error:
                left_out[name] = str(error)
    write_json(folder / SAMPLE, {**asdict(sample), "left_out": left_out})


def choose(estimates: Recorded, sizes: Sizes, site: str) -> Sample:
    """All heads that a patch changes; of neurons a sample, by strata of the first-order term."""
    live = np.flatnonzero(estimates.tables["moves"].any(1))
    if site == HEADS or len(live) <= sizes.largest + sizes.random:
        return _sample(dict.fromkeys(live.tolist(), 1.0), None, len(live))
    order = live[np.argsort(-np.abs(estimates.values[live].mean(1)), kind="stable")]
    generator = np.random.default_rng([sizes.seed, 1])
    top, rest = order[: sizes.largest], order[sizes.largest :]
    others = generator.permutation(rest)[: sizes.random]
    members = dict.fromkeys(top.tolist(), 1.0) | dict.fromkeys(others.tolist(), len(rest) / len(others))
    if sizes.path is None:
        return _sample(members, None, len(live))
    first, second, third = sizes.path
    middle = generator.permutation(top[first:])[:second]
    followed = dict.fromkeys(top[:first].tolist(), 1.0)
    followed |= dict.fromkeys(middle.tolist(), (len(top) - first) / len(middle))
    followed |= dict.fromkeys(others[:third].tolist(), len(rest) / third)
    return _sample(members, followed, len(live))


def _sample(members: dict[int, float], followed: dict[int, float] | None, population: int) -> Sample:
    followed = members if followed is None else followed
    return Sample(list(members), list(members.values()), list(followed), list(followed.values()), population)
