"""How far a run is, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from assay.scale import Advance

FIRST_LINE, LATER_LINES = 10.0, 30.0
"""Seconds until the first line, and between later ones."""


@contextmanager
def progress_of(
    name: str, total: int, done: int, show: bool, parts: str = "(component, prompt) pairs"
) -> Iterator[Advance]:
    """Gives a function that is told how many of ``total`` parts have been done, beyond ``done`` at the start."""
    if not show:
        yield lambda _: None
    elif sys.stderr.isatty():
        with tqdm(total=total, initial=done, desc=name) as bar:
            yield bar.update
    else:
        yield _Lines(name, total, done, parts).advance


class _Lines:
    def __init__(self, name: str, total: int, done: int, parts: str) -> None:
        self.name, self.total, self.done, self.parts = name, total, done, parts
        self.since = time.monotonic(), done
        """When the line before was written, and what was done then: the rate since is that of the processes of now."""
        self.next = self.since[0] + FIRST_LINE

    def advance(self, parts: int) -> None:
        self.done += parts
        now = time.monotonic()
        before, done_before = self.since
        if not parts or now < self.next or self.done <= done_before:
            return
        self.next, self.since = now + LATER_LINES, (now, self.done)
        left = (now - before) * (self.total - self.done) / (self.done - done_before)
        clock = tqdm.format_interval(left)
        counted = f"{self.done} of {self.total} {self.parts}"
        print(f"{self.name}: {counted}, {clock} left", file=sys.stderr, flush=True)
