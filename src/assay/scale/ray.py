"""Workers on a Ray cluster: one that is started on this machine, or one that is there and may have many machines.

Each worker is an actor of one processor, and of as many accelerators as asked. This process tells them their tasks and
puts together what comes back; it computes none of them, since it need not be as strong as the cluster's machines.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import OptionError, WorkerError
from assay.scale.crew import Crew
from assay.scale.worker import interrupts_held_back

if TYPE_CHECKING:
    from assay.scale.actor import RayWorker

LOCAL, AUTO = "local", "auto"
ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[\da-fA-F:.]+\]):(?P<port>\d{1,5})")
SLOW = 3.0
PATIENCE = 5.0
"""Seconds in which the head of a cluster must answer."""
WAIT = 30.0
"""Seconds after which it is said that no worker has begun."""
STORE = 100 * 2**20
"""Bytes of the object store of a cluster of our own: results are small."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "2",  # how often the head of a cluster is asked who else is there
}
"""Environment of Ray's processes, unless it says otherwise already."""


class RayCluster(Crew):
    """Workers on a Ray cluster, from ``with`` on until its block ends; then no worker is left.

    A cluster that was started here is ended, one that was joined goes on. A task whose worker or machine dies is given
    to a fresh worker, once.

    Args:
        address: ``HOST:PORT`` of the cluster's head, ``auto`` for the one that runs on this machine; if None, a cluster
            is started here. Where this process is connected to a cluster already, None means that one.
        workers: as many as the cluster has processors (or ``gpus`` for each), if None.
        warm_up: what a worker does before it is told of any work; its errors are not told.
        gpus: that each worker gets.
        slow: when no task waits any more, one that takes so many times as long as the median is given to an idle
            worker as well, and the first result counts; never if None.

    Raises:
        OptionError: Ray is not installed, or no cluster answers at the address.
    """

    instead = "leave --ray out"

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        *,
        warm_up: Callable[[], object] | None = None,
        gpus: float = 0,
        slow: float | None = SLOW,
    ) -> None:
        super().__init__(slow)
        if importlib.util.find_spec("ray") is None:
            raise OptionError("--ray needs the package ray, which is not installed: pip install 'assay[ray]'.")
        if workers is not None and (type(workers) is not int or workers < 1):
            raise OptionError(f"--jobs must be at least 1, not {workers}.")
        self.address = None if address == LOCAL else address
        if self.address not in (None, AUTO):
            _require_cluster(self.address)
        self._asked, self._warm_up, self._gpus = workers, warm_up, gpus
        self._connected = False
        self._scratch: Path | None = None
        self._print_again: Callable[[], object] = lambda: None

    @property
    def processes(self) -> int:  # type: ignore[override]
        """How many compute; known once they are started."""
        return len(self._places)

    def start(self) -> None:
        """Start or join the cluster and start the workers, if they are not there yet.

        Raises:
            OptionError: the cluster cannot be joined, or has fewer processors or accelerators than asked.
            WorkerError: Ray cannot be started.
        """
        if not self._places:
            with _quiet(), interrupts_held_back():
                self._connect()
            super().start()
            threading.Thread(target=self._tell_if_none_comes, args=(self._places[0].worker,), daemon=True).start()

    def _tell_if_none_comes(self, first: RayWorker) -> None:
        """Workers wait for processors that others have; so does the run, in silence otherwise."""
        if not first.is_there(WAIT):
            print("Waiting until the Ray cluster has a processor free.", file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the workers, whatever they are at, and the cluster if it was started here."""
        super().end()
        if self._connected:
            import ray

            with interrupts_held_back():
                ray.shutdown()
            self._connected = False
            self._print_again()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _connect(self) -> None:
        import ray

        if ray.is_initialized():
            if self.address is not None and not self._connected:
                raise OptionError("This process is connected to a Ray cluster already; leave the address out.")
            return
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
        if self.address is None:
            self._scratch = _scratch()
            options |= {
                "address": LOCAL,
                "num_cpus": self._asked,
                "object_store_memory": STORE,
                "include_dashboard": False,
                "_temp_dir": str(self._scratch),
            }
        else:
            options["address"] = self.address
        try:
            ray.init(**options)
        except Exception as error:  # whatever Ray raises
            with suppress(Exception):
                ray.shutdown()
            said = " ".join(str(error).split())
            if self.address is None:
                raise WorkerError(f"Ray cannot be started: {said}") from error
            raise OptionError(
                f"The Ray cluster at {self.address} cannot be joined: {said} This machine must be one of the cluster "
                f"(ray start --address={self.address}), with the same versions of Python and Ray."
            ) from error
        self._connected = True
        self._print_again = _print_nothing()

    def _workers_wanted(self) -> int:
        import ray

        there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        most = int(there.get("CPU", 0))
        if self._gpus:
            most = min(most, int(there.get("GPU", 0) / self._gpus))
        wanted = self._asked or most
        if not 1 <= wanted <= most:
            each = f"a processor and {self._gpus:g} GPU" if self._gpus else "a processor"
            raise OptionError(
                f"The Ray cluster has {there.get('CPU', 0):g} processors and {there.get('GPU', 0):g} GPUs, and each "
                f"worker needs {each}: {wanted or 1} do not fit (--jobs), at most {most}."
            )
        return wanted

    def _worker(self) -> RayWorker:
        from assay.scale.actor import RayWorker

        return RayWorker(self._warm_up, self._gpus)


def _require_cluster(address: str) -> None:
    """Find out soon what Ray finds out after minutes.

    Raises:
        OptionError: no address, or nothing there that speaks as the head of a cluster does.
    """
    parts = ADDRESS.fullmatch(address)
    if parts is None or not 0 < int(parts["port"]) < 2**16:
        raise OptionError(
            f"--ray takes the address of a cluster's head as HOST:PORT (or auto, or nothing, for one on this machine), "
            f"not {address!r}."
        )
    try:
        with socket.create_connection((parts["host"].strip("[]"), int(parts["port"])), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            answer = connection.recv(9)
    except OSError as error:
        raise OptionError(f"No Ray cluster answers at {address}: {error.strerror or error}.") from error
    if answer[3:4] != b"\x04":  # gRPC is HTTP/2, which begins with settings
        raise OptionError(f"What answers at {address} is no Ray cluster. Give the port of its head (default 6379).")


def _scratch() -> Path:
    """Where a cluster of our own keeps its files; paths of sockets must be short."""
    short = Path("/tmp")
    return Path(tempfile.mkdtemp(prefix="assay-", dir=short if short.is_dir() else None))


def _print_nothing() -> Callable[[], object]:
    """Ray prints what happens to workers to standard output, whatever it was told of logs; that is for results.

    Returns:
        What lets it print again.
    """
    from ray._private import worker

    name = "print_to_stdstream"
    if (printing := getattr(worker, name, None)) is None:
        return lambda: None
    setattr(worker, name, lambda *_, **__: None)
    return lambda: setattr(worker, name, printing)


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray and its processes report nothing to anybody, and warn of nothing here."""
    new = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(new)
    import ray  # noqa: F401  # which reads the environment, and sets its logger's level

    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in new:
            os.environ.pop(name, None)
