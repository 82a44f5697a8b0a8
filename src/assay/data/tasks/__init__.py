"""Tasks: named makers of prompt pairs. ``assay.tasks.ioi(model, n=16)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.data.pairs import PromptPairs
from assay.data.readers import FORMATS, is_prompt_source, read_pairs
from assay.data.tasks.agreement import agreement
from assay.data.tasks.arithmetic import arithmetic
from assay.data.tasks.copy_colours import copy_colours
from assay.data.tasks.facts import facts
from assay.data.tasks.greater_than import greater_than
from assay.data.tasks.induction import induction
from assay.data.tasks.ioi import ioi
from assay.data.tasks.modular_addition import modular_addition
from assay.data.tasks.sentiment import sentiment
from assay.data.tasks.sequences import reverse, sort
from assay.errors import DataError, OptionError, instead_of, require_seed
from assay.model import Model

__all__ = [
    "TASKS",
    "Task",
    "agreement",
    "arithmetic",
    "copy_colours",
    "facts",
    "greater_than",
    "induction",
    "ioi",
    "make_pairs",
    "modular_addition",
    "reverse",
    "sentiment",
    "sort",
]


DEFAULT_PAIRS = 16
FILE_OPTIONS = ("columns", "template")


@dataclass(frozen=True)
class Task:
    """A named maker of pairs; its options are the maker's keyword arguments beyond ``n`` and ``seed``."""

    name: str
    description: str
    metric: str
    make: Callable[..., PromptPairs]

    @property
    def defaults(self) -> dict[str, Any]:
        parameters = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in parameters if p.name not in ("model", "n", "seed")}

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(self.defaults)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("ioi", "indirect object identification; corruptions abc, swap, random-token", "logit-diff", ioi),
        Task("greater-than", "a span of years ends after it begins", "prob-diff", greater_than),
        Task("facts", "the object of a subject, in five relations", "logit-diff", facts),
        Task("agreement", "the verb agrees with its subject, attractor or not", "logit-diff", agreement),
        Task("induction", "what followed a random word follows it again", "logit-diff", induction),
        Task("sentiment", "reviews, or single adjectives, positive or negative", "logit-diff", sentiment),
        Task("copy-colours", "multiple choice whose answer stands in the question", "logit-diff", copy_colours),
        Task("arithmetic", "sums or differences after worked examples", "logit-diff", arithmetic),
        Task("sort", "sort integers (for sequence-sort)", "log-prob-diff", sort),
        Task("reverse", "reverse integers (for sequence-reverse)", "log-prob-diff", reverse),
        Task("modular-addition", "sums modulo 97 (for models of assay train)", "logit-diff", modular_addition),
    )
}


def make_pairs(model: Model, task: str, n: int | None = DEFAULT_PAIRS, seed: int = 0, **options: Any) -> PromptPairs:
    """Pairs of a named task, or of a file that `read_pairs` reads (its first ``n``; all if ``n`` is None).

    Raises:
        OptionError: an unknown task, an option that it does not have, or a seed that is none.
        DataError: an unreadable file.
    """
    require_seed(seed)
    require_task(task, n, **options)
    if task in TASKS:
        given = {name: value for name, value in options.items() if value is not None}
        return TASKS[task].make(model, n=DEFAULT_PAIRS if n is None else n, seed=seed, **given)
    return read_pairs(
        task, model, seed=seed, n=n, **{name: value for name, value in options.items() if value is not None}
    )


def require_task(task: str, n: int | None = None, **options: Any) -> None:
    """Raise unless ``task`` is a task with these options or a prompt file, before anything slow has begun.

    Raises:
        OptionError, DataError: see `make_pairs`.
    """
    if n is not None and n < 1:
        raise OptionError(f"--n must be at least 1, not {n}.")
    given = [name for name, value in options.items() if value is not None]
    if task in TASKS:
        for name in given:
            if name not in TASKS[task].options:
                raise OptionError(f"The task {task} has no option --{name}.")
        return
    for name in given:
        if name not in FILE_OPTIONS:
            raise OptionError(f"A file of prompts has no option --{name}.")
    if task.startswith("hf:"):
        return
    path = Path(task)
    if not is_prompt_source(task):
        if path.exists():
            raise DataError(f"{task} is not a file of prompts that assay reads. Give a {FORMATS}.")
        raise OptionError(f"There is no task {task!r}. {instead_of(task, TASKS)} Or give a {FORMATS}.")
    if not path.is_file():
        raise DataError(f"There is no file {task}.")
