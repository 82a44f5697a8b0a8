"""A worker on a Ray cluster, as the process that asks sees it and as it lives."""

from __future__ import annotations

import pickle
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from assay.scale.crew import DiedError
from assay.scale.executor import Advance
from assay.scale.worker import OUT_OF_MEMORY, Service

TELL_EVERY = 0.2
"""Seconds between two words on progress."""
REASON = re.compile(r"The actor is dead because (?P<why>.*?)\.?( Some common causes include|$)")
"""In Ray's text; what follows are guesses of any kind."""
NOT_INSTALLED = "Every machine of the cluster needs assay, in the same version as here."


class RayWorker:
    """An actor that waits for a workshop, and then for its tasks.

    Args:
        warm_up: done first of all.
        gpus: that it gets.
    """

    def __init__(self, warm_up: Callable[[], object] | None, gpus: float) -> None:
        kind = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Actor)
        self._actor: Any = kind.remote(sys.path, pickle.dumps(warm_up))

    def open(self, workshop: bytes, advance: Advance) -> None:
        self._ask("open", workshop, advance)

    def compute(self, task: Any, advance: Advance) -> Any:
        return self._ask("compute", task, advance)

    def _ask(self, request: str, content: Any, advance: Advance) -> Any:
        try:
            # Pickled here and there, so that what arrives is what a pipe would bring, and nothing that Ray shares.
            for message in self._actor.ask.remote(request, pickle.dumps(content)):
                told = ray.get(message)
                if isinstance(told, int):
                    advance(told)
        except RayError as error:
            self.stop()
            raise _death(error) from None
        kind, answer = pickle.loads(told)
        if kind == "failed":
            raise answer
        return answer

    def is_there(self, seconds: float) -> bool:
        """Whether it has begun, or ended, within so many seconds."""
        try:
            return bool(ray.wait([self._actor.__ray_ready__.remote()], timeout=seconds)[0])
        except Exception:  # the cluster has ended meanwhile
            return True

    def stop(self) -> None:
        with suppress(Exception):  # it is dead, or the cluster is gone
            ray.kill(self._actor)

    def close(self) -> None:
        """Nothing is left to let go of."""


def _death(error: RayError) -> DiedError:
    said = " ".join(str(error).split())
    why = REASON.search(said)
    hint = NOT_INSTALLED if "No module named 'assay" in said else OUT_OF_MEMORY if "low on memory" in said else ""
    return DiedError(f"on the Ray cluster ended ({why['why'] if why else said})", hint)


class _Actor:
    """Lives on some machine of the cluster.

    All is done by one thread, since what torch was told of threads holds for the one that it was told in; the one that
    Ray calls in says how far that is.

    Args:
        path: where modules are found in the process that asks.
    """

    def __init__(self, path: list[str], warm_up: bytes) -> None:
        sys.path += [place for place in path if place not in sys.path]
        self._thread = ThreadPoolExecutor(1)
        self._progress = _Progress()
        where = f"a worker on {socket.gethostname()}"
        self._service = self._thread.submit(lambda: Service(pickle.loads(warm_up), where, self._progress.advance))

    @ray.method(num_returns="streaming")
    def ask(self, request: str, content: bytes) -> Iterator[int | bytes]:
        """How much more is done, again and again; at last the answer."""
        answer = self._thread.submit(
            lambda: pickle.dumps(self._service.result().answer(request, pickle.loads(content)))
        )
        finished = False
        while not finished:
            finished = bool(wait([answer], TELL_EVERY).done)
            if done := self._progress.take():
                yield done
        yield answer.result()


class _Progress:
    """What was done since it was last told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = 0

    def advance(self, done: int) -> None:
        with self._lock:
            self._done += done

    def take(self) -> int:
        with self._lock:
            done, self._done = self._done, 0
            return done
