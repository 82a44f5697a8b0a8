"""Checkpoints of a training: when they are made, and folders that assay loads like any model.

DIR/training.json        the setting, the same for every seed
DIR/seed-0/log.jsonl     loss and accuracy at every evaluation
DIR/seed-0/step-000100/  model and tokenizer at a step, with a training.json that says which
DIR/seed-0/final/        the same where training ended
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from assay.errors import OptionError, StoreError
from assay.model.quiet import quiet_transformers
from assay.store.files import SCRATCH, sync

ABOUT = "training.json"
FINAL = "final"
FIRST, PER_DECADE = 10, 8


def is_scheduled(step: int) -> bool:
    """Whether a checkpoint is made: at step 0, and from step 10 on eight times a decade."""
    if step < FIRST:
        return step == 0
    exponent = round(PER_DECADE * math.log10(step))
    return step == round(10 ** (exponent / PER_DECADE))


@dataclass(frozen=True)
class Checkpoint:
    """A model of a training, as its folder says."""

    seed: int
    step: int
    loss: float | None
    trained: float | None
    """Share of the lines trained on since the evaluation before that were answered exactly."""
    accuracy: float
    """Share of the held-out examples that are answered exactly."""
    final: bool
    folder: Path


def seed_folder(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def write_checkpoint(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, about: dict[str, Any]
) -> None:
    """Write model and tokenizer whole, or nothing; what is there already is left."""
    if folder.exists():
        return
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=SCRATCH))
    try:
        with quiet_transformers():
            model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
        (scratch / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        for path in scratch.iterdir():
            sync(path)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_checkpoints(folder: str | Path, seeds: Collection[int] | None = None) -> list[Checkpoint]:
    """All models of a training folder that ended, in the order of seeds and steps; the last of a seed is its final one.

    Args:
        seeds: only these; others need not be finished.

    Raises:
        StoreError: no training folder, a damaged one, or one in which a seed is not finished.
        OptionError: a seed that the training does not have.
    """
    folder = Path(folder)
    if not (folder / ABOUT).is_file():
        raise StoreError(f"{folder} holds no training: it has no {ABOUT}. assay train makes such folders.")
    names = [re.fullmatch(r"seed-([0-9]+)", path.name) for path in folder.glob("seed-*")]
    there = sorted(int(name[1]) for name in names if name)
    if not there:
        raise StoreError(f"No seed of the training in {folder} has begun. Give the assay train command again.")
    for seed in seeds or ():
        if seed not in there:
            raise OptionError(f"The training has no seed {seed}, only {', '.join(map(str, there))}.")
    found: list[Checkpoint] = []
    for seed in there if seeds is None else sorted(set(seeds)):
        place = seed_folder(folder, seed)
        if not (place / FINAL).is_dir():
            raise StoreError(f"Seed {seed} in {folder} is not finished. Give the assay train command again.")
        of_seed = [read_checkpoint(path) for path in [*place.glob("step-*"), place / FINAL]]
        last = of_seed[-1].step
        found += sorted(
            (each for each in of_seed if each.final or each.step < last), key=lambda checkpoint: checkpoint.step
        )
    return found


def read_checkpoint(folder: Path) -> Checkpoint:
    """What a checkpoint's folder says of it.

    Raises:
        StoreError: it is missing or damaged.
    """
    if not any(folder.glob("*.safetensors")):
        raise StoreError(
            f"{folder} has lost its weights. Move its seed's folder away and give the assay train command again."
        )
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
        return Checkpoint(
            int(about["seed"]),
            int(about["step"]),
            about["loss"],
            about["trained"],
            float(about["accuracy"]),
            about["final"],
            folder,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{folder / ABOUT} is missing or damaged: {error}") from error
