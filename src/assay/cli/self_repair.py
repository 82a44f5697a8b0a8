"""``assay self-repair``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from assay.cli import options
from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, check_common, command_line
from assay.data.metrics import metric_named
from assay.data.readers import PromptSource, open_prompts
from assay.engine.batches import DEFAULT_MEMORY
from assay.errors import OptionError
from assay.interactions import load_self_repair, save_self_repair
from assay.interactions import self_repair as measure_self_repair
from assay.interactions.compensation import ablation_method, compensation
from assay.interactions.self_repair import METHOD, RELATIVE, RERUN, TEMPERATURE, THRESHOLD, Limits
from assay.methods.requirements import require_gradient, require_mean, require_reference
from assay.model.loading import fingerprint, load
from assay.report import describe
from assay.report.self_repair import as_json as as_dictionary
from assay.report.self_repair import print_self_repair
from assay.report.self_repair_page import write_self_repair_page
from assay.scores import configuration_hash
from assay.store import finished_run, require_writable


def self_repair(
    model: options.Model,
    task: options.Task,
    threshold: Annotated[
        float, typer.Option(help="A key matters if it contributes more than this, in the metric's unit.")
    ] = THRESHOLD,
    relative: Annotated[
        float, typer.Option(help="Or more than this share of the prompt's largest contribution.")
    ] = RELATIVE,
    temperature: Annotated[
        float, typer.Option(help="Of the softmax in the gradient that is held against the true one.")
    ] = TEMPERATURE,
    rerun: Annotated[
        int, typer.Option(help="Rows, drawn at random, whose ablations are also measured by running the model.")
    ] = RERUN,
    components: Annotated[
        str | None,
        typer.Option(help="Also ablate each head, zero, mean or resample: what do later components give back?"),
    ] = None,
    mean: Annotated[str | None, typer.Option(help="Of --components mean: position (default) or all-positions.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Of --components mean and resample: pairs whose corrupted prompts serve instead."),
    ] = None,
    n: options.Number = None,
    seed: options.Seed = 0,
    metric: options.MetricName = None,
    corruption: options.Corruption = None,
    length: options.Length = None,
    relation: options.Relation = None,
    kind: options.TaskKind = None,
    operation: options.Operation = None,
    columns: options.Columns = None,
    template: options.Template = None,
    align: options.AlignName = "reject",
    chat: options.Chat = False,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    revision: options.Revision = None,
    memory: options.Memory = DEFAULT_MEMORY,
    force: options.Force = False,
    top: Annotated[int, typer.Option(help="Heads to print.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/self-repair-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """How often do two keys of a head stand in for each other, so that ablating one, or its gradient, shows nothing?"""
    given = dict(locals())
    _check(given)
    prompts = TaskPrompts(given)
    references = open_prompts(reference) if reference else None
    request = _request(given, prompts, references)
    folder = out or Path("runs") / f"self-repair-{prompts.name}-{configuration_hash(request)}"
    console = make_console()
    if finished_run(folder, request):
        found = load_self_repair(folder)
        if not as_json:
            console.print(f"This run is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        loaded = load(model, dtype=dtype, device=device, revision=revision)
        if not as_json:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        pairs = prompts.pairs(loaded)
        common: dict[str, Any] = {
            "metric": metric, "memory": memory, "seed": seed, "align": align, "chat": chat, "force": force,
            "progress": True,
        }  # fmt: skip
        found = measure_self_repair(
            loaded, pairs, threshold=threshold, relative=relative, temperature=temperature, rerun=rerun, **common
        )
        if components is not None:
            others = references.pairs(loaded, seed) if references else None
            heads = compensation(loaded, pairs, ablation=components, mean=mean, reference=others, **common)  # type: ignore[arg-type]
            found = replace(found, compensation=heads)
        found.provenance["command"] = command_line(self_repair, "self-repair", given)
        save_self_repair(
            found, folder, request, finish=lambda scratch: write_self_repair_page(found, scratch / "report.html")
        )
    if as_json:
        print(json.dumps(as_dictionary(found, top), indent=2, ensure_ascii=False))
        return
    print_self_repair(console, found, top)
    console.print(f"Run folder: {escape(str(folder))}", style="dim", soft_wrap=True)
    console.print(f"Page: {escape(str((folder / 'report.html').resolve()))}", style="dim", soft_wrap=True)


def _check(given: dict[str, Any]) -> None:
    """Refuse what can be refused before a model is loaded."""
    Limits(**{name: given[name] for name in ("threshold", "relative", "temperature", "rerun")})
    if given["components"] is not None:
        method = ablation_method(given["components"])
        require_mean(method, given["mean"])
        require_reference(method, given["reference"] is not None)
    elif given["mean"] is not None or given["reference"] is not None:
        raise OptionError("--mean and --reference belong to --components mean or resample.")
    if given["metric"] is not None:
        require_gradient(METHOD, metric_named(given["metric"]), "ablation")
    check_common({**given, "jobs": None})


def _request(given: dict[str, Any], prompts: TaskPrompts, references: PromptSource | None) -> dict[str, Any]:
    """What makes two runs the same."""
    names = (
        "threshold", "relative", "temperature", "rerun", "components",
        "seed", "align", "chat", "dtype", "device", "force",
    )  # fmt: skip
    return {
        "command": "self-repair",
        "model": fingerprint(given["model"], given["revision"]),
        "task": prompts.description,
        "metric": given["metric"] or prompts.metric,
        **{name: given[name] for name in names},
        "mean": given["mean"] or ("position" if given["components"] == "mean" else None),
        "reference": references and references.sha256,
    }
