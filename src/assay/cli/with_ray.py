"""Commands whose ``--ray`` may stand alone or be followed by an address."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

from assay.scale.ray import AUTO, LOCAL

FLAG = "--ray"
ADDRESS = re.compile(rf"{LOCAL}|{AUTO}|\S+:\d+")
"""What is meant as one: no model and no option looks like it."""


class WithRay(TyperCommand):
    """Gives ``--ray`` without an address that of this machine, since options have a value or none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_address(args))


def with_address(words: list[str]) -> list[str]:
    """The words, with an address after each ``--ray`` that has none."""
    found: list[str] = []
    for number, word in enumerate(words, 1):
        found.append(word)
        if word == FLAG and not ADDRESS.fullmatch("".join(words[number : number + 1])):
            found.append(LOCAL)
    return found
