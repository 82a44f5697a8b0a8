"""The command line that makes a run again."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Sequence
from typing import Any


def command_line(
    function: Callable[..., Any], name: str, given: dict[str, Any], positional: Sequence[str] = ("model",)
) -> str:
    """The command line that makes this run again: what differs from the defaults."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    words = ["assay", name, *(str(given[option]) for option in positional if given[option] is not None)]
    for option, value in given.items():
        if option in (*positional, "as_json") or value == defaults[option]:
            continue
        written = option.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{written}" if value else f"--no-{written}")
        else:
            words += [f"--{written}", str(value)]
    return shlex.join(words)
