"""Workers that are told one task at a time, wherever they are.

Each worker has a thread here that waits for it. Whoever is free takes the next task: this process, where it computes
too, from the front, workers from the back, so that they seldom need recordings of the same prompts.
"""

from __future__ import annotations

import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Sequence
from queue import Empty, SimpleQueue
from statistics import median
from types import TracebackType
from typing import Any, Generic, Protocol, Self

from assay.errors import OptionError, WorkerError
from assay.scale.executor import Advance, Result, Task, Workshop

ATTEMPTS = 2
LAST_WORDS = 10.0
"""Seconds for which a thread is waited for whose worker was ended: where a machine is lost, nobody says so at once."""
AT_LEAST = 2.0
"""Seconds that a task takes before it is thought late."""


class DiedError(Exception):
    """A worker ended that should not have.

    Args:
        how: it ended, as in "A worker process <how> while it computed".
        hint: a sentence on what to do, or nothing.
    """

    def __init__(self, how: str, hint: str = "") -> None:
        super().__init__(how, hint)
        self.how, self.hint = how, hint


class AnyWorker(Protocol):
    """Someone who does one thing at a time, asked from one thread and ended from any."""

    def open(self, workshop: bytes, advance: Advance) -> None:
        """Make ready for the tasks of a workshop, which was pickled; whatever that raises there is raised here.

        Raises:
            DiedError: the worker has ended.
        """
        ...

    def compute(self, task: Any, advance: Advance) -> Any:
        """The result of a task; whatever it raises there is raised here.

        Raises:
            DiedError: the worker has ended.
        """
        ...

    def stop(self) -> None:
        """End the worker, whatever it is at."""
        ...

    def close(self) -> None:
        """Let go of what led to it."""
        ...


class Crew(ABC):
    """Workers, from ``with`` on until its block ends; then none is left.

    A task whose worker dies is given to a fresh one, once.

    Args:
        slow: when no task waits any more, one that takes so many times as long as the median is given to an idle
            worker as well, and the first result counts; never if None.
    """

    computes_here = False
    """Whether this process carries out tasks too."""
    instead: str
    """What to do where a run cannot be sent to others."""
    processes: int
    """How many compute."""

    def __init__(self, slow: float | None = None) -> None:
        self._slow = slow
        self._places: list[Place] = []

    @abstractmethod
    def _workers_wanted(self) -> int: ...

    @abstractmethod
    def _worker(self) -> AnyWorker:
        """A fresh one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self) -> None:
        """Start the workers, if they are not there yet."""
        while len(self._places) < self._workers_wanted():
            self._places.append(Place(self))

    def end(self) -> None:
        """End the workers, whatever they are at."""
        for place in self._places:
            place.stop()
        for place in self._places:
            place.close()
        self._places.clear()

    def run(
        self,
        workshop: Workshop[Task, Result],
        tasks: Sequence[Task],
        advance: Advance,
        here: Workshop[Task, Result] | None = None,
    ) -> Generator[tuple[Task, Result], None, None]:
        """See `Executor.run`.

        Raises:
            OptionError: the workshop cannot be sent to another process.
            WorkerError: two workers died over one task.
        """
        job: _Job[Task, Result] = _Job(self._packed(workshop), tasks, advance, self._slow)
        helpers = max(0, len(tasks) - self.computes_here)
        if helpers:
            self.start()
        for place in sorted(self._places, key=Place.is_busy)[:helpers]:
            place.employ(job)
        work = None
        try:
            left = len(tasks)
            while left:
                try:
                    news = job.news.get(block=not (self.computes_here and job.waiting))
                except Empty:
                    attempt = job.take_first()
                    if attempt is None:
                        continue  # a worker was quicker
                    work = work or (here or workshop)(job.advance)
                    news = attempt.task, work(attempt.task)
                if isinstance(news, Exception):
                    raise news
                left -= 1
                yield news
        finally:
            job.close()

    def _packed(self, workshop: Workshop[Any, Any]) -> bytes:
        try:
            return pickle.dumps(workshop)
        except Exception as error:  # what pickle meets raises whatever it likes
            raise OptionError(
                f"This run cannot be sent to other processes: {error}. A metric or method of your own must be a "
                f"function of a module that can be imported. Or {self.instead}."
            ) from error


class _Attempt(Generic[Task]):
    """One task in one place."""

    def __init__(self, task: Task, number: int) -> None:
        self.task, self.number = task, number
        self.began = time.monotonic()
        self.told = 0
        """What it said of its progress, as far as that counts."""


class _Job(Generic[Task, Result]):
    """One call of `Crew.run`, as its threads share it."""

    def __init__(self, workshop: bytes, tasks: Sequence[Task], tell: Advance, slow: float | None) -> None:
        self.workshop, self.tasks, self.slow = workshop, tasks, slow
        self.waiting = deque(range(len(tasks)))
        self.news: SimpleQueue[Any] = SimpleQueue()
        """(task, result), or what was raised."""
        self._tell = tell
        self._changed = threading.Condition()
        self._closed = False
        self._running: dict[int, list[_Attempt[Task]]] = {}
        """What workers are at, by the task's number."""
        self._seconds: list[float] = []

    def take_first(self) -> _Attempt[Task] | None:
        """The first task that waits."""
        with self._changed:
            if not self.waiting:
                return None
            number = self.waiting.popleft()
            return _Attempt(self.tasks[number], number)

    def take(self) -> _Attempt[Task] | None:
        """The last task that waits; once there is none, wait for one that is late; None if nobody is needed."""
        with self._changed:
            while self.has_use:
                if self.waiting:
                    return self._begun(self.waiting.pop())
                if (late := self._late()) is not None:
                    return self._begun(late)
                self._changed.wait(AT_LEAST / 8)
            return None

    @property
    def has_use(self) -> bool:
        """Whether another worker may be needed."""
        return not self._closed and bool(self.waiting or (self.slow is not None and self._running))

    def _begun(self, number: int) -> _Attempt[Task]:
        attempt = _Attempt(self.tasks[number], number)
        self._running.setdefault(number, []).append(attempt)
        return attempt

    def _late(self) -> int | None:
        """Of the tasks that one worker is at for far longer than others took, the one that began first."""
        if self.slow is None or not self._seconds:
            return None
        before = time.monotonic() - max(AT_LEAST, self.slow * median(self._seconds))
        alone = [attempts[0] for attempts in self._running.values() if len(attempts) == 1]
        late = [attempt for attempt in alone if attempt.began < before]
        return min(late, key=lambda attempt: attempt.began).number if late else None

    def is_wanted(self, attempt: _Attempt[Task]) -> bool:
        """Whether nobody has finished the task yet."""
        return not self._closed and attempt.number in self._running

    def advance(self, done: int) -> None:
        with self._changed:
            if not self._closed:
                self._tell(done)

    def advance_of(self, attempt: _Attempt[Task]) -> Advance:
        """Tells of a task's progress, unless another worker has finished it."""

        def advance(done: int) -> None:
            with self._changed:
                if self.is_wanted(attempt):
                    attempt.told += done
                    self._tell(done)

        return advance

    def take_back(self, attempt: _Attempt[Task]) -> None:
        """What was done of it is lost."""
        with self._changed:
            if self.is_wanted(attempt):
                self._tell(-attempt.told)
            attempt.told = 0

    def finish(self, attempt: _Attempt[Task], result: Result) -> None:
        with self._changed:
            if not self.is_wanted(attempt):
                return
            for other in self._running[attempt.number]:
                if other is not attempt:
                    self._tell(-other.told)
            del self._running[attempt.number]
            self._seconds.append(time.monotonic() - attempt.began)
            self.news.put((attempt.task, result))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.waiting.clear()
            self._closed = True
            self._changed.notify_all()


