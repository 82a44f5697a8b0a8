"""What ``assay interactions`` does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from assay.audit import audit_gradients
from assay.cli.auditing import check_ablation, loaded
from assay.cli.console import make_console
from assay.cli.running import TaskPrompts
from assay.data import PromptPairs
from assay.data.encoding import default_metric
from assay.data.readers import AnyPairs, PromptSource, open_prompts
from assay.data.tasks import TASKS
from assay.errors import OptionError, StoreError
from assay.interactions.joint_ablation import group_ablation
from assay.interactions.pairs import Interactions, measure_interactions
from assay.interactions.pairs_folder import save_interactions
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.model.loading import fingerprint
from assay.report import describe
from assay.report.interactions import as_json as as_dictionary
from assay.report.interactions import print_interactions, write_interactions_page
from assay.report.places import print_folder
from assay.scores import configuration_hash
from assay.store import finished_run, require_writable

DEFAULT_PAIRS = 64
CLASSES = {"heroes": "hero", "bloats": "bloat"}
COMMON = ("ablation", "memory", "seed", "align", "chat", "force", "mean")


def carry_out(given: dict[str, Any], command: str, jobs: Jobs) -> None:
    """Measure, keep, print."""
    if given["n"] is None and given["task"] in TASKS:
        given = {**given, "n": DEFAULT_PAIRS}
    group_ablation(given["ablation"])
    check_ablation(given)
    if given["exact"] is not None and given["exact"] < 0:
        raise OptionError(f"--exact must be at least 0, not {given['exact']}.")
    prompts = TaskPrompts(given)
    references = open_prompts(given["reference"]) if given["reference"] else None
    request = _request(given, prompts, references)
    folder = given["out"] or Path("runs") / f"interactions-{prompts.name}-{configuration_hash(request)}"
    as_json, top, console = given["as_json"], given["top"], make_console()
    if finished_run(folder, request):
        found = Interactions.load(folder)
        if not as_json:
            console.print(f"This run is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        model = loaded(given, request)
        if not as_json:
            console.print(escape(describe(model)), style="dim", highlight=False)
        pairs = prompts.pairs(model)
        others = references.pairs(model, given["seed"]) if references else None
        found = measure_interactions(
            model,
            pairs,
            group=_group(given, model, pairs, others, jobs),
            sites=given["sites"],
            exact=given["exact"],
            second_order=given["second_order"],
            reference=others,
            metric=given["metric"],
            progress=True,
            jobs=jobs,
            **{name: given[name] for name in COMMON},
        )
        if finished_run(folder, request):
            raise StoreError(f"Another process finished the same run in {folder} meanwhile. assay show prints it.")
        found = replace(found, request=request, provenance={**found.provenance, "command": command})
        save_interactions(found, folder, finish=lambda scratch: write_interactions_page(found, scratch / "report.html"))
    if as_json:
        print(json.dumps(as_dictionary(found, top), indent=2, ensure_ascii=False))
        return
    print_interactions(console, found, top)
    print_folder(console, folder)


def _group(given: dict[str, Any], model: Model, pairs: PromptPairs, reference: AnyPairs | None, jobs: Jobs) -> Any:
    """The group as it was named; heroes and bloats by an audit of the same prompts.

    Raises:
        OptionError: the audit names fewer than two.
    """
    group = given["group"]
    if group not in CLASSES:
        return group
    options = {name: given[name] for name in COMMON}
    metric = given["metric"] or default_metric(model, pairs)[0].name  # that of the interactions
    found = audit_gradients(
        model, pairs, sites=given["sites"], rivals=(), reference=reference, metric=metric, progress=True, jobs=jobs,
        **options,
    )  # fmt: skip
    names = found.members(CLASSES[group])
    if len(names) < 2:
        raise OptionError(
            f"An audit of these prompts by {metric} is sure of {len(names)} {group} ({', '.join(names) or 'none'}); a "
            f"group is two or more. {len(found.members('unsettled'))} components are unsettled: more prompts (--n) "
            "settle some."
        )
    return names


def _request(given: dict[str, Any], prompts: TaskPrompts, references: PromptSource | None) -> dict[str, Any]:
    """What makes two runs the same."""
    names = (
        "group", "sites", "exact", "second_order", "ablation", "seed", "align", "chat", "dtype", "device",
        "device_map", "max_memory", "force",
    )  # fmt: skip
    return {
        "command": "interactions",
        "model": fingerprint(given["model"], given["revision"]),
        "task": prompts.description,
        "metric": given["metric"] or prompts.metric,
        **{name: given[name] for name in names},
        "mean": given["mean"] or ("position" if given["ablation"] == "mean" else None),
        "reference": references and references.sha256,
    }
