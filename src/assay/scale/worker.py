"""A worker process, as its parent sees it and as it lives."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from assay.scale.executor import Advance

PATIENCE = 5.0
"""Seconds that a worker gets to end when asked."""


class DiedError(Exception):
    """A worker ended that should not have.

    Args:
        exit_code: minus the signal, if one killed it.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Worker:
    """A process that waits for a workshop, and then for its tasks.

    Args:
        warm_up: done first of all.
    """

    def __init__(self, warm_up: Callable[[], object] | None) -> None:
        self.warm_up = warm_up
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs, warm_up), daemon=True)
        try:
            with _interrupts_held_back():
                self._process.start()
        except BaseException:
            self.stop()
            self.close()
            raise
        theirs.close()

    def open(self, workshop: bytes, advance: Advance) -> None:
        """Make ready for the tasks of a workshop, which was pickled; whatever that raises there is raised here.

        Raises:
            DiedError: the process has ended.
        """
        self._ask("open", workshop, advance)

    def compute(self, task: Any, advance: Advance) -> Any:
        """The result of a task; whatever it raises there is raised here.

        Raises:
            DiedError: the process has ended; what was told of progress is taken back.
        """
        return self._ask("compute", task, advance)

    def _ask(self, request: str, content: Any, advance: Advance) -> Any:
        advanced = 0
        self._send(request, content)
        while True:
            kind, answer = self._receive()
            if kind == "advance":
                advanced += answer
                advance(answer)
            elif kind == "done":
                return answer
            elif kind == "failed":
                raise answer
            else:
                advance(-advanced)
                self._process.join(PATIENCE)
                self.stop()
                raise DiedError(self._process.exitcode or 0)

    def _send(self, request: str, content: Any) -> None:
        with suppress(OSError):  # it has just died; the end of the pipe will say so
            self._pipe.send((request, content))

    def _receive(self) -> tuple[str, Any]:
        try:
            kind, content = self._pipe.recv()
        except (EOFError, OSError):
            return "died", None
        return kind, content

    def stop(self) -> None:
        """End the process."""
        if self._process.pid is None:
            return
        self._process.terminate()
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def close(self) -> None:
        """Let go of the pipe, which nobody may be reading from."""
        self._pipe.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits until the block is left, and a process that is started meanwhile never hears it.

    It reaches a whole group of processes; workers are ended by their parent.
    """
    resource_tracker.ensure_running()  # its start lets interrupts through again
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


def _serve(pipe: Connection, warm_up: Callable[[], object] | None) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if warm_up is not None:
        with suppress(Exception):  # where what it does is needed, it fails again, and is told
            warm_up()
    work: Callable[[Any], Any] | None = None
    while True:
        try:
            request, content = pipe.recv()
        except EOFError:
            return
        try:
            result = None
            if request == "open":
                work = None  # what it holds is let go before another takes its place
                work = pickle.loads(content)(lambda done: pipe.send(("advance", done)))
            elif work is not None:
                result = work(content)
            message = "done", result
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
