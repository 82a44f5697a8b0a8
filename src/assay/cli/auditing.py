"""What ``assay audit`` does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from assay.audit import Audit, audit_gradients
from assay.audit.measuring import Choices
from assay.cli.console import make_console
from assay.cli.running import TASK_OPTIONS, TaskPrompts, check_common, load_given
from assay.data.metrics import metric_named
from assay.data.readers import PromptSource, is_prompt_source, open_prompts
from assay.data.tasks import TASKS
from assay.data.tasks.sequences import DEFAULT_LENGTH, TRANSFORMATIONS
from assay.errors import ModelError, OptionError, StoreError
from assay.methods.registry import METHODS
from assay.methods.requirements import require_mean, require_reference
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.model.loading import fingerprint
from assay.report import describe
from assay.report.audit import as_json as as_dictionary
from assay.report.audit import print_audit, write_audit_page
from assay.report.places import print_folder
from assay.scores import configuration_hash
from assay.store import finished_run, require_writable

SEQUENCE_PAIRS, OTHER_PAIRS = 2500, 64
CHOSEN = ("ablation", "rival_examples", "batches", "mlp_weights", "pruned_examples")
COMMON = ("metric", "memory", "seed", "align", "chat", "force", "mean")


def carry_out(given: dict[str, Any], command: str, jobs: Jobs) -> None:
    """Measure, keep, print."""
    given = {**given, "n": default_pairs(given["task"]) if given["n"] is None else given["n"]}
    rivals = rivals_named(given["rivals"])
    Choices(rivals=rivals, **{name: given[name] for name in CHOSEN})
    check_ablation(given)
    prompts, ood = TaskPrompts(given), _ood(given)
    references = open_prompts(given["reference"]) if given["reference"] else None
    request = _request(given, rivals, prompts, ood, references)
    folder = given["out"] or Path("runs") / f"audit-{prompts.name}-{configuration_hash(request)}"
    as_json, top, console = given["as_json"], given["top"], make_console()
    if finished_run(folder, request):
        found = Audit.load(folder)
        if not as_json:
            console.print(f"This run is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        require_writable(folder)
        model = loaded(given, request)
        if not as_json:
            console.print(escape(describe(model)), style="dim", highlight=False)
        found = audit_gradients(
            model,
            prompts.pairs(model),
            ood=None if ood is None else ood.pairs(model),
            sites=given["sites"],
            rivals=rivals,
            pruning=given["pruning"],
            reference=references.pairs(model, given["seed"]) if references else None,
            progress=True,
            jobs=jobs,
            **{name: given[name] for name in (*CHOSEN, *COMMON)},
        )
        found = replace(found, request=request, provenance={**found.provenance, "command": command})
        if finished_run(folder, request):
            raise StoreError(f"Another process finished the same run in {folder} meanwhile. assay show prints it.")
        from assay.audit.folder import save_audit

        save_audit(found, folder, finish=lambda scratch: write_audit_page(found, scratch / "report.html"))
    if as_json:
        print(json.dumps(as_dictionary(found, top), indent=2, ensure_ascii=False))
        return
    print_audit(console, found, top)
    print_folder(console, folder)


def default_pairs(task: str) -> int | None:
    """Of exact match, as many as give an accuracy to one point; of a file all."""
    if task in TRANSFORMATIONS:
        return SEQUENCE_PAIRS
    return OTHER_PAIRS if task in TASKS else None


def rivals_named(text: str) -> tuple[str, ...]:
    """The names in ``--rivals``."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return () if names == ("none",) else names


def check_ablation(given: dict[str, Any]) -> None:
    """Refuse what can be refused before a model is loaded."""
    method = METHODS[f"{given['ablation']}-ablation"]
    require_mean(method, given["mean"])
    require_reference(method, given["reference"] is not None)
    if given["metric"] is not None:
        metric_named(given["metric"])
    check_common(given)


def loaded(given: dict[str, Any], request: dict[str, Any]) -> Model:
    """The model.

    Raises:
        ModelError: its files changed meanwhile.
    """
    model = load_given(given)
    if fingerprint(given["model"], given["revision"]) != request["model"]:
        raise ModelError(f"The files of {given['model']} changed while they were read. Run the command again.")
    return model


def _ood(given: dict[str, Any]) -> TaskPrompts | None:
    """Prompts out of distribution: another length of the same task, or a file."""
    text = given["ood"]
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        if "length" not in (TASKS[given["task"]].options if given["task"] in TASKS else ()):
            raise OptionError(f"--ood {text} is a length, which {given['task']} does not have. Give a file of prompts.")
        if int(text) == (given["length"] or DEFAULT_LENGTH):
            raise OptionError(f"--ood {text} is the length of the prompts themselves. Give another, such as 9.")
        # Another seed: a short sequence of one length must not be the beginning of a long one of the other.
        return TaskPrompts({**given, "length": int(text), "seed": given["seed"] + 1})
    if not is_prompt_source(text):
        raise OptionError(f"--ood takes a length of sort or reverse, or a file of prompts, not {text!r}.")
    return TaskPrompts({**given, **dict.fromkeys(TASK_OPTIONS), "task": text, "n": None})


def _request(
    given: dict[str, Any],
    rivals: tuple[str, ...],
    prompts: TaskPrompts,
    ood: TaskPrompts | None,
    references: PromptSource | None,
) -> dict[str, Any]:
    """What makes two runs the same."""
    names = (
        *CHOSEN,
        "sites",
        "pruning",
        "metric",
        "seed",
        "align",
        "chat",
        "dtype",
        "device",
        "device_map",
        "max_memory",
        "force",
    )
    return {
        "command": "audit",
        "model": fingerprint(given["model"], given["revision"]),
        "task": prompts.description,
        "ood": None if ood is None else ood.description,
        "rivals": list(rivals),
        **{name: given[name] for name in names},
        "mean": given["mean"] or ("position" if given["ablation"] == "mean" else None),
        "reference": references and references.sha256,
    }
