"""What ``assay score`` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from assay.cli.console import make_console
from assay.cli.running import TaskPrompts, carry_out, check_common
from assay.cli.showing import show
from assay.data import PromptPairs
from assay.data.metrics import metric_named
from assay.data.readers import PromptSource, open_prompts
from assay.engine.paths import RECEIVERS_ARE
from assay.errors import OptionError
from assay.methods.method import Method, measure
from assay.methods.path_patching import NAME as PATH_PATCHING
from assay.methods.registry import PARAMETERS, method_named
from assay.methods.requirements import (
    require_defined,
    require_direction,
    require_gradient,
    require_mean,
    require_reference,
)
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.model.loading import DTYPES, fingerprint
from assay.report import print_baseline, print_finished, print_scores
from assay.scores import Scores, configuration_hash
from assay.sites import Component, Selection, parse
from assay.store import RunFolder


def score(given: dict[str, Any], command: str, jobs: Jobs) -> None:
    """Score, keep, print.

    Args:
        given: the command's arguments by name.
        command: the command line that makes this run again.
    """
    chosen = _method(given)
    _check_options(chosen, given)
    prompts = TaskPrompts(given)
    references = open_prompts(given["reference"]) if given["reference"] else None
    request = _request(given, prompts, references)
    folder = given["out"] or Path("runs") / f"score-{prompts.name}-{configuration_hash(request)}"
    console = make_console(quiet=given["as_json"])

    def compute(loaded: Model, pairs: PromptPairs, kept: RunFolder) -> Scores:
        return measure(
            chosen,
            loaded,
            pairs,
            sites=given["sites"],
            metric=given["metric"],
            direction=given["direction"],
            memory=given["memory"],
            seed=given["seed"],
            mean=given["mean"],
            reference=references.pairs(loaded, given["seed"]) if references else None,
            align=given["align"],
            chat=given["chat"],
            skip=given["skip"],
            force=given["force"],
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
        command=command,
        finished=lambda reason: _show_finished(console, folder, given["top"], reason),
    )
    if given["as_json"]:
        show(folder, given["top"], as_json=True)
    elif scores is not None:
        print_scores(console, scores, given["top"], folder)


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
        **{
            name: given[name]
            for name in (
                "seed",
                "sites",
                "align",
                "chat",
                "dtype",
                "device",
                "device_map",
                "max_memory",
                "skip",
                "force",
            )
        },
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
