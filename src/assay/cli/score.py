"""``assay score`` and ``assay demo``."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from assay.cli.console import make_console
from assay.data import PromptPairs
from assay.data.encoding import require_align
from assay.data.equal_lengths import UNEQUAL, equal_lengths
from assay.data.metrics import metric_named
from assay.data.readers import PromptSource, open_prompts, parse_columns
from assay.data.tasks import DEFAULT_PAIRS, TASKS, make_pairs, require_task
from assay.engine.batches import DEFAULT_MEMORY, parse_memory
from assay.engine.paths import RECEIVERS_ARE
from assay.errors import ModelError, OptionError, instead_of
from assay.methods.integrated_gradients import RULES
from assay.methods.method import DEFAULT_SITES, Method, measure
from assay.methods.path_patching import NAME as PATH_PATCHING
from assay.methods.registry import PARAMETERS, method_named
from assay.methods.requirements import (
    require_defined,
    require_direction,
    require_gradient,
    require_mean,
    require_reference,
)
from assay.methods.sharded import require_jobs
from assay.model.loading import DTYPES, fingerprint, load
from assay.report import describe, print_baseline, print_finished, print_scores, write_page
from assay.scores import Scores, configuration_hash
from assay.sites import Component, Selection, parse
from assay.store import RunFolder, finished_run

Model = Annotated[
    str, typer.Argument(help="Short name (assay list models), local folder, GGUF file, or hub id.", show_default=False)
]
Task = Annotated[
    str,
    typer.Option(
        help="A task (assay list tasks), a .jsonl, .csv, .parquet or .json file of prompts, or a data set as "
        "hf:owner/name[:config][:split]."
    ),
]
Number = Annotated[
    int | None,
    typer.Option("--n", help="Prompt pairs; of a file, the first so many. Default: 16 of a task, all of a file."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Run folder. Default: runs/score-<task>-<hash>. The same command goes on with a run that was interrupted."
    ),
]


def score(
    model: Model,
    task: Task,
    n: Number = None,
    seed: Annotated[int, typer.Option(help="Of the task's prompts and of methods that draw.")] = 0,
    sites: Annotated[
        str, typer.Option(help="Comma-separated (assay list sites), such as heads[8:24]@last,mlps.")
    ] = DEFAULT_SITES,
    method: Annotated[str, typer.Option(help="See assay list methods.")] = "activation-patching",
    metric: Annotated[str | None, typer.Option(help="See assay list metrics. Default: the task's.")] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="denoise: clean into corrupted (default). noise: corrupted into clean."),
    ] = None,
    corruption: Annotated[str | None, typer.Option(help="Of ioi: abc (default), swap, random-token.")] = None,
    length: Annotated[
        int | None, typer.Option(help="Of sort and reverse: numbers (default 5). Of induction: words (default 6).")
    ] = None,
    relation: Annotated[str | None, typer.Option(help="Of facts: one, such as country-capital; default all.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of sentiment: reviews (default) or words.")] = None,
    operation: Annotated[str | None, typer.Option(help="Of arithmetic: plus (default) or minus.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Of a table: what its columns are called, as in clean=prompt,answer=target.")
    ] = None,
    template: Annotated[int | None, typer.Option(help="Of a relation: which of its templates (default 0).")] = None,
    align: Annotated[
        str,
        typer.Option(
            help="Prompts of unequal token length: reject; skip: leave such pairs out, --n counts the others; pad the "
            "shorter in front, with tokens that are attended to; last-k: keep only the last tokens of both."
        ),
    ] = "reject",
    chat: Annotated[
        bool, typer.Option("--chat", help="Put prompts into the model's chat template; answers then need no space.")
    ] = False,
    mean: Annotated[str | None, typer.Option(help="Of mean-ablation: position (default) or all-positions.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Of mean- and resample-ablation: a file of pairs whose corrupted prompts serve instead of the run's."
        ),
    ] = None,
    receivers: Annotated[
        str | None,
        typer.Option(
            help="Of path-patching: what reads the change: q, k, v, mlps and logits, as in q[9:12],mlps[10],logits."
        ),
    ] = None,
    segments: Annotated[int | None, typer.Option(help="Of ms-hvp: second-order steps (default 5).")] = None,
    probes: Annotated[int | None, typer.Option(help="Of hvp-sampled: products for each kind (default 8).")] = None,
    precision: Annotated[
        float | None, typer.Option(help="Of hvp-sampled: more probes, until the relative error of curvature is this.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help=f"Of integrated-gradients: {', '.join(RULES)} (default midpoint).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Of integrated-gradients (default 10) and integrated-hessians (default 5).")
    ] = None,
    qk_fix: Annotated[
        bool | None, typer.Option("--qk-fix/--no-qk-fix", help="Of atp-star: queries and keys through the softmax.")
    ] = None,
    grad_drop: Annotated[
        bool | None, typer.Option("--grad-drop/--no-grad-drop", help="Of atp-star: a backward pass without each layer.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"Of the weights: {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    revision: Annotated[str | None, typer.Option(help="Of a hub model: branch, tag or commit.")] = None,
    memory: Annotated[
        str, typer.Option(help="Working memory of each process beyond the weights; sets batch sizes.")
    ] = DEFAULT_MEMORY,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Compute in so many processes of one thread each. Default: in this one, with torch's own threads."
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Components to print.")] = 20,
    skip: Annotated[bool, typer.Option(help="--no-skip also runs what is known to change nothing.")] = True,
    force: Annotated[bool, typer.Option(help="Go on although the model cannot do the task.")] = False,
    out: Out = None,
) -> None:
    """Score every component of MODEL on a task: how much does each drive the behaviour?"""
    given = dict(locals())
    chosen = _method(given)
    _check_options(chosen, sites, metric, direction, mean, reference, dtype, memory, top)
    require_jobs(jobs)
    require_align(align)
    task_options = {name: given[name] for each in TASKS.values() for name in each.options}
    source = _open_task(given, task_options)
    # What needs no tokenizer is read before a model is loaded, so that its errors come at once.
    read = None if align == "skip" else n
    prompts = source.pairs(seed=seed, n=read) if source and not source.needs_model else None
    references = open_prompts(reference) if reference else None
    request = _request(given, source, prompts, references)
    name = source.task if source else task
    folder = out or Path("runs") / f"score-{name}-{configuration_hash(request)}"
    console = make_console()
    if finished_run(folder, request):
        _show_finished(console, folder, top, "This run is finished already; nothing was computed.")
        return
    with RunFolder(folder, request) as kept:
        if finished_run(folder, request):
            _show_finished(console, folder, top, "Another process finished the same run just now.")
            return
        if kept.plan is not None:
            console.print(f"Going on in {escape(str(folder))}: {kept.kept} of {kept.plan['shards']} shards are there.")
        loaded = load(model, dtype=dtype, device=device, revision=revision)
        if fingerprint(model, revision) != request["model"]:
            raise ModelError(f"The files of {model} changed while they were read. Run the command again.")
        console.print(escape(describe(loaded)), style="dim", highlight=False)
        if source:
            pairs = prompts or source.pairs(loaded, seed, read)
        else:
            pairs = make_pairs(loaded, task, n or DEFAULT_PAIRS, seed, **task_options)
        _print_left_out(console, task, pairs, pairs.options.get("dropped", {}))
        if align == "skip":
            pairs = equal_lengths(loaded, pairs, n, chat=chat)
            unequal = pairs.options.get("dropped", {}).get(UNEQUAL)
            _print_left_out(console, task, pairs, {UNEQUAL: unequal} if unequal else {})
        scores = measure(
            chosen,
            loaded,
            pairs,
            sites=sites,
            metric=metric,
            direction=direction,  # type: ignore[arg-type]  # checked above
            memory=memory,
            seed=seed,
            mean=mean,  # type: ignore[arg-type]
            reference=references.pairs(loaded, seed) if references else None,
            align=align,  # type: ignore[arg-type]
            chat=chat,
            skip=skip,
            force=force,
            progress=True,
            jobs=jobs,
            run_folder=kept,
            on_baseline=lambda baseline, chosen, why: print_baseline(console, baseline, chosen, why),
        )
        scores.provenance["command"] = _command(given)
        scores.request.update(request)
        scores.save(kept, finish=lambda scratch: write_page(scores, scratch / "report.html"))
    print_scores(console, scores, top, folder)


def demo(out: Out = None) -> None:
    """Run the main job on a small model that the package carries: which parts sort the numbers?"""
    score(model="sequence-sort", task="sort", out=out)


def _show_finished(console: Console, folder: Path, top: int, reason: str) -> None:
    console.print(f"{reason} Folder: {escape(str(folder))}", style="dim")
    print_finished(console, Scores.load(folder), top, folder)


def _print_left_out(console: Console, task: str, left: PromptPairs, dropped: dict[str, int]) -> None:
    rows = len(left) + sum(dropped.values())
    for reason, count in dropped.items():
        console.print(escape(f"Left out: {count} of {rows} rows of {task}: {reason}."), style="dim")


def _open_task(given: dict[str, Any], task_options: dict[str, Any]) -> PromptSource | None:
    """The file of prompts, read once and before anything slow; None for a named task, whose options are checked."""
    require_task(given["task"], given["n"], columns=given["columns"], template=given["template"], **task_options)
    if given["task"] in TASKS:
        return None
    return open_prompts(given["task"], parse_columns(given["columns"]), given["template"])


def _request(
    given: dict[str, Any], source: PromptSource | None, prompts: PromptPairs | None, references: PromptSource | None
) -> dict[str, Any]:
    """What makes two runs the same: all that determines the numbers, defaults written out, files by content."""
    method = _method(given)
    metric = given["metric"]
    if source is None:
        task = TASKS[given["task"]]
        options = {name: given[name] for name in task.options if given[name] is not None}
        what = {"name": task.name, "n": given["n"] or DEFAULT_PAIRS, **task.defaults, **options}
        metric = metric or task.metric
    else:
        fixed = prompts is not None and given["align"] != "skip"
        what = {"n": len(prompts) if prompts and fixed else given["n"], **source.options}
    request = {
        "model": fingerprint(given["model"], given["revision"]),
        "task": what,
        "method": method.name,
        "metric": metric,
        "direction": require_direction(method, given["direction"]),
        **{name: given[name] for name in ("seed", "sites", "align", "chat", "dtype", "device", "skip", "force")},
    }
    request.update(method.parameters)
    if method.uses_means:
        request["mean"] = require_mean(method, given["mean"])
    if method.uses_reference:
        request["reference"] = references and references.sha256
    return request


def _method(given: dict[str, Any]) -> Method:
    """The method with its parameters."""
    return method_named(given["method"], **{name: given[name] for name in PARAMETERS})


def _check_options(
    chosen: Method,
    sites: str,
    metric: str | None,
    direction: str | None,
    mean: str | None,
    reference: Path | None,
    dtype: str,
    memory: str,
    top: int,
) -> None:
    """Refuse what can be refused before a model is loaded."""
    for kind, *_, position in parse(sites):
        require_defined(chosen, Selection([Component(0, kind, None, position)]))
    base = require_direction(chosen, direction)
    require_mean(chosen, mean)
    require_reference(chosen, reference is not None)
    if chosen.name == PATH_PATCHING and not chosen.parameters.get("receivers"):
        raise OptionError(f"{PATH_PATCHING} needs --receivers. {RECEIVERS_ARE}")
    if metric is not None:
        require_gradient(chosen, metric_named(metric), base)
    if dtype not in DTYPES:
        raise OptionError(f"There is no dtype {dtype!r}. {instead_of(dtype, DTYPES)}")
    if chosen.second_order and DTYPES[dtype].itemsize < 4:
        raise OptionError(f"{chosen.name} takes second derivatives, which need --dtype float32 or float64.")
    if top < 1:
        raise OptionError(f"--top must be at least 1, not {top}.")
    parse_memory(memory)


def _command(given: dict[str, Any]) -> str:
    """The command line that makes this run again: what differs from the defaults."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(score).parameters.items()}
    words = ["assay", "score", given["model"], "--task", given["task"]]
    for name, value in given.items():
        if name in ("model", "task") or value == defaults[name]:
            continue
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", str(value)]
    return shlex.join(words)
