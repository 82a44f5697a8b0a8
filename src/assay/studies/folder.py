"""JSON files of a study's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.errors import StoreError


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The content of a file.

    Args:
        what: the folder should hold, in an error.

    Raises:
        StoreError: it is not there, or damaged.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise StoreError(f"{path.parent} holds no {what.removeprefix('a ')}: it has no {path.name}.") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is damaged: {error}") from error
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Under another name first, so that it is there whole or not at all.

    Raises:
        StoreError: it cannot be written.
    """
    scratch = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        scratch.rename(path)
    except OSError as error:
        raise StoreError(f"Cannot write {path}: {error.strerror or error}.") from error
