"""What a training is: task, model, optimiser, and when it ends."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from assay.data.tasks.modular_addition import LARGEST_SHARE, SMALLEST_SHARE
from assay.errors import OptionError, instead_of, refuse_unknown

POSITIONS = ("none", "rotary", "learned")


@dataclass(frozen=True)
class TrainingSetting:
    """One training, seed apart; `training_setting` gives the defaults of a task.

    ``steps`` is the most that are taken. Training ends before that at the first evaluation at which ``wanted`` of the
    held-out examples are answered exactly, unless it is ``long``. ``share`` is the share of all sums that
    modular-addition is trained on. With ``decay`` the learning rate falls to zero along a half cosine over ``steps``.
    ``repeats`` is the share of sort's and reverse's batches whose lines draw from twice as many numbers as they are
    long, so that a number often comes twice; all others draw from all 99.
    """

    task: str
    positions: str = "none"
    layers: int = 4
    heads: int = 4
    width: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    batch: int = 64
    steps: int = 15_000
    wanted: float = 0.9
    long: bool = False
    held_out: int = 1000
    evaluate_every: int = 100
    share: float | None = None
    decay: bool = False
    repeats: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


DEFAULTS: dict[str, dict[str, Any]] = {
    "reverse": {},
    "sort": {"steps": 3000, "decay": True, "repeats": 0.25},
    "modular-addition": {"weight_decay": 1.0, "batch": 512, "steps": 20_000, "share": 0.5},
}
"""Of the two papers (arXiv 2602.01442, 2201.02177), by task, but for sort: docs/training.md says why."""


def training_setting(task: str, **options: Any) -> TrainingSetting:
    """The setting of a task, with other options where they are given (None is not given).

    Raises:
        OptionError: an unknown task or option, or a value that makes no training.
    """
    if task not in DEFAULTS:
        raise OptionError(f"assay train does not know the task {task!r}. {instead_of(task, DEFAULTS)}")
    refuse_unknown("assay train", options, [field.name for field in fields(TrainingSetting)])
    given = {name: value for name, value in options.items() if value is not None}
    if task != "modular-addition" and "share" in given:
        raise OptionError(f"--share belongs to modular-addition: {task} draws new examples for ever.")
    if task == "modular-addition" and "repeats" in given:
        raise OptionError("repeats belongs to sort and reverse: the sums of modular-addition are all there.")
    setting = TrainingSetting(task, **{**DEFAULTS[task], **given})
    _check(setting)
    return setting


def _check(setting: TrainingSetting) -> None:
    if setting.positions not in POSITIONS:
        raise OptionError(f"There are no positions {setting.positions!r}. {instead_of(setting.positions, POSITIONS)}")
    for name in ("layers", "heads", "width", "batch", "steps", "held_out", "evaluate_every"):
        if getattr(setting, name) < 1:
            raise OptionError(f"{_option(name)} must be at least 1, not {getattr(setting, name)}.")
    if setting.width % (2 * setting.heads):
        raise OptionError(f"A width of {setting.width} does not give {setting.heads} heads of an even width.")
    if not (math.isfinite(setting.learning_rate) and setting.learning_rate > 0):
        raise OptionError(f"--learning-rate must be above 0, not {setting.learning_rate}.")
    if not (math.isfinite(setting.weight_decay) and setting.weight_decay >= 0):
        raise OptionError(f"--weight-decay must be at least 0, not {setting.weight_decay}.")
    if not 0 < setting.wanted <= 1:
        raise OptionError(f"wanted is a share of the held-out examples, above 0 and at most 1, not {setting.wanted}.")
    if not 0 <= setting.repeats <= 1:
        raise OptionError(f"repeats is a share of the batches, from 0 to 1, not {setting.repeats}.")
    if setting.share is not None and not SMALLEST_SHARE <= setting.share <= LARGEST_SHARE:
        raise OptionError(
            f"--share must be from {SMALLEST_SHARE} to {LARGEST_SHARE}, not {setting.share}: the first "
            f"{SMALLEST_SHARE:.0%} of all sums are trained on by every model, the last {1 - LARGEST_SHARE:.0%} by none."
        )


def _option(name: str) -> str:
    return f"--{name}" if name == "steps" else name
