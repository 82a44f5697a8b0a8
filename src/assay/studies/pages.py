"""What the studies' pages share: templates, how numbers and models are written, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from assay.errors import StoreError

SHORT = {"smollm2-135m": "SmolLM2", "gemma-3-270m": "Gemma 3"}


def template(study: str, **words: Callable[..., object]) -> Template:
    """The Markdown template of a study, which knows `percent`, `number` and other ``words`` as filters and functions.

    Args:
        study: its package in `assay.studies`; the template has its name, with hyphens.
    """
    environment = Environment(
        loader=PackageLoader(f"assay.studies.{study}"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    known = {"percent": percent, "number": number, **words}
    environment.filters |= known
    environment.globals |= known
    return environment.get_template(f"{study.replace('_', '-')}.md")


def percent(value: float | None, digits: int = 0) -> str:
    """As a percentage; an empty cell for what is not defined."""
    return "" if value is None or not np.isfinite(value) else f"{value:.{digits}%}".replace("%", " %")


def number(value: float | None, digits: int = 3) -> str:
    """To so many significant digits; an empty cell for what is not defined."""
    if value is None or not np.isfinite(value):
        return ""
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.0f}"


def write_files(files: Mapping[Path, str]) -> None:
    """Write texts, and the folders that they lie in.

    Raises:
        StoreError: one cannot be written.
    """
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
        except OSError as error:
            raise StoreError(f"Cannot write {error.filename or path}: {error.strerror or error}.") from error
