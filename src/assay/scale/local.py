"""Several processes on this machine: this one, which computes too, and workers.

Workers are started afresh ("spawn": a process in which torch has run cannot be forked safely), ahead of the work, so
that they are warm by the time that there is some. They are told one task at a time over a pipe, and end with their
parent, however that ends.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.scale.crew import Crew
from assay.scale.worker import Worker


class LocalProcesses(Crew):
    """So many processes, from ``with`` on until its block ends; then no worker is left.

    A task whose worker dies is given to a fresh one, once.

    Args:
        processes: this one included.
        warm_up: what a worker does before it is told of any work. What that raises is not told: where it is needed,
            it is raised again.
    """

    computes_here = True
    instead = "leave --jobs out"

    def __init__(self, processes: int, warm_up: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.processes = processes
        self._warm_up = warm_up

    def _workers_wanted(self) -> int:
        return self.processes - 1

    def _worker(self) -> Worker:
        return Worker(self._warm_up)
