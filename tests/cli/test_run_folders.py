"""What docs/run-folders.md names is what is written, and ``assay show`` begins as the page does."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

from cli.conftest import Run

DOCUMENT = Path(__file__).parents[2] / "docs/run-folders.md"
COMMANDS = {
    "score": ("--task", "sort", "--n", "2", "--sites", "mlps"),
    "screen": ("--task", "sort", "--n", "2", "--sites", "mlps", "--top", "2"),
    "circuit": ("--task", "sort", "--n", "2"),
    "compare": ("--task", "sort", "--n", "2", "--sites", "mlps", "--methods", "attribution-patching"),
    "explain": ("3 1 2", "--baseline", "mean"),
    "self-repair": ("--task", "sort", "--n", "2"),
    "response": ("--task", "sort", "--n", "2", "--component", "L1 MLP", "--points", "3"),
    "audit": ("--task", "sort", "--n", "32", "--rivals", "none"),
    "interactions": ("--task", "sort", "--n", "32", "--sites", "mlps"),
}


def documented(command: str) -> dict[str, set[str]]:
    """Fields by file, from the tables of a section; of a screening with those of scores."""
    section = DOCUMENT.read_text("utf-8").partition(f"### assay {command}\n")[2]
    section = re.split(r"\n##", section)[0]
    found: dict[str, set[str]] = documented("score") if command == "screen" else {}
    file = ""
    for line in section.splitlines()[3:]:
        if not line.startswith("|"):
            continue
        first, fields = (cell.strip() for cell in line.split("|")[1:3])
        file = first.strip("`") or file
        found.setdefault(file, set()).update(re.findall(r"`([^`]+)`", fields))
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_holds_what_is_documented_and_is_told_as_on_its_page(run: Run, tmp_path: Path, command: str) -> None:
    ended = run(command, "sequence-sort", *COMMANDS[command], "--out", "folder")
    assert ended.code == 0, ended.err
    folder = tmp_path / "folder"
    written = {"run.json": set(json.loads((folder / "run.json").read_text("utf-8")))}
    written |= {path.name: set(pd.read_parquet(path).columns) for path in folder.glob("*.parquet")}
    assert documented(command) == written
    page = (folder / "report.html").read_text("utf-8")
    parts = (re.search(pattern, page, re.DOTALL) for pattern in (r"<h1>(.*?)</h1>", r'<p class="answer">(.*?)</p>'))
    said = " ".join(unescape(part[1]) for part in parts if part)
    shown = run("show", "folder")
    assert " ".join(shown.out.split()).startswith(" ".join(said.split()))
