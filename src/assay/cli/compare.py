"""``assay compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from assay.cli import options
from assay.cli.console import make_console
from assay.cli.running import TaskPrompts
from assay.comparison import EXACT, compare, describe_method, parse_methods, require_comparable
from assay.data.encoding import require_align
from assay.data.metrics import metric_named
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
from assay.report.comparison import print_comparison, print_setting, read_comparison, setting_of, write_comparison
from assay.scores import configuration_hash
from assay.sites import Component, Selection, parse
from assay.store import finished_run, require_writable
from assay.store.files import read_run_json


def compare_methods(
    model: options.Model,
    task: options.Task,
    methods: Annotated[
        str, typer.Option(help="Such as attribution-patching,hvp,ms-hvp:segments=2,hvp-sampled:probes=16.")
    ] = "attribution-patching,hvp,ms-hvp,hvp-sampled,integrated-gradients",
    sites: options.Sites = "heads",
    k: Annotated[int, typer.Option(help="Overlap of the k largest components.")] = 10,
    n: options.Number = None,
    seed: options.Seed = 0,
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
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    memory: options.Memory = DEFAULT_MEMORY,
    force: options.Force = False,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/compare-TASK-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Hold METHODS against exhaustive exact patching: how far off is each, and what does it cost?"""
    given = dict(locals())
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
    require_align(align)
    prompts = TaskPrompts(given)
    request: dict[str, Any] = {
        "command": "compare",
        "model": fingerprint(model),
        "task": prompts.description,
        "align": align,
        "chat": chat,
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
    folder = out or Path("runs") / f"compare-{prompts.name}-{configuration_hash(request)}"
    console = make_console()
    if finished_run(folder, request):
        if not as_json:
            console.print(f"This comparison is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        loaded = load(model, dtype=dtype, device=device)
        if not as_json:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        pairs = prompts.pairs(loaded)
        exact, found = compare(
            loaded, pairs, chosen, k=k, sites=sites, metric=metric, direction=direction,  # type: ignore[arg-type]
            memory=memory, seed=seed, align=align, chat=chat, force=force, progress=True,  # type: ignore[arg-type]
        )  # fmt: skip
        kept = {"request": request, "configuration": exact.configuration, "provenance": exact.provenance}
        write_comparison(folder, found, {**setting_of(exact), **kept})
    run = read_run_json(folder)
    if as_json:
        print(json.dumps(run, indent=2, ensure_ascii=False))
        return
    print_setting(console, run)
    print_comparison(console, read_comparison(run), k)
    console.print(f"Folder: {escape(str(folder))}", style="dim", soft_wrap=True)
