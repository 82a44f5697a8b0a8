"""What costs seconds is imported after the command line was understood, and Ctrl-C is heard meanwhile."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import assay
from assay.audit.rivals import RIVALS
from assay.cli import audit, compare, explain, interactions, options, response, score, screen, self_repair
from assay.cli.early import WarmUp
from assay.engine.batches import DEFAULT_MEMORY
from assay.methods.integrated_gradients import RULES
from assay.methods.method import DEFAULT_SITES
from assay.model import loading
from assay.screening import FIXES

START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts tests in the background may ignore it
class Watch:
    def find_spec(self, name, *rest):
        if name == {name!r}:
            {what}
sys.meta_path.insert(0, Watch())
from assay.cli import main
main()
"""


def start(name: str, what: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``assay ...``, and do ``what`` when it is about to import a module."""
    command = [sys.executable, "-c", START.format(name=name, what=what), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("score --help", 0),
        ("screen --help", 0),
        ("compare --help", 0),
        ("response --help", 0),
        ("circuit --help", 0),
        ("train --help", 0),
        ("score smollm2-135m --task ioi --oops 1", 2),
        ("screen smollm2-135m", 2),
        ("list people", 2),
        ("scores", 2),
    ],
)
def test_usage_does_not_wait_for_torch(arguments: str, code: int) -> None:
    ended = start("torch", "os._exit(9)", *arguments.split())
    assert ended.returncode == code, ended.stderr


@pytest.mark.parametrize("name", ["typer", "torch", "transformers", "assay.methods.registry"])
@pytest.mark.parametrize("jobs", [(), ("--jobs", "2")])
def test_ctrl_c_during_imports_is_one_line(name: str, jobs: tuple[str, ...], tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"))
    interrupt = "os.kill(os.getpid(), signal.SIGINT)"
    ended = start(name, interrupt, "score", "sequence-sort", "--task", "sort", *jobs, *out)
    assert ended.returncode == 130
    assert ended.stderr.startswith("Interrupted")
    assert len(ended.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_that_an_import_makes_something_else_of_is_still_one(tmp_path: Path) -> None:
    lines = (
        "try:",
        "    os.kill(os.getpid(), signal.SIGINT)",
        "except KeyboardInterrupt:",
        "    raise RecursionError('lost') from None",
    )
    out = ("--out", str(tmp_path / "run"))
    ended = start("torch", ("\n" + 12 * " ").join(lines), "score", "sequence-sort", "--task", "sort", *out)
    assert (ended.returncode, ended.stderr) == (130, "Interrupted.\n")


def test_what_is_written_out_is_what_it_stands_for() -> None:
    assert tuple(loading.DTYPES) == options.DTYPES
    assert (options.DEFAULT_MEMORY, options.DEFAULT_SITES) == (DEFAULT_MEMORY, DEFAULT_SITES)
    assert (options.RULES, options.FIXES, options.RIVALS) == (RULES, FIXES, RIVALS)
    for command, function in (
        (score.score, assay.measure),
        (screen.screen, assay.screen),
        (compare.compare_methods, assay.compare),
        (response.response, assay.response_curve),
        (self_repair.self_repair, assay.self_repair),
        (audit.audit, assay.audit_gradients),
        (interactions.interactions, assay.measure_interactions),
        (explain.explain, assay.explain_all),
    ):
        there, mine = (
            {name: p.default for name, p in inspect.signature(f).parameters.items() if p.default is not p.empty}
            for f in (function, command)
        )
        shared = (there.keys() & mine.keys()) - {"rivals"}  # a list there, names with commas here
        assert shared
        assert {name: mine[name] for name in shared} == {name: there[name] for name in shared}


def test_names_are_those_that_checkers_see() -> None:
    tree = ast.parse(Path(str(assay.__file__)).read_text("utf-8"))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("assay"):
            module = importlib.import_module(str(node.module))
            found.update({alias.name: getattr(module, alias.name) for alias in node.names})
    assert sorted(found) == sorted(assay.__all__)
    for name, value in found.items():
        assert getattr(assay, name) is value
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = assay.nothing


def test_a_worker_that_was_warmed_up_does_not_load_again() -> None:
    loading._loaded_once.cache_clear()
    WarmUp("sequence-sort", "float32", "cpu", None, None, None)()
    again = assay.load("sequence-sort").load_again
    assert again is not None
    assert again().name == "sequence-sort"
    assert loading._loaded_once.cache_info()[:2] == (1, 1)  # hits, misses
    loading._loaded_once.cache_clear()


def test_a_warm_up_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    monkeypatch.setattr(loading, "_load_from", None)
    WarmUp("smollm2-135m", "float32", "cpu", None, None, None)()
    WarmUp("owner/name", "float32", "cpu", None, None, None)()
