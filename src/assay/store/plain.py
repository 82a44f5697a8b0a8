"""Run folders without scores: ``run.json`` and a page."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.errors import StoreError
from assay.store.files import SCHEMA_VERSION, SCRATCH, require_writable


def write_plain(folder: Path, run: dict[str, Any], finish: Callable[[Path], object]) -> None:
    """Write ``run.json`` and what ``finish`` adds to the folder it is called with, or nothing.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    require_writable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=SCRATCH))
        try:
            text = json.dumps({"schema_version": SCHEMA_VERSION, **run}, indent=2, ensure_ascii=False, allow_nan=False)
            finish(scratch)
            (scratch / "run.json").write_text(text + "\n", encoding="utf-8")
            scratch.chmod(0o755)
            if folder.is_dir():
                folder.rmdir()  # empty, or `require_writable` would have refused it
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"Cannot write {folder}: {error.strerror or error}.") from error
