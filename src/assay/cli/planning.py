"""What ``assay plan`` does."""

from __future__ import annotations

import json
import re
from typing import Any

from assay.cli.console import make_console
from assay.cli.running import TaskPrompts
from assay.data.encoding import require_align
from assay.data.tasks import DEFAULT_PAIRS
from assay.engine.batches import parse_memory
from assay.errors import OptionError, instead_of
from assay.model.loading import DTYPES
from assay.planning import plan
from assay.report.planning import print_plan


def carry_out(given: dict[str, Any]) -> None:
    """Foresee, print.

    Args:
        given: the command's arguments by name.
    """
    require_align(given["align"])
    if given["dtype"] not in DTYPES:
        raise OptionError(f"There is no dtype {given['dtype']!r}. {instead_of(given['dtype'], DTYPES)}")
    if given["tflops"] is not None and not given["tflops"] > 0:
        raise OptionError(f"--tflops must be above 0, not {given['tflops']}.")
    tokens = _tokens(given["tokens"])
    prompts = TaskPrompts(given) if tokens is None else None
    found = plan(
        given["model"],
        prompts.pairs if prompts is not None else None,
        n=given["n"] or DEFAULT_PAIRS,
        sites=given["sites"],
        methods=[name.strip() for name in given["methods"].split(",")] if given["methods"] else None,
        metric=given["metric"],
        dtype=DTYPES[given["dtype"]],
        device=given["device"],
        revision=given["revision"],
        memory=given["memory"],
        top=given["top"],
        level=given["level"],
        tokens=tokens,
        operations_per_second=None if given["tflops"] is None else given["tflops"] * 1e12,
        device_memory=[parse_memory(text) for text in (given["device_memory"] or "").split(",") if text.strip()],
        hours=given["hours"],
    )
    if given["as_json"]:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print_plan(make_console(), found)


def _tokens(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None:
        raise OptionError(f"--tokens takes two numbers, such as 15:10, not {text!r}.")
    return int(match[1]), int(match[2])
