"""The loop that runs any method: shard by shard, in this process or in others, kept in a run folder or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay.engine.baseline import PlainRuns
from assay.engine.batches import Batch
from assay.engine.cost import CostMeter
from assay.errors import OptionError, StoreError
from assay.methods.plan import Shard
from assay.methods.progress import progress_of
from assay.methods.workbench import Computed, Order, Workbench
from assay.model import Model
from assay.scale import Crew, InProcess, LocalProcesses
from assay.store import RunFolder
from assay.store.differences import differences
from assay.store.files import SHARDS_KEPT, allows_more, read_run_json

if TYPE_CHECKING:
    from assay.methods.method import Method
    from assay.methods.preparation import Prepared


Jobs = int | Crew | None


@contextmanager
def opened(folder: str | Path | RunFolder | None) -> Iterator[RunFolder | None]:
    """The run folder, held meanwhile; one that is held already stays so."""
    if folder is None or isinstance(folder, RunFolder):
        yield folder
    else:
        with RunFolder(folder) as held:
            yield held


@contextmanager
def processes_of_run(jobs: Jobs, model: Model) -> Iterator[Crew | None]:
    """The processes that a run is spread over (None: this one), not started yet unless they were handed over."""
    if isinstance(jobs, Crew):
        yield jobs
    elif jobs is None or jobs == 1:
        yield None
    else:
        with LocalProcesses(jobs, model.load_again and model.load_again.warm_up) as processes:
            yield processes


@contextmanager
def threads_of_run(jobs: Jobs, folder: RunFolder | None) -> Iterator[None]:
    """Threads of torch's in each process: one with ``jobs``, else as many as the run began with, else torch's own.

    They decide how sums are rounded, so a run has one number of them from beginning to end.
    """
    before = torch.get_num_threads()
    plan = folder.plan if folder is not None else None
    torch.set_num_threads(1 if jobs is not None else plan["threads"] if plan is not None else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def require_jobs(jobs: Jobs) -> None:
    """Refuse a number of processes that makes no sense."""
    if not (jobs is None or isinstance(jobs, Crew)) and (type(jobs) is not int or jobs < 1):
        raise OptionError(f"--jobs must be at least 1, not {jobs}.")


class Computer:
    """Computes values of components, shard by shard: in this process or in others, kept in the run folder or not.

    Args:
        measured: the batches and their plain logits.
        cost: is charged with what the shards took, those of earlier sittings included.
        by_start: how the batches were cut; see `assay.engine.batches.make_batches`.
        show: say on standard error how far a method is.
    """

    def __init__(
        self,
        run: Prepared,
        measured: Sequence[tuple[Batch, PlainRuns]],
        cost: CostMeter,
        *,
        by_start: bool,
        show: bool,
    ) -> None:
        self.run, self.measured, self.cost, self.by_start, self.show = run, measured, cost, by_start, show
        self.batches = [batch for batch, _ in measured]
        self._advance: Callable[[int], object] = lambda _: None
        self._benches: dict[str, Workbench] = {}

    def values(self, method: Method, shards: Sequence[Shard], *, alone: bool = False) -> np.ndarray:
        """(outputs, C', n) in float64: every shard that the folder does not have yet is computed, then all are put
        together.

        Args:
            shards: C' components on all batches, as `assay.methods.plan.make_plan` cuts them.
            alone: in this process, whatever was said of others, which take seconds to start; and in silence.
        """
        folder, processes = self.run.folder, self.run.processes
        found: dict[int, Computed] = {}
        if folder is not None:
            for shard in shards:
                kept = folder.read_shard(shard.number, shard.content(method.name))
                if kept is not None and kept[0].shape == (method.outputs * len(shard.components), shard.rows):
                    found[shard.number] = Computed(*kept)
        missing = [shard for shard in shards if shard.number not in found]
        here = partial(self._here, method)
        if processes is None or alone:
            carry_out = partial(InProcess().run, here)
        else:
            order = Order.of(method, self.run.setting, self.run.direction, self.run.skip, by_start=self.by_start)
            carry_out = partial(processes.run, order, here=here)
        total, done = sum(shard.size for shard in shards), sum(shard.size for shard in shards if shard.number in found)
        with (
            progress_of(method.name, total, done, self.show and not alone) as advance,
            closing(carry_out(missing, advance)) as results,
        ):
            for shard, computed in results:
                found[shard.number] = computed
                if folder is not None:
                    folder.write_shard(shard.number, shard.content(method.name), computed.values, computed.cost)
        return self._together(method, shards, found)

    def _here(self, method: Method, advance: Callable[[int], object]) -> Workbench:
        """The bench of this process, with the recordings that it has."""
        self._advance = advance
        if method.name not in self._benches:
            self._benches[method.name] = Workbench(
                method,
                self.run.setting,
                self.batches,
                self.run.direction,
                self.run.skip,
                lambda done: self._advance(done),
                self.measured,
                self.run.recorded,
            )
        return self._benches[method.name]

    def _together(self, method: Method, shards: Sequence[Shard], found: dict[int, Computed]) -> np.ndarray:
        members = sorted({number for shard in shards for number in shard.components})
        place = {number: i for i, number in enumerate(members)}
        values = np.zeros((method.outputs, len(members), len(self.run.pairs)))
        for shard in shards:
            examples = self.batches[shard.batch].examples.cpu().numpy()
            places = np.array([place[number] for number in shard.components])
            for table, part in zip(values, np.split(found[shard.number].values, method.outputs), strict=True):
                np.add.at(table, (places[:, None], examples[None]), part)
            self.cost.add(CostMeter(**found[shard.number].cost))
        return values


def require_finished(folder: RunFolder, configuration: dict[str, Any], limit: str | None = None) -> bool:
    """Refuse a finished run folder that is not of this configuration; False if it is to be gone on with.

    Args:
        limit: see `assay.store.files.allows_more`.

    Raises:
        StoreError: the message names what differs.
    """
    run = read_run_json(folder.path)
    there = run["configuration"]
    more = False
    if limit is not None and allows_more(there, configuration, limit):
        there, more = {**there, limit: configuration[limit]}, bool(run.get(SHARDS_KEPT))
    if different := differences(there, json.loads(json.dumps(configuration))):
        raise StoreError(
            f"{folder.path} holds a finished run of another configuration:\n"
            + "\n".join(different)
            + "\nChoose another folder."
        )
    return not more
