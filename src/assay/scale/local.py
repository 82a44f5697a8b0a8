"""Several processes on this machine: this one, which computes too, and workers.

Workers are started afresh ("spawn": a process in which torch has run cannot be forked safely), ahead of the work, so
that they are warm by the time that there is some. They are told one task at a time over a pipe, and end with their
parent, however that ends. Each has a thread here that waits for it. Whoever is free takes the next task: this process
from the front, workers from the back, so that they seldom need recordings of the same prompts.
"""

from __future__ import annotations

import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic

from assay.errors import OptionError, WorkerError
from assay.scale.executor import Advance, Result, Task, Workshop
from assay.scale.worker import DiedError, Worker

ATTEMPTS = 2


class LocalProcesses:
    """So many processes, from ``with`` on until its block ends; then no worker is left.

    A task whose worker dies is given to a fresh one, once.

    Args:
        processes: this one included.
        warm_up: what a worker does before it is told of any work. What that raises is not told: where it is needed,
            it is raised again.
    """

    def __init__(self, processes: int, warm_up: Callable[[], object] | None = None) -> None:
        self.processes = processes
        self._warm_up = warm_up
        self._places: list[_Place] = []

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self) -> None:
        """Start the workers, if they are not there yet."""
        while len(self._places) < self.processes - 1:
            self._places.append(_Place(Worker(self._warm_up)))

    def end(self) -> None:
        """End the workers, whatever they are at."""
        for place in self._places:
            place.end()
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
        job: _Job[Task, Result] = _Job(_packed(workshop), deque(tasks), advance)
        helpers = max(0, len(tasks) - 1)
        if helpers:
            self.start()
        for place in self._places[:helpers]:
            place.employ(job)
        work = None
        try:
            left = len(tasks)
            while left:
                try:
                    news = job.news.get(block=not job.waiting)
                except Empty:
                    try:
                        task = job.waiting.popleft()
                    except IndexError:
                        continue  # a worker was quicker
                    work = work or (here or workshop)(job.advance)
                    news = task, work(task)
                if isinstance(news, Exception):
                    raise news
                left -= 1
                yield news
        finally:
            job.waiting.clear()
            job.closed = True


@dataclass
class _Job(Generic[Task, Result]):
    """One call of `LocalProcesses.run`, as its threads share it."""

    workshop: bytes
    waiting: deque[Task]
    tell: Advance
    news: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    """(task, result), or what was raised."""
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def advance(self, done: int) -> None:
        with self.lock:
            if not self.closed:
                self.tell(done)

    def take_last(self, tasks: list[Task]) -> bool:
        """Put the last task that waits into the list, if there is one."""
        try:
            tasks.append(self.waiting.pop())
        except IndexError:
            return False
        return True


class _Place:
    """Where a worker works, or the one that came after it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ended = False

    def employ(self, job: _Job[Any, Any]) -> None:
        """Have tasks of the job done, in another thread; once the job before is through, if that is still loading."""
        self._thread = threading.Thread(target=self._keep_busy, args=(job, self._thread), daemon=True)
        self._thread.start()

    def _keep_busy(self, job: _Job[Any, Any], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        tasks: list[Any] = []  # the one that is being computed
        deaths = 0
        try:
            while job.waiting or tasks:
                try:
                    self.worker.open(job.workshop, job.advance)
                    while tasks or job.take_last(tasks):
                        job.news.put((tasks[0], self.worker.compute(tasks[0], job.advance)))
                        tasks.clear()
                        deaths = 0
                except DiedError as death:
                    deaths += 1
                    if deaths == ATTEMPTS:
                        raise WorkerError(_obituary(death, tasks)) from None
                    if not self._replace():
                        return
        except Exception as error:  # whatever it is, the caller of `run` raises it
            job.news.put(error)

    def _replace(self) -> bool:
        """Start another worker, unless all are to end."""
        with self._lock:
            if not self._ended:
                self.worker = Worker(self.worker.warm_up)
            return not self._ended

    def end(self) -> None:
        with self._lock:
            self._ended = True
            self.worker.stop()
        if self._thread is not None:
            self._thread.join()
        self.worker.close()


def _packed(workshop: Workshop[Any, Any]) -> bytes:
    try:
        return pickle.dumps(workshop)
    except Exception as error:  # what pickle meets raises whatever it likes
        raise OptionError(
            f"This run cannot be sent to other processes: {error}. A metric or method of your own must be a "
            "function of a module that can be imported. Or leave --jobs out."
        ) from error


def _obituary(death: DiedError, tasks: list[Any]) -> str:
    code = death.exit_code
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    hints = {
        -signal.SIGKILL: " The machine may be out of memory: use fewer --jobs or a smaller --memory.",
        1: ' In a script of your own, start assay under `if __name__ == "__main__":`.',
    }
    at = f"it computed {tasks[0]}" if tasks else "it began"
    return (
        f"A worker process {how} while {at}, and so did the one before it.{hints.get(code, '')} "
        "What is finished is kept if there is a run folder."
    )
