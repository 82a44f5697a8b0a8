"""The small protocol behind which work is spread: tasks go out, results come back in any order.

A *workshop* is a description that any process can be given. Called there once, it does what is slow (it loads the
model) and gives the function that turns a task into its result. Tasks are descriptions too. A result may depend on
the task alone, so it does not matter who computes it, when, and how often. A function with a ``close`` is told by it
that its tasks are over, before another workshop is opened in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

Advance = Callable[[int], object]
"""Told how much of its work a task has done since the last call; negative where work was lost."""

Workshop = Callable[[Advance], Callable[[Task], Result]]


class Executor(Protocol):
    """Carries out tasks."""

    def run(
        self,
        workshop: Workshop[Task, Result],
        tasks: Sequence[Task],
        advance: Advance,
        here: Workshop[Task, Result] | None = None,
    ) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, as they come.

        What a task raises is raised here.

        Args:
            here: what serves in this process instead of the workshop, since the model is loaded; of use to those who
                let this process compute too.
        """
        ...


class InProcess:
    """One task after another, here."""

    def run(
        self,
        workshop: Workshop[Task, Result],
        tasks: Sequence[Task],
        advance: Advance,
        here: Workshop[Task, Result] | None = None,
    ) -> Generator[tuple[Task, Result], None, None]:
        if tasks:
            work = (here or workshop)(advance)
            for task in tasks:
                yield task, work(task)
