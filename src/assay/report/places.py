"""Where a result lies."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape


def print_folder(console: Console, folder: Path) -> None:
    """The run folder, and its page if there is one."""
    console.print(f"Run folder: {escape(str(folder))}", style="dim", soft_wrap=True)
    if (page := folder / "report.html").is_file():
        console.print(f"Page: {escape(str(page.resolve()))}", style="dim", soft_wrap=True)
