"""What every command that computes a run does: open the prompts, go on or begin, keep, print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape

from assay.cli.console import Interrupted
from assay.data import PromptPairs
from assay.data.encoding import require_align
from assay.data.equal_lengths import equal_lengths
from assay.data.readers import open_prompts, parse_columns
from assay.data.tasks import DEFAULT_PAIRS, TASKS, make_pairs, require_task
from assay.engine.batches import parse_memory
from assay.errors import ModelError, OptionError, instead_of
from assay.methods.sharded import require_jobs
from assay.model import Model
from assay.model.loading import DTYPES, fingerprint, load
from assay.report import describe, write_page
from assay.scores import Scores
from assay.store import RunFolder, finished_run

TASK_OPTIONS = tuple(dict.fromkeys(name for task in TASKS.values() for name in task.options))
Result = TypeVar("Result", bound=Scores)


class TaskPrompts:
    """What ``--task`` names: a task, or a file that is read once, before anything slow.

    Args:
        given: the command's arguments by name.

    Raises:
        AssayError: prompts or options of theirs that cannot be used.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.task, self.n, self.seed = given["task"], given["n"], given["seed"]
        self.options = {name: given[name] for name in TASK_OPTIONS}
        require_task(self.task, self.n, columns=given["columns"], template=given["template"], **self.options)
        self.source = None
        if self.task not in TASKS:
            self.source = open_prompts(self.task, parse_columns(given["columns"]), given["template"])
        # What needs no tokenizer is read before a model is loaded, so that its errors come at once.
        early = self.source is not None and not self.source.needs_model
        self.skips = given["align"] == "skip"
        self.chat = given["chat"]
        self.read = None if self.skips else self.n
        self.early = self.source.pairs(seed=self.seed, n=self.read) if self.source and early else None

    @property
    def name(self) -> str:
        return self.source.task if self.source else str(self.task)

    @property
    def metric(self) -> str | None:
        """The task's own; None of a file, for which the model decides."""
        return None if self.source else TASKS[self.task].metric

    @property
    def description(self) -> dict[str, Any]:
        """For the request: defaults written out, files by content."""
        if self.source:
            return {"n": len(self.early) if self.early and not self.skips else self.n, **self.source.options}
        task = TASKS[self.task]
        chosen = {name: self.options[name] for name in task.options if self.options[name] is not None}
        return {"name": task.name, "n": self.n or DEFAULT_PAIRS, **task.defaults, **chosen}

    def pairs(self, model: Model) -> PromptPairs:
        """The pairs; what was left out of them is counted in their ``options["dropped"]``."""
        if self.source:
            pairs = self.early or self.source.pairs(model, self.seed, self.read)
        else:
            pairs = make_pairs(model, self.task, self.n or DEFAULT_PAIRS, self.seed, **self.options)
        return equal_lengths(model, pairs, self.n, chat=self.chat) if self.skips else pairs


def check_common(given: dict[str, Any]) -> None:
    """Refuse what can be refused before a model is loaded."""
    require_jobs(given["jobs"])
    require_align(given["align"])
    parse_memory(given["memory"])
    if given["dtype"] not in DTYPES:
        raise OptionError(f"There is no dtype {given['dtype']!r}. {instead_of(given['dtype'], DTYPES)}")
    if given["top"] < 1:
        raise OptionError(f"--top must be at least 1, not {given['top']}.")


def load_given(given: dict[str, Any]) -> Model:
    """The model that a command's options name, where they say."""
    names = ("dtype", "device", "device_map", "max_memory", "checkpointing", "revision")
    return load(given["model"], **{name: given[name] for name in names if name in given})


def carry_out(
    console: Console,
    given: dict[str, Any],
    prompts: TaskPrompts,
    request: dict[str, Any],
    folder: Path,
    compute: Callable[[Model, PromptPairs, RunFolder], Result],
    *,
    command: str,
    finished: Callable[[str], None],
    limit: str | None = None,
) -> Result | None:
    """Compute and keep a run, unless the folder holds it already.

    Args:
        request: what makes two runs the same.
        finished: prints what the folder holds, with a reason why nothing was computed.
        limit: the entry of ``request`` that a run ends early at, and with more of which it is gone on with.

    Returns:
        The result, saved; None if it was there.
    """
    if finished_run(folder, request, limit):
        finished("This run is finished already; nothing was computed.")
        return None
    with RunFolder(folder, without(request, limit)) as kept:
        if finished_run(folder, request, limit):
            finished("Another process finished the same run just now.")
            return None
        if kept.plan is not None:
            console.print(f"Going on in {escape(str(folder))}: {kept.progress} there.")
        try:
            loaded = load_given(given)
            if fingerprint(given["model"], given["revision"]) != request["model"]:
                raise ModelError(f"The files of {given['model']} changed while they were read. Run the command again.")
            console.print(escape(describe(loaded)), style="dim", highlight=False)
            pairs = prompts.pairs(loaded)
            dropped = pairs.options.get("dropped", {})
            for reason, count in dropped.items():
                line = f"Left out: {count} of {len(pairs) + sum(dropped.values())} rows of {given['task']}: {reason}."
                console.print(escape(line), style="dim")
            scores = compute(loaded, pairs, kept)
            scores.provenance["command"] = command
            scores.request.update(request)
            scores.save(kept, finish=lambda scratch: write_page(scores, scratch / "report.html"))
        except KeyboardInterrupt:
            raise Interrupted(what_is_kept(kept)) from None
    return scores


def what_is_kept(folder: RunFolder) -> str:
    if not folder.kept:
        return "nothing was finished yet, so nothing is kept."
    return f"{folder.progress} finished and kept in {folder.path}, and the same command goes on from there."


def without(request: dict[str, Any], name: str | None) -> dict[str, Any]:
    """A request but for one entry."""
    return {key: value for key, value in request.items() if key != name}
