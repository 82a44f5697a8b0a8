"""``assay score``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from assay.cli import options
from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, carry_out, check_common, command_line
from assay.data import PromptPairs
from assay.data.metrics import metric_named
from assay.data.readers import PromptSource, open_prompts
from assay.engine.batches import DEFAULT_MEMORY
from assay.engine.paths import RECEIVERS_ARE
from assay.errors import OptionError
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
from assay.model import Model
from assay.model.loading import DTYPES, fingerprint
from assay.report import print_baseline, print_finished, print_scores
from assay.scores import Scores, configuration_hash
from assay.sites import Component, Selection, parse
from assay.store import RunFolder


def score(
    model: options.Model,
    task: options.Task,
    n: options.Number = None,
    seed: options.Seed = 0,
    sites: options.Sites = DEFAULT_SITES,
    method: Annotated[str, typer.Option(help="See assay list methods.")] = "activation-patching",
    metric: options.MetricName = None,
    direction: options.DirectionName = None,
    corruption: options.Corruption = None,
    length: options.Length = None,
    relation: options.Relation = None,
    kind: options.TaskKind = None,
    operation: options.Operation = None,
    columns: options.Columns = None,
    template: options.Template = None,
    align: options.AlignName = "reject",
    chat: options.Chat = False,
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
    rules: Annotated[
        str | None,
        typer.Option(
            help="Of first-order gradient methods: backward rules (assay list rules), such as gim; default plain."
        ),
    ] = None,
    qk_fix: Annotated[
        bool | None, typer.Option("--qk-fix/--no-qk-fix", help="Of atp-star: queries and keys through the softmax.")
    ] = None,
    grad_drop: Annotated[
        bool | None, typer.Option("--grad-drop/--no-grad-drop", help="Of atp-star: a backward pass without each layer.")
    ] = None,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    revision: options.Revision = None,
    memory: options.Memory = DEFAULT_MEMORY,
    jobs: options.Jobs = None,
    top: Annotated[int, typer.Option(help="Components to print.")] = 20,
    skip: Annotated[bool, typer.Option(help="--no-skip also runs what is known to change nothing.")] = True,
    force: options.Force = False,
    out: options.Out = None,
) -> None:
    """Score every component of MODEL on a task: how much does each drive the behaviour?"""
    given = dict(locals())
    chosen = _method(given)
    _check_options(chosen, given)
    prompts = TaskPrompts(given)
    references = open_prompts(reference) if reference else None
    request = _request(given, prompts, references)
    folder = out or Path("runs") / f"score-{prompts.name}-{configuration_hash(request)}"
    console = make_console()

    def compute(loaded: Model, pairs: PromptPairs, kept: RunFolder) -> Scores:
        return measure(
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

    scores = carry_out(
        console,
        given,
        prompts,
        request,
        folder,
        compute,
        command=command_line(score, "score", given),
        finished=lambda reason: _show_finished(console, folder, top, reason),
    )
    if scores is not None:
        print_scores(console, scores, top, folder)


def _show_finished(console: Console, folder: Path, top: int, reason: str) -> None:
    console.print(f"{reason} Folder: {escape(str(folder))}", style="dim")
    print_finished(console, Scores.load(folder), top, folder)


def _request(given: dict[str, Any], prompts: TaskPrompts, references: PromptSource | None) -> dict[str, Any]:
    """What makes two runs the same: all that determines the numbers, defaults written out, files by content."""
    method = _method(given)
    request = {
        "model": fingerprint(given["model"], given["revision"]),
        "task": prompts.description,
        "method": method.name,
        "metric": given["metric"] or prompts.metric,
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


def _check_options(chosen: Method, given: dict[str, Any]) -> None:
    """Refuse what can be refused before a model is loaded."""
    for kind, *_, position in parse(given["sites"]):
        require_defined(chosen, Selection([Component(0, kind, None, position)]))
    base = require_direction(chosen, given["direction"])
    require_mean(chosen, given["mean"])
    require_reference(chosen, given["reference"] is not None)
    if chosen.name == PATH_PATCHING and not chosen.parameters.get("receivers"):
        raise OptionError(f"{PATH_PATCHING} needs --receivers. {RECEIVERS_ARE}")
    if given["metric"] is not None:
        require_gradient(chosen, metric_named(given["metric"]), base)
    check_common(given)
    if chosen.second_order and DTYPES[given["dtype"]].itemsize < 4:
        raise OptionError(f"{chosen.name} takes second derivatives, which need --dtype float32 or float64.")
