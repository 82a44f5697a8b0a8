"""Worker processes that load their model while this process still imports what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from assay.errors import OptionError
from assay.scale import Crew, LocalProcesses, RayCluster


@contextmanager
def processes_for(given: dict[str, Any]) -> Iterator[Crew | int | None]:
    """What ``--jobs`` and ``--ray`` ask for; on this machine started already if there is anything to compute.

    Args:
        given: the command's arguments by name.

    Raises:
        OptionError: there is no such Ray cluster.
    """
    jobs, out = given["jobs"], given["out"]
    if given["ray"] is not None:
        device = given.get("device", "cpu")
        with RayCluster(given["ray"], jobs, gpus=int(device.startswith("cuda"))) as cluster:
            yield cluster
        return
    if jobs is None or jobs < 2 or (out is not None and (out / "run.json").exists()):
        yield jobs
        return
    where = given["device"], given["device_map"], given["max_memory"]
    warm_up = WarmUp(given["model"], given["dtype"], *where, given.get("revision"), given["checkpointing"])
    with LocalProcesses(jobs, warm_up) as processes:
        processes.start()
        yield processes


@contextmanager
def processes_of_study(jobs: int | None, ray: str | None) -> Iterator[Crew | int | None]:
    """What ``--jobs`` and ``--ray`` ask for, where several models are loaded one after another.

    Raises:
        OptionError: there is no such Ray cluster, or no job.
    """
    if ray is not None:
        with RayCluster(ray, jobs) as cluster:
            yield cluster
    elif jobs is not None and jobs > 1:
        with LocalProcesses(jobs) as processes:
            yield processes
    elif jobs is not None and jobs < 1:
        raise OptionError(f"--jobs must be at least 1, not {jobs}.")
    else:
        yield jobs


@contextmanager
def trainers_for(given: dict[str, Any]) -> Iterator[Crew | int]:
    """What ``--jobs`` and ``--ray`` ask for, where models are trained.

    Raises:
        OptionError: there is no such Ray cluster.
    """
    if given["ray"] is None:
        yield 1 if given["jobs"] is None else given["jobs"]
        return
    # Seeds take as long as they take, and none is trained by two at once.
    with RayCluster(given["ray"], given["jobs"], slow=None) as cluster:
        yield cluster


@dataclass(frozen=True)
class WarmUp:
    """Imports and loads in a worker what a run will need there."""

    model: str
    dtype: str
    device: str
    device_map: str | None
    max_memory: str | None
    revision: str | None
    checkpointing: bool = False

    def __call__(self) -> None:
        import assay.methods  # noqa: F401  # an order for work is unpickled with it
        from assay.model.loading import DTYPES, LoadAgain
        from assay.model.spreading import Place

        where = Place.of(self.device, self.device_map, self.max_memory)
        LoadAgain(self.model, DTYPES[self.dtype], where, self.revision, checkpointing=self.checkpointing).warm_up()