class Place:
    """Where a worker works, or the one that came after it."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.worker = crew._worker()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ended = False

    def is_busy(self) -> bool:
        """Whether the worker is still at a job before, whose results are no longer wanted."""
        return self._thread is not None and self._thread.is_alive()

    def employ(self, job: _Job[Any, Any]) -> None:
        """Have tasks of the job done, in another thread; once the job before is through, if that is still loading."""
        self._thread = threading.Thread(target=self._keep_busy, args=(job, self._thread), daemon=True)
        self._thread.start()

    def _keep_busy(self, job: _Job[Any, Any], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        attempt: _Attempt[Any] | None = None
        deaths = 0
        try:
            while job.has_use or attempt is not None:
                try:
                    self.worker.open(job.workshop, job.advance)
                    while (attempt := attempt or job.take()) is not None:
                        job.finish(attempt, self.worker.compute(attempt.task, job.advance_of(attempt)))
                        attempt, deaths = None, 0
                except DiedError as death:
                    if attempt is not None:
                        job.take_back(attempt)
                        attempt = attempt if job.is_wanted(attempt) else None
                    deaths += 1
                    if deaths == ATTEMPTS:
                        raise WorkerError(_obituary(death, attempt)) from None
                    if not self._replace():
                        return
        except Exception as error:  # whatever it is, the caller of `run` raises it
            if attempt is None or job.is_wanted(attempt):
                job.news.put(error)

    def _replace(self) -> bool:
        """Start another worker, unless all are to end."""
        with self._lock:
            if not self._ended:
                self.worker = self._crew._worker()
            return not self._ended

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            self.worker.stop()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(LAST_WORDS)
        self.worker.close()


def _obituary(death: DiedError, attempt: _Attempt[Any] | None) -> str:
    at = f"it computed {attempt.task}" if attempt is not None else "it began"
    hint = f" {death.hint}" if death.hint else ""
    return (
        f"A worker process {death.how} while {at}, and so did the one before it.{hint} "
        "What is finished is kept if there is a run folder."
    )
