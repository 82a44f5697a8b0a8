"""In what two runs differ, so that a reader sees which option it was."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

NAMES = {
    "weights_sha256": "content of the weights",
    "model_configuration_sha256": "content of the model configuration",
    "tokenizer_sha256": "content of the tokenizer",
    "prompts_sha256": "content of the prompts",
    "reference_sha256": "content of the reference prompts",
    "reference": "content of the reference prompts",
    "own_code_sha256": "code of the metric and the method",
    "components_sha256": "components",
    "shards_sha256": "blocks that the run is cut into",
    "sha256": "content of the file",
    "threads": "threads of each process",
}
FOLLOWING = ("components_sha256", "shards_sha256", "shards", "metric_function", "own_code_sha256")
"""Entries that other entries decide; of interest if nothing else differs."""
DIGEST = re.compile("[0-9a-f]{64}")
SHOWN = 8


def differences(there: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One line for each entry in which two configurations differ: what, how it was there, how it is now."""
    before, after = dict(_entries(there)), dict(_entries(now))
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    telling = [name for name in names if name not in FOLLOWING]
    return [f"  {_name(name)}: {_shown(name, before)} there, {_shown(name, after)} now" for name in telling or names]


def _entries(content: dict[str, Any], front: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _entries(value, f"{front}{name} ")
        else:
            yield f"{front}{name}", value


def _name(name: str) -> str:
    *front, last = name.split(" ")
    return " ".join([*front, NAMES.get(last, last)])


def _shown(name: str, content: dict[str, Any]) -> str:
    if name not in content:
        return "none"
    value = content[name]
    if name == "memory" and isinstance(value, int):
        return f"{value / (1 << 30):.4g}G"
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return DIGEST.sub(lambda digest: digest[0][:SHOWN], text)
