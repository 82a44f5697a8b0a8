"""A worker process of this machine, as its parent sees it and as it lives."""

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

from assay.scale.crew import DiedError
from assay.scale.executor import Advance

PATIENCE = 5.0
"""Seconds that a worker gets to end when asked."""
OUT_OF_MEMORY = "The machine may be out of memory: use fewer --jobs or a smaller --memory."
UNGUARDED = 'In a script of your own, start assay under `if __name__ == "__main__":`.'


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
            with interrupts_held_back():
                self._process.start()
        except BaseException:
            self.stop()
            self.close()
            raise
        theirs.close()

    def open(self, workshop: bytes, advance: Advance) -> None:
        self._ask("open", workshop, advance)

    def compute(self, task: Any, advance: Advance) -> Any:
        return self._ask("compute", task, advance)

    def _ask(self, request: str, content: Any, advance: Advance) -> Any:
        self._send(request, content)
        while True:
            kind, answer = self._receive()
            if kind == "advance":
                advance(answer)
            elif kind == "done":
                return answer
            elif kind == "failed":
                raise answer
            else:
                self._process.join(PATIENCE)
                self.stop()
                raise _death(self._process.exitcode or 0)

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


def _death(exit_code: int) -> DiedError:
    how = f"ended with exit code {exit_code}"
    if exit_code < 0:
        how = f"was killed by {signal.Signals(-exit_code).name}"
    return DiedError(how, {-signal.SIGKILL: OUT_OF_MEMORY, 1: UNGUARDED}.get(exit_code, ""))


@contextmanager
def interrupts_held_back() -> Iterator[None]:
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
    service = Service(warm_up, "a worker process", lambda done: pipe.send(("advance", done)))
    while True:
        try:
            request, content = pipe.recv()
        except EOFError:
            return
        pipe.send(service.answer(request, content))


class Service:
    """What a worker does, whatever brings it its requests.

    Args:
        warm_up: done first of all.
        where: it works, as in "In <where>".
        advance: told of progress.
    """

    def __init__(self, warm_up: Callable[[], object] | None, where: str, advance: Advance) -> None:
        self._where, self._advance = where, advance
        self._work: Callable[[Any], Any] | None = None
        if warm_up is not None:
            with suppress(Exception):  # where what it does is needed, it fails again, and is told
                warm_up()

    def answer(self, request: str, content: Any) -> tuple[str, Any]:
        """``done`` and the result, or ``failed`` and what was raised.

        Args:
            request: ``open`` a workshop, which was pickled, or ``compute`` a task.
        """
        try:
            if request == "open":
                self._let_go()
                self._work = pickle.loads(content)(self._advance)
                return "done", None
            assert self._work is not None
            return "done", self._work(content)
        except Exception as error:  # whatever it is, the parent raises it
            return "failed", self._portable(error)

    def _let_go(self) -> None:
        """What the workshop before holds is given up before another takes its place."""
        before, self._work = self._work, None
        if (close := getattr(before, "close", None)) is not None:
            close()

    def _portable(self, error: Exception) -> Exception:
        """The error itself where it survives the journey, else its text; with the place where it was raised."""
        where = "".join(traceback.format_exception(error))
        try:
            error = pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(f"In {self._where}:\n{where}")
        return error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
