"""What ``assay compare`` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.markup import escape

from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, load_given
from assay.comparison import EXACT, compare, describe_method, parse_methods, require_comparable
from assay.data.encoding import require_align
from assay.data.metrics import metric_named
from assay.engine.batches import parse_memory
from assay.errors import OptionError
from assay.methods.registry import METHODS
from assay.methods.requirements import (
    require_defined,
    require_direction,
    require_gradient,
)
from assay.methods.sharded import Jobs, require_jobs
from assay.model.loading import DTYPES, fingerprint
from assay.report import describe
from assay.report.comparison import print_comparison, print_headline, print_setting, read_comparison, setting_of
from assay.report.comparison_page import write_comparison
from assay.report.places import print_folder
from assay.scores import Scores, configuration_hash
from assay.sites import Component, Selection, parse
from assay.store import finished_run, require_writable
from assay.store.files import read_run_json


def compare_methods(given: dict[str, Any], command: str, jobs: Jobs) -> None:
    """Compare, keep, print.

    Args:
        given: the command's arguments by name.
        command: the command line that makes this run again.
    """
    chosen = parse_methods(given["methods"])
    require_comparable(chosen, given["k"])
    require_direction(METHODS[EXACT], given["direction"])
    for method in chosen:
        for site, *_, position in parse(given["sites"]):
            require_defined(method, Selection([Component(0, site, None, position)]))
        if given["metric"] is not None:
            require_gradient(method, metric_named(given["metric"]), require_direction(method, given["direction"]))
        if given["dtype"] in DTYPES and method.second_order and DTYPES[given["dtype"]].itemsize < 4:
            raise OptionError(f"{method.name} takes second derivatives, which need --dtype float32 or float64.")
    require_jobs(jobs)
    parse_memory(given["memory"])
    require_align(given["align"])
    prompts = TaskPrompts(given)
    request: dict[str, Any] = {
        "command": "compare",
        "model": fingerprint(given["model"]),
        "task": prompts.description,
        "align": given["align"],
        "chat": given["chat"],
        "methods": [describe_method(method) for method in chosen],
        "direction": require_direction(METHODS[EXACT], given["direction"]),
        "sites": given["sites"],
        "k": given["k"],
        "seed": given["seed"],
        "metric": given["metric"],
        "dtype": given["dtype"],
        "device": given["device"],
        "device_map": given["device_map"],
        "max_memory": given["max_memory"],
        "force": given["force"],
    }
    folder = given["out"] or Path("runs") / f"compare-{prompts.name}-{configuration_hash(request)}"
    console = make_console()
    if finished_run(folder, request):
        if not given["as_json"]:
            console.print(f"This comparison is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        loaded = load_given(given)
        if not given["as_json"]:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        pairs = prompts.pairs(loaded)
        names = ("k", "sites", "metric", "direction", "memory", "seed", "align", "chat", "force")
        measured: list[Scores] = []
        options = {name: given[name] for name in names}
        exact, found = compare(loaded, pairs, chosen, **options, jobs=jobs, progress=True, on_scores=measured.append)
        exact.provenance["command"] = command
        kept = {"request": request, "configuration": exact.configuration, "provenance": exact.provenance}
        write_comparison(folder, found, {**setting_of(exact), **kept}, exact, measured[1:])
    run = read_run_json(folder)
    if given["as_json"]:
        print(json.dumps(run, indent=2, ensure_ascii=False))
        return
    print_headline(console, run)
    print_setting(console, run)
    print_comparison(console, read_comparison(run), given["k"])
    print_folder(console, folder)
