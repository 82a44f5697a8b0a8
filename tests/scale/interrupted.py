"""Runs in child processes that are forked, so that they begin at once and can be killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import assay
from assay.methods import plan
from assay.scale import InProcess
from conftest import random_pairs, wrapped

BYTES = ("scores.parquet", "components.parquet", "prompts.jsonl", "tensors.safetensors")
"""Files that must be the same to the byte; run.json also says what it cost, in seconds among others."""


def in_small_shards(monkeypatch) -> None:
    monkeypatch.setattr(plan, "WORK", 1.0)
    monkeypatch.setattr(plan, "LANES", 3)


def run_into(folder: Path, **options: object) -> assay.Scores:
    """30 components x 5 pairs of three lengths, in about 30 small shards."""
    options = {"method": "activation-patching", "sites": "heads,mlps,q,residual-post", **options}
    return assay.measure(model=wrapped("llama"), pairs=random_pairs(8), run_folder=folder, force=True, **options)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in BYTES}


def what_it_said(work: Callable[[], object]) -> tuple[int, str]:
    """Exit code and error of a child, whatever happens to its files."""
    read, write = os.pipe()
    child = fork(work, write)
    os.close(write)
    with os.fdopen(read) as stream:
        return ended(child), stream.read()


def fork(work: Callable[[], object], errors: int = 2) -> int:
    """Process number of a child that does ``work``; it ends with 0, or with 2 if assay refused."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except assay.AssayError as error:
        os.write(errors, str(error).encode())
        code = 2
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Its exit code; minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_after(seconds: float, work: Callable[[], object]) -> int:
    child = fork(work)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return ended(child)


class Shuffled(InProcess):
    """The same tasks in another order."""

    def run(self, workshop, tasks: Sequence, advance):
        return super().run(workshop, random.Random(0).sample(list(tasks), len(tasks)), advance)
