"""The loop that runs any method: shard by shard, in this process or in others, kept in a run folder or not."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay.engine.baseline import PlainRuns
from assay.engine.batches import Batch, Direction
from assay.engine.cost import CostMeter
from assay.errors import ModelError, OptionError, StoreError
from assay.methods.plan import Shard, make_plan
from assay.methods.progress import progress_of
from assay.methods.provenance import describe_environment
from assay.methods.workbench import Computed, Order, Workbench
from assay.model import Model
from assay.scale import Executor, InProcess, LocalProcesses
from assay.scores import Scores
from assay.store import RunFolder
from assay.store.files import differences

if TYPE_CHECKING:
    from assay.methods.method import Method, Setting


@contextmanager
def opened(folder: str | Path | RunFolder | None) -> Iterator[RunFolder | None]:
    """The run folder, held meanwhile; one that is held already stays so."""
    if folder is None or isinstance(folder, RunFolder):
        yield folder
    else:
        with RunFolder(folder) as held:
            yield held


@contextmanager
def threads_of_run(jobs: int | None, folder: RunFolder | None) -> Iterator[None]:
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


def require_jobs(jobs: int | None) -> None:
    """Refuse a number of processes that makes no sense."""
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise OptionError(f"--jobs must be at least 1, not {jobs}.")


def compute_values(
    method: Method,
    setting: Setting,
    measured: Sequence[tuple[Batch, PlainRuns]],
    direction: Direction,
    skip: bool,
    *,
    configuration: dict[str, Any],
    folder: RunFolder | None,
    jobs: int | None,
    cost: CostMeter,
    show: bool,
) -> np.ndarray:
    """(C, n) values in float64: every shard that the folder does not have yet is computed, then all are put together.

    Args:
        measured: the batches and their plain logits.
        configuration: what determines the numbers, as it is stored with the run.
        cost: is charged with what the shards took, those of earlier sittings included.
    """
    batches = [batch for batch, _ in measured]
    shards = make_plan(setting.model, setting.components, batches, by_component=method.by_component)
    found: dict[int, Computed] = {}
    if folder is not None:
        folder.begin(_plan(setting, configuration, shards))
        for shard in shards:
            kept = folder.read_shard(shard.number)
            if kept is not None and kept[0].shape == (len(shard.components), shard.rows):
                found[shard.number] = Computed(*kept)
    missing = [shard for shard in shards if shard.number not in found]
    executor: Executor = InProcess()

    def here(advance: Callable[[int], object]) -> Workbench:
        return Workbench(method, setting, batches, direction, skip, advance, measured)

    workshop: Callable[[Callable[[int], object]], Callable[[Shard], Computed]] = here
    if jobs is not None and jobs > 1:
        executor, workshop = LocalProcesses(jobs), Order.of(method, setting, direction, skip)
    total, done = sum(shard.size for shard in shards), sum(shards[number].size for number in found)
    with (
        progress_of(method.name, total, done, show) as advance,
        closing(executor.run(workshop, missing, advance)) as results,
    ):
        for shard, computed in results:
            found[shard.number] = computed
            if folder is not None:
                folder.write_shard(shard.number, computed.values, computed.cost)
    values = np.zeros((len(setting.components), int(max(row.example for row in setting.rows)) + 1))
    for shard in shards:
        examples = batches[shard.batch].examples.cpu().numpy()
        np.add.at(values, (np.array(shard.components)[:, None], examples[None]), found[shard.number].values)
        cost.add(CostMeter(**found[shard.number].cost))
    return values


def finished_scores(folder: RunFolder, configuration: dict[str, Any]) -> Scores:
    """What a finished run folder holds, if it is of this configuration.

    Raises:
        StoreError: it is not; the message names what differs.
    """
    scores = Scores.load(folder.path)
    if different := differences(scores.configuration, json.loads(json.dumps(configuration))):
        raise StoreError(
            f"{folder.path} holds a finished run of another configuration:\n"
            + "\n".join(different)
            + "\nChoose another folder."
        )
    return scores


def require_no_hooks(model: Model) -> None:
    """Refuse to keep a run whose model is not described by its weights and configuration.

    Raises:
        ModelError: hooks or replaced forward methods sit on it.
    """
    if model.has_foreign_hooks:
        raise ModelError(
            f"Hooks or replaced forward methods sit on {model.name}, and they cannot be told apart from one sitting to "
            "the next. Remove them, or leave the run folder out and save the scores."
        )


def _plan(setting: Setting, configuration: dict[str, Any], shards: Sequence[Shard]) -> dict[str, Any]:
    """Whatever decides the bytes of the result."""
    environment = describe_environment(setting.model)
    return {
        **configuration,
        "memory": setting.memory,
        "threads": environment["threads"],
        "versions": environment["versions"],
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "matmul_precision": torch.get_float32_matmul_precision(),
        "components_sha256": _hash([component.name for component in setting.components]),
        "shards": len(shards),
        "shards_sha256": _hash([[shard.batch, shard.rows, shard.components] for shard in shards]),
    }


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
