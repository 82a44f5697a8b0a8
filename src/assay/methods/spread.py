"""Calls of a function on a model, spread over processes like shards are."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from assay.methods.elsewhere import Elsewhere
from assay.methods.sharded import Jobs, processes_of_run, threads_of_run
from assay.model import Model
from assay.scale import Advance

Task = TypeVar("Task")
Result = TypeVar("Result")
ANY_PROMPT = range(8)
"""Tokens by which a worker sees that the model computes there as here."""


@dataclass(frozen=True)
class Calls(Generic[Task, Result]):
    """An `assay.scale.Workshop` whose tasks are what a function is called with, after the model."""

    model: Elsewhere
    compute: Callable[[Model, Task], Result]

    def __call__(self, advance: Advance) -> Callable[[Task], Result]:
        return partial(self.compute, self.model())


def spread(
    compute: Callable[[Model, Task], Result], tasks: Sequence[Task], model: Model, jobs: Jobs = None
) -> Generator[tuple[Task, Result], None, None]:
    """Each task with what the function gives for model and task, as they come.

    Args:
        compute: a function of a module.
        jobs: as in `assay.measure`.

    Raises:
        OptionError: the model cannot be loaded again in other processes.
        ModelError: another model is loaded there.
    """
    with threads_of_run(jobs, None), processes_of_run(jobs, model) as crew:
        if crew is None:
            yield from ((task, compute(model, task)) for task in tasks)
        else:
            calls = Calls(Elsewhere.of(model, ANY_PROMPT), compute)
            with closing(crew.run(calls, tasks, lambda _: None, partial(_here, compute, model))) as results:
                yield from results


def _here(compute: Callable[[Model, Task], Result], model: Model, _: Advance) -> Callable[[Task], Result]:
    return partial(compute, model)
