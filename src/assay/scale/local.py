"""Several processes on this machine.

They are started afresh ("spawn"), told one task at a time over a pipe, and end with their parent, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic

from assay.errors import OptionError, WorkerError
from assay.scale.executor import Advance, Result, Task, Workshop

ATTEMPTS = 2
PATIENCE = 5.0
"""Seconds that a worker gets to end when asked."""


class LocalProcesses:
    """So many worker processes. A task whose worker dies is given to a fresh one, once."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    def run(
        self, workshop: Workshop[Task, Result], tasks: Sequence[Task], advance: Advance
    ) -> Generator[tuple[Task, Result], None, None]:
        """See `Executor.run`.

        Raises:
            OptionError: the workshop cannot be sent to another process.
            WorkerError: two workers died over one task.
        """
        try:
            packed = pickle.dumps(workshop)
        except Exception as error:  # what pickle meets raises whatever it likes
            raise OptionError(
                f"This run cannot be sent to other processes: {error}. A metric or method of your own must be a "
                "function of a module that can be imported. Or leave --jobs out."
            ) from error
        waiting, deaths = deque(tasks), Counter[int]()
        workers: list[_Worker[Task]] = []
        try:
            while waiting or workers:
                while waiting and len(workers) < self.processes:
                    workers.append(_Worker(packed, waiting.popleft()))
                ready = wait([worker.pipe for worker in workers])
                for worker in [worker for worker in workers if worker.pipe in ready]:
                    kind, content = worker.receive()
                    if kind == "advance":
                        worker.advanced += content
                        advance(content)
                    elif kind == "done":
                        yield worker.task, content
                        if waiting:
                            worker.give(waiting.popleft())
                        else:
                            workers.remove(worker)
                            worker.end()
                    elif kind == "failed":
                        raise content
                    else:
                        workers.remove(worker)
                        advance(-worker.advanced)
                        deaths[id(worker.task)] += 1
                        if deaths[id(worker.task)] == ATTEMPTS:
                            raise WorkerError(_obituary(worker))
                        waiting.appendleft(worker.task)
        finally:
            for worker in workers:
                worker.end()


class _Worker(Generic[Task]):
    def __init__(self, packed: bytes, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, packed), daemon=True)
        try:
            with _interrupts_held_back():
                self.process.start()
        except BaseException:
            self.end()
            raise
        theirs.close()
        self.give(task)

    def give(self, task: Task) -> None:
        self.task = task
        self.advanced = 0
        try:
            self.pipe.send(task)
        except OSError:
            return  # it has just died; the end of the pipe will say so

    def receive(self) -> tuple[str, Any]:
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            self.end()
            return "died", None
        return kind, content

    def end(self) -> None:
        self.pipe.close()
        if self.process.pid is None:
            return
        self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits until the block is left, and a process that is started meanwhile never hears it.

    It reaches a whole group of processes; workers are ended by their parent.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    held: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number)) if in_main_thread else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main_thread:
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
        if held:
            signal.raise_signal(signal.SIGINT)


def _obituary(worker: _Worker[Any]) -> str:
    code = worker.process.exitcode or 0
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    hints = {
        -signal.SIGKILL: " The machine may be out of memory: use fewer --jobs or a smaller --memory.",
        1: ' In a script of your own, start assay under `if __name__ == "__main__":`.',
    }
    return (
        f"A worker process {how} while it computed {worker.task}, and so did the one before it.{hints.get(code, '')} "
        "What is finished is kept if there is a run folder."
    )


def _serve(pipe: Connection, packed: bytes) -> None:
    """The life of a worker."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work: Callable[[Any], Any] | None = None
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            if work is None:
                work = pickle.loads(packed)(lambda done: pipe.send(("advance", done)))
            message = "done", work(task)
        except Exception as error:  # whatever it is, the parent raises it
            message = "failed", _portable(error)
        pipe.send(message)


def _portable(error: Exception) -> Exception:
    """The error itself where it survives the journey, else its text; with the place where it was raised."""
    where = "".join(traceback.format_exception(error))
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In a worker process:\n{where}")
    return error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
