"""What ``assay report`` does."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from assay.audit import Audit
from assay.audit.folder import KIND as AUDIT
from assay.circuits.found import KIND as CIRCUIT
from assay.circuits.found import FoundCircuit
from assay.cli.console import make_console
from assay.errors import OptionError, StoreError
from assay.interactions.folder import KIND as SELF_REPAIR
from assay.interactions.folder import load_self_repair
from assay.interactions.pairs import Interactions
from assay.interactions.pairs_folder import KIND as INTERACTIONS
from assay.report import write_page
from assay.report.audit import write_audit_page
from assay.report.circuit_page import write_circuit_page
from assay.report.explanations import write_explanations
from assay.report.interactions import write_interactions_page
from assay.report.response import KIND as RESPONSE
from assay.report.self_repair_page import write_self_repair_page
from assay.report.side_by_side import cautions, headline, sides_of, tables, write_side_by_side
from assay.report.tables import print_tables
from assay.scores import Scores
from assay.screening import KIND as SCREENED
from assay.screening import ScreenedScores
from assay.store.files import read_run_json
from assay.tokens import Explanations
from assay.tokens.result import KIND as EXPLANATION

PAGE = "report.html"
SCORES = ("", "scores", SCREENED)
"""Kinds that are shown side by side."""


def report(folders: Sequence[Path], out: Path | None) -> None:
    """Write a page and say where it is; of several runs, also what it says.

    Raises:
        OptionError: several runs that cannot be shown side by side.
        StoreError: a folder that holds no finished run, or a page that cannot be written.
    """
    console = make_console()
    runs = [read_run_json(folder) for folder in folders]
    if len(folders) == 1:
        path = out or folders[0] / PAGE
        _written(path, lambda scratch: _page_of(folders[0], runs[0], scratch))
    else:
        for folder, run in zip(folders, runs, strict=True):
            if run.get("kind", "") not in SCORES:
                raise OptionError(
                    f"{folder} holds no scores but {run['kind']}. Side by side are runs of score and screen; give one "
                    "folder of another kind by itself."
                )
        sides = sides_of([(str(folder), _scores(folder, run)) for folder, run in zip(folders, runs, strict=True)])
        path = out or Path(PAGE)
        for sentence in headline(sides):
            console.print(escape(sentence), highlight=False)
        for sentence in cautions(sides):
            console.print(escape(sentence), style="yellow", highlight=False)
        print_tables(console, tables(sides))
        _written(path, lambda scratch: write_side_by_side(sides, scratch))
    console.print(escape(f"Page: {path}"), style="dim", highlight=False, soft_wrap=True)


def _scores(folder: Path, run: dict[str, Any]) -> Scores:
    return ScreenedScores.load(folder) if run.get("kind") == SCREENED else Scores.load(folder)


def _page_of(folder: Path, run: dict[str, Any], path: Path) -> None:
    kind = run.get("kind", "")
    if kind in SCORES:
        write_page(_scores(folder, run), path)
    elif kind in _PAGES:
        _PAGES[kind](folder, path)
    else:
        raise StoreError(f"{folder} holds {kind!r}, of which there is no page.")


def _copied(folder: Path, path: Path) -> None:
    """The page as the command wrote it: these folders keep figures, not what they are made of."""
    if not (folder / PAGE).is_file():
        raise StoreError(f"{folder} has lost its {PAGE}, and keeps no prompts to make it of. Run the command again.")
    shutil.copyfile(folder / PAGE, path)


_PAGES: dict[str, Callable[[Path, Path], object]] = {
    "comparison": _copied,
    RESPONSE: _copied,
    SELF_REPAIR: lambda folder, path: write_self_repair_page(load_self_repair(folder), path),
    INTERACTIONS: lambda folder, path: write_interactions_page(Interactions.load(folder), path),
    AUDIT: lambda folder, path: write_audit_page(Audit.load(folder), path),
    EXPLANATION: lambda folder, path: write_explanations(Explanations.load(folder), path),
    CIRCUIT: lambda folder, path: write_circuit_page(FoundCircuit.load(folder), path),
}
"""By ``kind`` in run.json."""


def _written(path: Path, write: Callable[[Path], object]) -> None:
    """Write under another name first, so that a page is there whole or not at all."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".report-", suffix=".html")
        os.close(handle)
        scratch = Path(name)
        try:
            write(scratch)
            scratch.chmod(0o644)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"Cannot write {path}: {error.strerror or error}.") from error
