"""What ``assay self-repair`` does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, check_common, load_given
from assay.data.metrics import metric_named
from assay.data.readers import PromptSource, open_prompts
from assay.errors import OptionError
from assay.interactions import load_self_repair, save_self_repair
from assay.interactions import self_repair as measure_self_repair
from assay.interactions.compensation import ablation_method, compensation
from assay.interactions.self_repair import METHOD, Limits
from assay.methods.requirements import require_gradient, require_mean, require_reference
from assay.model.loading import fingerprint
from assay.report import describe
from assay.report.places import print_folder
from assay.report.self_repair import as_json as as_dictionary
from assay.report.self_repair import print_self_repair
from assay.report.self_repair_page import write_self_repair_page
from assay.scores import configuration_hash
from assay.store import finished_run, require_writable


def carry_out(given: dict[str, Any], command: str) -> None:
    """Measure, keep, print."""
    _check(given)
    prompts = TaskPrompts(given)
    references = open_prompts(given["reference"]) if given["reference"] else None
    request = _request(given, prompts, references)
    folder = given["out"] or Path("runs") / f"self-repair-{prompts.name}-{configuration_hash(request)}"
    as_json, top = given["as_json"], given["top"]
    console = make_console()
    if finished_run(folder, request):
        found = load_self_repair(folder)
        if not as_json:
            console.print(f"This run is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        loaded = load_given(given)
        if not as_json:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        pairs = prompts.pairs(loaded)
        common = {name: given[name] for name in ("metric", "memory", "seed", "align", "chat", "force")}
        limits = {name: given[name] for name in ("threshold", "relative", "temperature", "rerun")}
        found = measure_self_repair(loaded, pairs, **limits, **common, progress=True)
        if given["components"] is not None:
            others = references.pairs(loaded, given["seed"]) if references else None
            heads = compensation(
                loaded, pairs, ablation=given["components"], mean=given["mean"], reference=others, **common,
                progress=True,
            )  # fmt: skip
            found = replace(found, compensation=heads)
        found.provenance["command"] = command
        save_self_repair(
            found, folder, request, finish=lambda scratch: write_self_repair_page(found, scratch / "report.html")
        )
    if as_json:
        print(json.dumps(as_dictionary(found, top), indent=2, ensure_ascii=False))
        return
    print_self_repair(console, found, top)
    print_folder(console, folder)


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
        "seed", "align", "chat", "dtype", "device", "device_map", "max_memory", "force",
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
