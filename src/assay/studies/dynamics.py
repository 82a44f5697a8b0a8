"""One measurement at every checkpoint of a training: a table and figures over the steps.

OUT/dynamics.json         the training, and what is measured
OUT/points/seed-0-step-000100.json
                          one checkpoint: the SHA-256 of its weights, and the numbers
OUT/dynamics.csv          all of them, one line per checkpoint
OUT/accuracy.svg, ...     one figure per measured number, one line per seed
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.errors import OptionError, StoreError
from assay.model.loading import load
from assay.model.model import Model
from assay.model.wheels import sha256_of
from assay.store.differences import differences
from assay.store.files import make_folders
from assay.store.lock import FolderLock
from assay.studies.folder import read_json, write_json
from assay.studies.svg import Line, line_chart
from assay.training import Checkpoint, read_checkpoints
from assay.training.checkpoints import ABOUT

Measure = Callable[[Model, Checkpoint], Mapping[str, float | None]]
"""Numbers of a model by name, the same names for every checkpoint; None where one is undefined."""

DESCRIPTION = "dynamics.json"
OF_CHECKPOINT = ("seed", "step", "final", "loss", "trained", "accuracy")


def dynamics(
    training: str | Path,
    out: str | Path,
    measure: Measure,
    request: dict[str, Any],
    seeds: Collection[int] | None = None,
    tell: Callable[[str], object] = lambda line: None,
    at_most: int | None = None,
) -> pd.DataFrame:
    """Measure every checkpoint of a training that has not been measured yet, and write the table and its figures.

    Args:
        training: a folder of `assay.training.train`, whose seeds, or those wanted, are finished.
        out: the folder for what is measured; what is there already is not measured again.
        measure: called with each model, loaded and checked.
        request: what ``measure`` was told to do, as JSON has it; a folder holds one such request.
        seeds: only these.
        tell: called with a line after each checkpoint.
        at_most: so many checkpoints of each seed, evenly in their order, the first and the final one among them.

    Returns:
        One row per checkpoint: seed, step, whether it is the final one, loss and exact matches of the training, and
        what was measured (NaN where that is undefined).

    Raises:
        StoreError: no finished training, or a folder that holds something else.
        OptionError: a seed that the training does not have.
        AssayError: what ``measure`` raises.
    """
    training, out = Path(training).resolve(), Path(out).resolve()
    checkpoints = _thinned(read_checkpoints(training, seeds), at_most)
    about = {"training": read_json(training / ABOUT, "a training"), "measured": request}
    _require_same(out, about)
    make_folders(out)
    lock = FolderLock(out / "lock")
    lock.acquire()
    try:
        _require_same(out, about)
        write_json(out / DESCRIPTION, about)
        rows = []
        for number, checkpoint in enumerate(checkpoints, start=1):
            found = _point(out, checkpoint, measure)
            rows.append({**{name: getattr(checkpoint, name) for name in OF_CHECKPOINT}, **found})
            tell(f"{number} of {len(checkpoints)}: seed {checkpoint.seed}, step {checkpoint.step}")
        table = pd.DataFrame(rows)
        scratch = out / ".dynamics.csv"
        table.to_csv(scratch, index=False)
        scratch.rename(out / "dynamics.csv")
        write_figures(table, out)
    finally:
        lock.release()
    return table


def write_figures(table: pd.DataFrame, folder: Path) -> list[Path]:
    """One figure for each number of the table, over the steps (those from step 1 on), one line per seed."""
    written = []
    numbers = [name for name in table.columns if name not in ("seed", "step", "final")]
    for name in numbers:
        values = pd.to_numeric(table[name], errors="coerce")
        lines = [
            Line(f"seed {seed}", table.loc[rows, "step"].tolist(), values.loc[rows].tolist())
            for seed, rows in table.groupby("seed").groups.items()
        ]
        path = folder / f"{file_name(name)}.svg"
        path.write_text(line_chart(lines, x_title="step", y_title=name.replace("_", " "), log_x=True), "utf-8")
        written.append(path)
    return written


def file_name(name: str) -> str:
    """A name that every file system and shell takes, as in ``rho_in_abs-grad-delta``."""
    return re.sub(r"[^\w-]+", "-", re.sub(r"\|([^|]*)\|", r"abs-\1", name)).strip("-")


def _thinned(checkpoints: list[Checkpoint], at_most: int | None) -> list[Checkpoint]:
    if at_most is None:
        return checkpoints
    found = []
    for seed in dict.fromkeys(checkpoint.seed for checkpoint in checkpoints):
        of_seed = [checkpoint for checkpoint in checkpoints if checkpoint.seed == seed]
        places = np.linspace(0, len(of_seed) - 1, min(at_most, len(of_seed))).round().astype(int)
        found += [of_seed[place] for place in places.tolist()]
    return found


def _require_same(out: Path, about: dict[str, Any]) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise StoreError(f"{out} exists and is not a folder. Choose another --out.")
    if not (out / DESCRIPTION).exists():
        if any(path.name not in ("lock", f".{DESCRIPTION}") for path in out.iterdir()):
            raise StoreError(f"{out} exists already and holds no dynamics. Choose another --out.")
        return
    if different := differences(read_json(out / DESCRIPTION, "dynamics"), about):
        raise StoreError(f"{out} holds dynamics of another kind:\n" + "\n".join(different) + "\nChoose another --out.")


def _point(out: Path, checkpoint: Checkpoint, measure: Measure) -> dict[str, float | None]:
    path = out / "points" / f"seed-{checkpoint.seed}-step-{checkpoint.step:06d}.json"
    weights = sha256_of(checkpoint.folder / "model.safetensors")
    if path.exists():
        kept = read_json(path, "a checkpoint's numbers")
        if kept.get("weights_sha256") != weights:
            raise StoreError(f"{path} was measured on other weights than {checkpoint.folder} has now. Remove it.")
        values: dict[str, float | None] = kept["values"]
        return values
    found = {name: _number(name, value) for name, value in measure(load(checkpoint.folder), checkpoint).items()}
    if taken := [name for name in found if name in OF_CHECKPOINT]:
        raise OptionError(f"{taken[0]} is a column of the training's own; give what is measured another name.")
    write_json(path, {"weights_sha256": weights, "values": found})
    return found


def _number(name: str, value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        raise OptionError(f"{name} is infinite, which no table or figure can show.")
    return float(value)
