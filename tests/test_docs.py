"""What the documentation says holds."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from assay.engine.paths import LOGITS, RECEIVERS
from assay.methods.registry import METHODS

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- (?:not run|slow): [^>]+ -->\n)?^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
REAL = ("smollm2-135m", "gemma-3-270m")
EVERYTHING = bool(os.environ.get("ASSAY_EVERY_COMBINATION"))
SECONDS = 1500


def blocks(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text("utf-8"), re.DOTALL)


def test_the_metric_of_ones_own_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("docs/metrics.md")
    exec(block, {})
    assert "L0 MLP" in capsys.readouterr().out


def test_the_example_of_self_repair_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("docs/self-repair.md")
    exec(block, {})
    assert "[1" in capsys.readouterr().out


def test_the_example_of_gradient_against_cause_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("docs/gradient-against-cause.md")
    exec(block, {})
    assert "joint_over_sum_of_singles" in capsys.readouterr().out


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks("README.md") if "scores.save" in block]
    exec(block, {})
    assert (tmp_path / "runs/my-run/run.json").is_file()


def test_the_table_of_sites_is_that_of_the_methods() -> None:
    section = (ROOT / "docs/methods/index.md").read_text("utf-8").split("## What they take")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE))
    limited = {name: method for name, method in METHODS.items() if method.kinds or not method.at_positions}
    assert set(rows) == set(limited)
    for name, method in limited.items():
        kinds, positions = rows[name].split(" | ")
        senders, _, receivers = kinds.partition(";")
        assert set(re.findall("`([\\w-]+)`", senders)) == set(method.kinds)
        assert positions.startswith("yes") == method.at_positions
        if receivers:
            assert set(re.findall("`([\\w-]+)`", receivers)) == {*RECEIVERS, LOGITS}


def commands(page: str) -> list[list[str]]:
    """What the page has its reader type, in order: ``assay`` with its arguments, but for blocks marked as not run."""
    found = []
    for excuse, language, content in BLOCK.findall((ROOT / page).read_text("utf-8")):
        if language == "sh" and (not excuse or ("slow" in excuse and EVERYTHING)):
            for line in content.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0].removeprefix(".venv/bin/") == "assay":
                    found.append(words[1:])
    return found


def is_quick(command: list[str]) -> bool:
    return not any(model in word for model in REAL for word in command)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_what_a_page_has_one_type_runs(page: str, tmp_path: Path) -> None:
    """In `make test` the commands that need no real model; in `make test-all` every one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    # What comes after one that is not run may rest on it.
    ran = list(takewhile(lambda command: EVERYTHING or is_quick(command), commands(page)))
    if not ran:
        pytest.skip("Its commands take real models or long; make test-all runs them.")
    for command in ran:
        ended = subprocess.run(
            [sys.executable, "-m", "assay", *command], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
        )
        assert ended.returncode == 0, f"assay {shlex.join(command)}\n{ended.stderr}"


GUIDES = ["docs/tour.md", *(page for page in PAGES if page.startswith("docs/guides/"))]


@pytest.mark.parametrize("page", GUIDES)
def test_the_python_of_a_guide_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for excuse, language, content in BLOCK.findall((ROOT / page).read_text("utf-8")):
        if language == "python" and not excuse:
            exec(content, names)


def test_every_page_is_in_the_site_and_every_page_of_the_site_is_there() -> None:
    class Loader(yaml.SafeLoader):
        """Knows none of the tags that name Python objects."""

    def entries(nav: list[object]) -> list[str]:
        found = []
        for entry in nav:
            inner = next(iter(entry.values())) if isinstance(entry, dict) else entry
            found += entries(inner) if isinstance(inner, list) else [str(inner)]
        return found

    listed = entries(yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)["nav"])
    assert sorted(listed) == sorted(page.removeprefix("docs/") for page in PAGES[1:])


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "site/reference.html").read_text("utf-8")
    for name in ("load", "screen", "measure_interactions", "explain"):
        assert f'id="assay.{name}"' in page
    fetched = [
        address
        for file in (tmp_path / "site").rglob("*.html")
        for address in re.findall(
            r'<(?:script|link rel="stylesheet"|img)[^>]*(?:src|href)="(https?://[^"]+)"', file.read_text("utf-8")
        )
    ]
    assert not fetched, "the site opens offline"
