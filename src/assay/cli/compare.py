"""``assay compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from assay.cli.console import make_console
from assay.comparison import EXACT, compare, describe_method, parse_methods, require_comparable
from assay.data import PromptPairs
from assay.data.metrics import metric_named
from assay.data.readers import open_prompts
from assay.data.tasks import DEFAULT_PAIRS, TASKS, make_pairs, require_task
from assay.engine.batches import DEFAULT_MEMORY, parse_memory
from assay.errors import OptionError
from assay.methods.registry import METHODS
from assay.methods.requirements import (
    require_defined,
    require_direction,
    require_gradient,
)
from assay.model.loading import DTYPES, fingerprint, load
from assay.report import describe
from assay.report.comparison import print_comparison, read_comparison, write_comparison
from assay.scores import configuration_hash
from assay.sites import Component, Selection, parse
from assay.store import finished_run, require_writable
from assay.store.files import read_run_json


def compare_methods(
    model: Annotated[str, typer.Argument(help="Folder, GGUF file, hub id or short name.", show_default=False)],
    task: Annotated[str, typer.Option(help="A name (assay list tasks) or a file of prompt pairs.", show_default=False)],
    methods: Annotated[
        str, typer.Option(help="Such as attribution-patching,hvp,ms-hvp:segments=2,hvp-sampled:probes=16.")
    ] = "attribution-patching,hvp,ms-hvp,hvp-sampled,integrated-gradients",
    sites: Annotated[str, typer.Option(help="See assay list sites.")] = "heads",
    k: Annotated[int, typer.Option(help="Overlap of the k largest components.")] = 10,
    n: Annotated[int | None, typer.Option(help=f"Prompt pairs (default {DEFAULT_PAIRS}; of a file: all).")] = None,
    seed: Annotated[int, typer.Option(help="Of everything drawn.")] = 0,
    metric: Annotated[str | None, typer.Option(help="See assay list metrics. Default: the task's.")] = None,
    direction: Annotated[str | None, typer.Option(help="denoise (default) or noise.")] = None,
    corruption: Annotated[str | None, typer.Option(help="Of ioi: abc (default), swap, random-token.")] = None,
    length: Annotated[int | None, typer.Option(help="Of sort, reverse and induction.")] = None,
    relation: Annotated[str | None, typer.Option(help="Of facts.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of sentiment.")] = None,
    operation: Annotated[str | None, typer.Option(help="Of arithmetic.")] = None,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32 or float64 for second derivatives.")] = "float32",
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    memory: Annotated[str, typer.Option(help="Working memory beyond the weights; sets batch sizes.")] = DEFAULT_MEMORY,
    force: Annotated[bool, typer.Option(help="Go on although the model cannot do the task.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/compare-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Hold METHODS against exhaustive exact patching: how far off is each, and what does it cost?"""
    chosen = parse_methods(methods)
    require_comparable(chosen, k)
    require_direction(METHODS[EXACT], direction)
    for method in chosen:
        for site, *_, position in parse(sites):
            require_defined(method, Selection([Component(0, site, None, position)]))
        if metric is not None:
            require_gradient(method, metric_named(metric), require_direction(method, direction))
        if dtype in DTYPES and method.second_order and DTYPES[dtype].itemsize < 4:
            raise OptionError(f"{method.name} takes second derivatives, which need --dtype float32 or float64.")
    parse_memory(memory)
    options = {"corruption": corruption, "length": length, "relation": relation, "kind": kind, "operation": operation}
    require_task(task, n, columns=None, template=None, **options)
    source = None if task in TASKS else open_prompts(task)
    given = {name: value for name, value in options.items() if value is not None}
    what = (
        {"name": task, "n": n or DEFAULT_PAIRS, **TASKS[task].defaults, **given} if source is None else source.options
    )
    request: dict[str, Any] = {
        "command": "compare",
        "model": fingerprint(model),
        "task": what,
        "n": n,
        "methods": [describe_method(method) for method in chosen],
        "direction": require_direction(METHODS[EXACT], direction),
        "sites": sites,
        "k": k,
        "seed": seed,
        "metric": metric,
        "dtype": dtype,
        "device": device,
        "force": force,
    }
    folder = out or Path("runs") / f"compare-{source.task if source else task}-{configuration_hash(request)}"
    console = make_console()
    if finished_run(folder, request):
        found = read_comparison(read_run_json(folder))
        if not as_json:
            console.print(f"This comparison is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        loaded = load(model, dtype=dtype, device=device)
        if not as_json:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        pairs: PromptPairs = (
            source.pairs(loaded, seed, n) if source else make_pairs(loaded, task, n or DEFAULT_PAIRS, seed, **options)
        )
        exact, found = compare(
            loaded, pairs, chosen, k=k, sites=sites, metric=metric, direction=direction,  # type: ignore[arg-type]
            memory=memory, seed=seed, force=force, progress=True,
        )  # fmt: skip
        run = {"request": request, "configuration": exact.configuration, "provenance": exact.provenance}
        write_comparison(folder, found, run)
    if as_json:
        print(json.dumps([row.to_dict() for row in found], indent=2))
        return
    print_comparison(console, found, k)
    console.print(f"Folder: {escape(str(folder))}", style="dim", soft_wrap=True)
