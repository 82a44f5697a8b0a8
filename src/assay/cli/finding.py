"""What ``assay circuit`` does."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from assay.circuits.contrast import described
from assay.circuits.edges import EdgeScores, require_floats
from assay.circuits.finding import (
    DEFAULT_METHODS,
    find_circuit,
    require_ablation,
    require_choice,
    require_level,
    split_pairs,
)
from assay.circuits.found import KIND as CIRCUIT
from assay.circuits.found import FoundCircuit
from assay.circuits.mib import can_be_exported, read_mib, require_exportable, write_mib
from assay.circuits.mib_nodes import write_mib_nodes
from assay.circuits.registry import edge_method
from assay.circuits.runs import already_seen
from assay.circuits.submission import add_to_submission, entry_name
from assay.cli.console import Interrupted, make_console
from assay.cli.running import TaskPrompts, check_common, load_given, what_is_kept
from assay.data import PromptPairs
from assay.data.metrics import metric_named
from assay.data.readers import PromptSource, open_prompts
from assay.data.tasks import DEFAULT_PAIRS, TASKS
from assay.errors import DataError, ModelError, OptionError
from assay.methods.requirements import require_gradient, require_mean, require_reference
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.model.loading import DTYPES, fingerprint
from assay.report import describe
from assay.report.circuit_drawing import to_dot
from assay.report.circuit_page import write_circuit_page
from assay.report.circuit_terminal import circuit_as_json, print_circuit, print_ends
from assay.scores import Scores, configuration_hash
from assay.store import RunFolder, finished_run
from assay.store.files import read_run_json

PARAMETERS = ("rule", "steps", "probes", "rules")


def carry_out(given: dict[str, Any], command: str, jobs: Jobs) -> None:
    """Score, run circuits, keep, print.

    Args:
        given: the command's arguments by name.
        command: the command line that makes this run again.
    """
    _check(given)
    prompts = TaskPrompts({**given, "n": _pairs_needed(given)})
    references = open_prompts(given["reference"]) if given["reference"] else None
    request = _request(given, prompts, references)
    folder = given["out"] or Path("runs") / f"circuit-{prompts.name}-{configuration_hash(request)}"
    console = make_console()
    say = console.print if not given["as_json"] else (lambda *_, **__: None)
    fresh = not finished_run(folder, request)
    if not fresh:
        found = FoundCircuit.load(folder)
        say(f"This run is finished already. Folder: {escape(str(folder))}", style="dim")
    else:
        with RunFolder(folder, request) as kept:
            if kept.plan is not None:
                say(f"Going on in {escape(str(folder))}: {kept.progress} there.")
            try:
                found = _find(given, prompts, references, kept, console, jobs)
                found = replace(found, request=request, provenance={**found.provenance, "command": command})
                found.save(kept, finish=lambda scratch: _write_beside(found, scratch))
            except KeyboardInterrupt:
                raise Interrupted(what_is_kept(kept)) from None
    if given["submission"] is not None:
        added, replaced = _submit(given["submission"], found, prompts, folder)
        done = "Replaced what was there in" if replaced else "Added to"
        say(f"{done} the submission: {escape(str(added))}", style="dim", soft_wrap=True)
    if given["as_json"]:
        print(json.dumps(circuit_as_json(found, given["top"]), indent=2, ensure_ascii=False))
        return
    print_circuit(console, found, given["top"], folder, ends=not fresh)


def _find(
    given: dict[str, Any], prompts: TaskPrompts, references: PromptSource | None, kept: RunFolder, console: Console,
    jobs: Jobs,
) -> FoundCircuit:  # fmt: skip
    model = load_given(given)
    assert kept.request is not None
    if fingerprint(given["model"], given["revision"]) != kept.request["model"]:
        raise ModelError(f"The files of {given['model']} changed while they were read. Run the command again.")
    if not given["as_json"]:
        console.print(escape(describe(model)), style="dim", highlight=False)
    pairs = prompts.pairs(model)
    common = {
        name: given[name]
        for name in (
            "select", "size", "faithfulness", "threshold", "ablation", "mean", "completeness", "seed",
            "metric", "memory", "chat", "force",
        )
    }  # fmt: skip
    # Pairs of unequal length were left out when they were counted.
    common["align"] = "reject" if given["align"] == "skip" else given["align"]
    common["reference"] = references.pairs(model, given["seed"]) if references else None
    common |= {"run_folder": kept, "progress": True, "jobs": jobs}
    if not given["as_json"]:
        common["on_ends"] = partial(print_ends, console, ablation=given["ablation"])
    n = given["n"] or (DEFAULT_PAIRS if given["task"] in TASKS else None)
    if given["from"] is not None:
        scores = _scores_from(given["from"], given["level"], model)
        if given["submission"] is not None and isinstance(scores, EdgeScores):
            require_exportable(scores.graph)
        evaluation = _unseen(model, pairs, scores.pairs, given["chat"], n, given["n"])
        return find_circuit(model, evaluation, evaluation, given["level"], scores=scores, **common)
    seen, evaluation = split_pairs(pairs, n)
    parameters = {name: given[name] for name in PARAMETERS if given[name] is not None}
    if given["ungrouped"]:
        common["ungrouped"] = True
    return find_circuit(model, seen, evaluation, given["level"], given["method"], parameters=parameters, **common)


def _scores_from(path: Path, level: str, model: Model) -> EdgeScores | Scores:
    """Scores of this model from a file or folder.

    Raises:
        AssayError: it holds none of this level, or those of other weights.
    """
    scores: EdgeScores | Scores
    if level == "edge":
        scores = EdgeScores.load(path) if path.is_dir() else read_mib(path, model)
    elif read_run_json(path).get("kind") == CIRCUIT:
        scores = FoundCircuit.load(path).scores
    else:
        scores = Scores.load(path)
    of = scores.provenance.get("model", {})
    if of and of["weights_sha256"] != model.weight_hash:
        raise ModelError(
            f"The scores in {path} were made on {of['name']} with other weights than {model.name} has now."
        )
    return scores


def _unseen(
    model: Model, pairs: PromptPairs, seen: PromptPairs | None, chat: bool, n: int | None, asked: int | None
) -> PromptPairs:
    """The first n that scores have not seen.

    Raises:
        DataError: they are fewer than two, or than was asked for.
    """
    known = already_seen(model, pairs, seen, chat=chat)
    left = tuple(pair for pair, was_seen in zip(pairs, known, strict=True) if not was_seen)[:n]
    if len(left) < (2 if asked is None else max(2, asked)):
        raise DataError(
            f"Of {len(pairs)} prompt pairs the scores have seen all but {len(left)}. A circuit is run on prompts that "
            "did not choose it: use another --seed, other prompts, or a smaller --n."
        )
    return replace(pairs, pairs=left)


def _write_beside(found: FoundCircuit, scratch: Path) -> None:
    write_circuit_page(found, scratch / "report.html")
    (scratch / "circuit.dot").write_text(to_dot(found), encoding="utf-8")
    ranking = "signed" if found.setting.get("select") == "top" else "absolute"
    if isinstance(found.scores, EdgeScores) and can_be_exported(found.scores.graph):
        write_mib(found.scores, scratch / "scores.json", found.kept, ranking)
    elif found.level == "node" and isinstance(found.scores, Scores):
        parallel = found.setting["parallel"]
        write_mib_nodes(found.scores, scratch / "scores.json", parallel=parallel, kept=found.kept, ranking=ranking)


def _submit(submission: Path, found: FoundCircuit, prompts: TaskPrompts, folder: Path) -> tuple[Path, bool]:
    """Where the scores lie, and whether others lay there."""
    name = entry_name(prompts.name, found.provenance["model"]["name"], found.evaluated.options)
    there = (submission / name).exists()
    return add_to_submission(submission, name, folder / "scores.json"), there


def _pairs_needed(given: dict[str, Any]) -> int | None:
    """For scores and for circuits; of a file without --n, all."""
    n = given["n"]
    if n is not None and n < 1:
        raise OptionError(f"--n must be at least 1, not {n}.")
    if n is None and given["task"] not in TASKS:
        return None
    wanted = n or DEFAULT_PAIRS
    return wanted + (wanted if given["from"] is None else max(wanted, _pairs_behind(given["from"])))


def _pairs_behind(path: Path) -> int:
    """How many pairs scores were made on; 0 where that is not said, or where they cannot be read."""
    try:
        if path.is_dir():
            return (path / "prompts.jsonl").read_bytes().count(b"\n")
        return len(json.loads(path.read_bytes())["assay"]["prompts"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0


def _check(given: dict[str, Any]) -> None:
    """Refuse what can be refused before a model is loaded."""
    level = given["level"]
    parameters = {name: given[name] for name in PARAMETERS}
    ablation = given["ablation"] if given["from"] is None else "patch"
    method = require_level(level, method=given["method"], ablation=ablation, **parameters)
    if given["submission"] is not None:
        if level == "neuron":
            raise OptionError(
                "--submission is for --level edge and node: MIB's neurons are coordinates of what a node writes, not "
                "neurons of an MLP."
            )
        given["ungrouped"] = given["ungrouped"] or (level == "edge" and given["from"] is None)  # as MIB has it
    require_choice(level, *(given[name] for name in ("size", "faithfulness", "select", "threshold")))
    of_circuits = described(
        "mean ablation" if given["ablation"] == "mean" else f"{given['ablation']} ablation",
        0,
        require_ablation(given["ablation"]),
    )
    require_mean(of_circuits, given["mean"])
    require_reference(of_circuits, given["reference"] is not None)
    check_common(given)
    if given["from"] is not None:
        _check_from(given)
        return
    if level != "edge" and given["ungrouped"]:
        raise OptionError("--ungrouped is for --level edge: nodes have no edges of their own.")
    half = DTYPES[given["dtype"]].itemsize < 4
    if method is None:
        edges = edge_method(given["method"] or DEFAULT_METHODS["edge"], **parameters)
        require_floats(edges, 2 if half else 4)
        method = described(edges.name, 2 if edges.second_order else int(edges.gradients), given["ablation"])
    elif method.second_order and half:
        raise OptionError(f"{method.name} takes second derivatives, which need --dtype float32 or float64.")
    if given["metric"] is not None:
        require_gradient(method, metric_named(given["metric"]), "noise")


def _check_from(given: dict[str, Any]) -> None:
    path = given["from"]
    for name in ("method", *PARAMETERS, "ungrouped"):
        if given[name]:
            raise OptionError(f"--from brings scores that are made already; leave --{name} out.")
    if not path.exists():
        raise DataError(f"There is no {path}.")
    if given["level"] != "edge" and not path.is_dir():
        raise OptionError(
            f"--from with --level {given['level']} takes a run folder of assay score; JSON holds scores of edges."
        )


def _request(given: dict[str, Any], prompts: TaskPrompts, references: PromptSource | None) -> dict[str, Any]:
    """What makes two runs the same."""
    level, path = given["level"], given["from"]
    names = (
        "level", "select", "size", "faithfulness", "threshold", "ablation", "completeness", "ungrouped", "seed",
        "align", "chat", "dtype", "device", "device_map", "max_memory", "force", *PARAMETERS,
    )  # fmt: skip
    made_before = None
    if path is not None:
        content = json.dumps(read_run_json(path), sort_keys=True).encode() if path.is_dir() else path.read_bytes()
        made_before = hashlib.sha256(content).hexdigest()
    return {
        "command": "circuit",
        "model": fingerprint(given["model"], given["revision"]),
        "task": prompts.description,
        "n": given["n"],
        "metric": given["metric"] or prompts.metric,
        "method": (given["method"] or DEFAULT_METHODS[level]) if path is None else None,
        "mean": given["mean"] or ("position" if given["ablation"] == "mean" else None),
        "reference": references and references.sha256,
        "from": made_before,
        **{name: given[name] for name in names},
    }
