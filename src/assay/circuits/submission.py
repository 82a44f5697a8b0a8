"""What the leaderboard of MIB takes: a folder for each task and model, ``ioi_gpt2``, with scores or nine circuits.

A folder holds one JSON file of scores, or nine of circuits (``in_graph``) with at most .1, .2, .5, 1, 2, 5, 10, 20 and
50 % of the edges. A submission has two or more models and two or more tasks.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.circuits.faithfulness import SIZES
from assay.circuits.graph import Graph
from assay.errors import DataError, StoreError

TASKS = {
    "ioi": "ioi", "copy-colours": "mcqa", "copycolors_mcqa": "mcqa", "arithmetic_addition": "arithmetic-addition",
    "arithmetic_subtraction": "arithmetic-subtraction", "arc_easy": "arc-easy", "arc_challenge": "arc-challenge",
}  # fmt: skip
"""MIB's names of tasks by ours and by those of its data sets."""
MODELS = {
    "gpt2": "gpt2", "Qwen2.5-0.5B": "qwen2.5", "Qwen2.5-0.5B-Instruct": "qwen2.5", "gemma-2-2b": "gemma2",
    "Llama-3.1-8B": "llama3",
}  # fmt: skip
"""MIB's names of models by the last part of theirs."""
FILE = "importances.json"
SHARES = SIZES[:-1]


@dataclass(frozen=True)
class Entry:
    """A folder of a submission that was found to be in order."""

    task: str
    model: str
    level: str
    """``edge`` or ``node``"""
    circuits: int
    """Nine, or 0 where there are scores."""


def entry_name(task: str, model: str, options: dict[str, Any] | None = None) -> str:
    """The folder's name: MIB's words for task and model where it has them.

    Args:
        options: of the task; the ``operation`` of arithmetic is part of its name.
    """
    if task == "arithmetic":
        task = {"plus": "arithmetic_addition", "minus": "arithmetic_subtraction"}[
            (options or {}).get("operation", "plus")
        ]
    last = model.rstrip("/").rpartition("/")[2]
    return f"{TASKS.get(task, task).replace('_', '-')}_{MODELS.get(last, last)}"


def add_to_submission(submission: str | Path, name: str, scores: str | Path) -> Path:
    """Copy a file of `assay.circuits.write_mib` to its place, after it has been checked.

    Args:
        submission: the folder of the whole submission.
        name: of `entry_name`.
        scores: the JSON file.

    Returns:
        Where it lies now.

    Raises:
        DataError: the file is not as MIB wants it.
        StoreError: it cannot be written.
    """
    _require_scores(Path(scores), _read(Path(scores)))
    target = Path(submission) / name / FILE
    scratch = target.with_name(f".{FILE}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(scores, scratch)
        scratch.rename(target)
    except OSError as error:
        raise StoreError(f"Cannot write {target}: {error.strerror or error}.") from error
    return target


def check_submission(submission: str | Path, *, complete: bool = True) -> list[Entry]:
    """Whether a folder is what MIB's leaderboard takes.

    Args:
        complete: also require two models and two tasks of MIB's.

    Returns:
        What it holds.

    Raises:
        DataError: all that is wrong with it.
    """
    folder = Path(submission)
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}.")
    entries: list[Entry] = []
    complaints: list[str] = []
    for inside in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        try:
            entries.append(_entry(inside))
        except DataError as error:
            complaints.append(str(error))
    if complete and not complaints:
        complaints += _missing(entries)
    if complaints:
        raise DataError("\n".join(complaints))
    return entries


def _missing(entries: list[Entry]) -> list[str]:
    complaints = []
    for what, known in (("task", set(TASKS.values())), ("model", set(MODELS.values()))):
        found = {getattr(entry, what) for entry in entries}
        if foreign := found - known:
            complaints.append(f"MIB has no {what} {min(foreign)!r}; it has {', '.join(sorted(known))}.")
        if len(found & known) < 2:
            complaints.append(f"MIB wants circuits for two or more {what}s; there is {len(found & known)} of its own.")
    return complaints


def _entry(inside: Path) -> Entry:
    task, underscore, model = inside.name.partition("_")
    if not inside.is_dir() or not (task and underscore and model):
        raise DataError(f"{inside}: a submission holds folders named TASK_MODEL, such as ioi_gpt2.")
    files = sorted(path for path in inside.iterdir() if not path.name.startswith("."))
    if pickles := [path.name for path in files if path.suffix == ".pt"]:
        raise DataError(f"{inside}: {pickles[0]} is a pickle, which assay does not open. Give JSON.")
    contents = [_read(path) for path in files if path.suffix == ".json"]
    if len(contents) != len(files) or len(files) not in (1, len(SHARES)):
        raise DataError(
            f"{inside} has {len(files)} files. MIB takes 1 JSON file of scores, or {len(SHARES)} of circuits."
        )
    if len(files) == 1:
        return Entry(task, model, _require_scores(files[0], contents[0]), 0)
    sizes = sorted(map(_size, contents))
    for size, share in zip(sizes, SHARES, strict=True):
        if size > share:
            raise DataError(
                f"{inside}: a circuit of at most {share:.1%} is wanted, and the next in size has {size:.2%}."
            )
    return Entry(task, model, "edge", len(files))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key), dict) for key in ("cfg", "nodes", "edges")
    ):
        raise DataError(f"{path} is no circuit of MIB: it needs cfg, nodes and edges.")
    cfg = content["cfg"]
    try:
        graph = Graph(int(cfg["n_layers"]), int(cfg["n_heads"]), int(cfg["n_heads"]), bool(cfg["parallel_attn_mlp"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: cfg lacks n_layers, n_heads or parallel_attn_mlp ({error}).") from error
    for what, names in (("nodes", [*graph.source_names, "logits"]), ("edges", graph.edge_names)):
        if unknown := set(content[what]) ^ set(names):
            raise DataError(f"{path}: {len(unknown)} {what} are missing or unknown, such as {min(unknown)!r}.")
        for name, found in content[what].items():
            if not isinstance(found, dict) or not isinstance(found.get("in_graph"), bool):
                raise DataError(f"{path}: {name} does not say whether it is in_graph.")
    return content


def _require_scores(path: Path, content: dict[str, Any]) -> str:
    """``node`` or ``edge``: whose scores the file holds."""
    nodes = {name: node["score"] for name, node in content["nodes"].items() if "score" in node}
    level, found = ("node", nodes) if nodes else ("edge", {n: e.get("score") for n, e in content["edges"].items()})
    for name, score in found.items():
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not abs(score) < float("inf"):
            raise DataError(f"{path}: the score of {name} is not a finite number.")
    if len(set(found.values())) < 2:
        raise DataError(f"{path}: all scores are the same, so they rank nothing.")
    return level


def _size(content: dict[str, Any]) -> float:
    kept = [edge["in_graph"] for edge in content["edges"].values()]
    return float(sum(kept)) / len(kept)
