"""One side of a comparison: a process of its own that does its job each time it is asked.

It runs in the peers' environments too, so it needs nothing but torch and numpy. A side is asked by a line on
standard input and answers with a line of JSON on standard output; its numbers lie in a file beside the job's.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

Values = dict[str, np.ndarray]
"""(components, examples) by ``method/site``."""
Run = Callable[[], tuple[Values, float]]
"""Does the whole job; its values, and the seconds that do not grow with the number of patches."""


def serve(prepare: Callable[[dict[str, Any]], Run]) -> None:
    """Prepare once, then run and answer for every line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    job_file = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    run = prepare(json.loads(job_file.read_text()))

    def answer(**content: object) -> None:
        print(json.dumps(content), file=answers, flush=True)

    answer(versions={name: _version(name) for name in ("torch", "transformers", "transformer-lens", "nnsight")})
    for number, _ in enumerate(sys.stdin):
        if torch.get_num_threads() != 1:
            raise SystemExit(f"{torch.get_num_threads()} threads instead of one: something set them anew")
        gc.collect()
        began = time.perf_counter()
        values, once = run()
        seconds = time.perf_counter() - began
        file = job_file.with_name(f"{job_file.stem}-{number}.npz")
        np.savez(file, **values)
        answer(seconds=seconds, once=once, values=str(file), peak_bytes=peak_bytes(), bytes_now=bytes_now())


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _status(entry: str) -> int | None:
    """An entry of Linux's status file in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{entry}:")), None)


def peak_bytes() -> int:
    """Largest resident memory of this process so far, loading included."""
    # Linux counts the memory of whoever started the process into ru_maxrss; VmHWM is its own.
    found = _status("VmHWM")
    if found is None:
        found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return found


def bytes_now() -> int | None:
    return _status("VmRSS")


@dataclass(frozen=True)
class Group:
    """Prompts of one length side by side."""

    examples: list[int]
    clean: torch.Tensor
    corrupted: torch.Tensor
    answer: torch.Tensor
    wrong: torch.Tensor

    def metric(self, logits: torch.Tensor) -> torch.Tensor:
        """(prompts,) logit difference after the last token, from logits (prompts, any number of positions, tokens)."""
        each = torch.arange(len(self.examples))
        last = logits[:, -1]
        return last[each, self.answer] - last[each, self.wrong]


def groups_of(job: dict[str, Any]) -> list[Group]:
    members: defaultdict[int, list[int]] = defaultdict(list)
    for example, row in enumerate(job["rows"]):
        members[len(row["clean"])].append(example)
    return [
        Group(examples, *(torch.tensor([job["rows"][i][name] for i in examples]) for name in
                          ("clean", "corrupted", "answer", "wrong")))
        for examples in members.values()
    ]  # fmt: skip


def empty(job: dict[str, Any], components: int) -> np.ndarray:
    return np.full((components, len(job["rows"])), np.nan)
