"""What ``assay response`` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.markup import escape

from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, check_common, load_given
from assay.data.metrics import metric_named
from assay.methods import METHODS
from assay.methods.requirements import require_direction
from assay.model.loading import fingerprint
from assay.report import describe
from assay.report.response import print_response, read_response, response_to_dict
from assay.report.response_page import write_response
from assay.scores import configuration_hash
from assay.screening import response_curve
from assay.screening.curve import require_grid
from assay.store import finished_run, require_writable
from assay.store.files import read_run_json


def respond(given: dict[str, Any], command: str) -> None:
    """Measure, keep, print.

    Args:
        given: the command's arguments by name.
        command: the command line that makes this run again.
    """
    check_common({**given, "jobs": None, "top": 1})
    require_grid(given["points"], given["segments"])
    direction = require_direction(METHODS["activation-patching"], given["direction"])
    if given["metric"] is not None:
        metric_named(given["metric"])
    prompts = TaskPrompts(given)
    entries = (
        "component",
        "points",
        "segments",
        "seed",
        "align",
        "chat",
        "dtype",
        "device",
        "device_map",
        "max_memory",
    )
    request: dict[str, Any] = {
        "command": "response",
        "model": fingerprint(given["model"], given["revision"]),
        "task": prompts.description,
        "metric": given["metric"] or prompts.metric,
        "direction": direction,
        **{name: given[name] for name in entries},
    }
    folder = given["out"] or Path("runs") / f"response-{prompts.name}-{configuration_hash(request)}"
    as_json = given["as_json"]
    console = make_console()
    if finished_run(folder, request):
        curve = read_response(read_run_json(folder))
        if not as_json:
            console.print(f"This response is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        loaded = load_given(given)
        if not as_json:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        options = {name: given[name] for name in ("points", "segments", "metric", "memory", "align", "chat")}
        pairs = prompts.pairs(loaded)
        curve = response_curve(loaded, pairs, given["component"], direction=direction, **options)
        curve.provenance["command"] = command
        write_response(folder, curve, request, pairs)
    if as_json:
        print(json.dumps(response_to_dict(curve), indent=2, ensure_ascii=False))
    else:
        print_response(console, curve, folder)
