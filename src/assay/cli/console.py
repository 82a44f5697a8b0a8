"""Printing that never stops a run: a closed pipe swallows output, an odd terminal gets replacement characters."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

from rich.console import Console

INTERRUPTED = 130


class Interrupted(SystemExit):
    """Ctrl-C, and what is left of the work."""

    def __init__(self, said: str) -> None:
        super().__init__(INTERRUPTED)
        self.said = said


class _Patient:
    """Standard output that goes quiet once nobody reads it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self._go_quiet()
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._go_quiet()

    def _go_quiet(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def make_console(*, quiet: bool = False) -> Console:
    """The console that commands print to.

    Args:
        quiet: say nothing, where standard output is for JSON alone.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    return Console(file=_Patient(sys.stdout), quiet=quiet)  # type: ignore[arg-type]
