"""The study end to end on a small model: resumed after a kill, and a page made from what is stored alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.comparison import parse_method
from assay.data.tasks import make_pairs
from assay.errors import StoreError
from assay.studies.patching_errors import DEFAULT, FULL, Setting, carry_out, write_page
from assay.studies.patching_errors.arrays import Measured, read_setting, read_sizes
from assay.studies.patching_errors.claims import claims
from assay.studies.patching_errors.page import results
from assay.studies.patching_errors.settings import HEADS, NEURONS, SAMPLED

SMALL = replace(DEFAULT, pairs=2, largest=20, random=40, path=(5, 5, 10), probes=2)
SETTINGS = [Setting("sequence-sort", "sort", None, site) for site in (HEADS, NEURONS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "run"
    carry_out(path, SMALL, SETTINGS, assay.load)
    return path


def no_model(name: str) -> assay.Model:
    raise AssertionError(f"{name} was loaded")


def read(folder: Path, setting: Setting) -> Measured:
    found = read_setting(folder, setting, read_sizes(folder))
    assert found is not None
    return found


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.site)
def test_values_of_the_study_are_those_of_the_methods(folder: Path, setting: Setting, sorter: assay.Model) -> None:
    found = read(folder, setting)
    pairs = make_pairs(sorter, "sort", SMALL.pairs, SMALL.seed)
    assert found.sample is not None
    assert found.followed is not None
    for components in (found.sample, found.followed):
        chosen = assay.sites.Selection(components.exact.components)
        for name, values in components.estimates.items():
            if name == SAMPLED:  # its noise depends on what is probed together: all of the population
                whole = assay.measure(parse_method("hvp-sampled:probes=2"), sorter, pairs, sites=setting.site)
                place = [whole.components.index(component) for component in chosen]
                expected = whole.values[place]
            else:
                expected = assay.measure(parse_method(name), sorter, pairs, sites=chosen).values
            np.testing.assert_allclose(values, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max(), err_msg=name)


def test_neurons_are_sampled_by_strata_that_stand_for_all(folder: Path, sorter: assay.Model) -> None:
    found = read(folder, SETTINGS[1])
    assert found.sample is not None
    assert found.followed is not None
    assert (len(found.sample.truth), len(found.followed.truth)) == (60, 20)
    for components in (found.sample, found.followed):
        assert components.weights.sum() == pytest.approx(found.population)
    pairs = make_pairs(sorter, "sort", SMALL.pairs, SMALL.seed)
    first = assay.attribution_patching(sorter, pairs, sites=NEURONS)
    order = np.argsort(-np.abs(first.values.mean(1)))
    largest = [first.components[i] for i in order[:20]]
    assert list(found.sample.exact.components[:20]) == largest
    assert list(found.followed.exact.components[:5]) == largest[:5]


def test_what_is_measured_is_not_measured_again(folder: Path) -> None:
    said: list[str] = []
    carry_out(folder, SMALL, SETTINGS, no_model, said.append)
    assert [line.endswith("measured already") for line in said] == [True, True]
    with pytest.raises(StoreError, match="probes: 2 there, 3 now"):
        carry_out(folder, replace(SMALL, probes=3), SETTINGS, no_model)


CHILD = """
import sys
from pathlib import Path
import assay
sys.path[:0] = sys.argv[2:]
from studies.test_patching_errors import SETTINGS, SMALL, carry_out
carry_out(Path(sys.argv[1]), SMALL, SETTINGS, assay.load)
"""


def test_a_killed_study_goes_on_and_ends_with_the_same_values(folder: Path, tmp_path: Path) -> None:
    path, tests = tmp_path / "run", str(Path(__file__).parent.parent)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), tests],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 300
    while not list(path.glob("*/path/run.json")) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    finished = {p: p.stat().st_mtime_ns for p in path.glob("*/*/run.json")}
    assert not (path / SETTINGS[1].folder / "sample.json").exists()
    carry_out(path, SMALL, SETTINGS, assay.load)
    assert {p: p.stat().st_mtime_ns for p in finished} == finished
    for setting in SETTINGS:
        one, other = read(path, setting), read(folder, setting)
        assert one.followed is not None
        assert other.followed is not None
        for name, values in one.followed.estimates.items():
            np.testing.assert_array_equal(values, other.followed.estimates[name])


def test_the_page_is_made_from_the_folder_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    monkeypatch.setattr(assay, "load", no_model)
    unmeasured = Setting("gemma-3-270m", "facts", None, HEADS)
    written = write_page(moved, tmp_path / "results" / "page.md", [*SETTINGS, unmeasured], draws=20)
    text = written[0].read_text("utf-8")
    assert "Not finished when this page was written:** Gemma 3 facts heads." in text
    assert "AtP* is left out of sequence-sort sort" in text
    for picture in written[1:]:
        assert f"({picture.relative_to(written[0].parent)})" in text
        assert picture.read_text("utf-8").startswith("<svg ")
        assert "nan" not in picture.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = [line.count("|") for line in rows]
    rules = [i for i, line in enumerate(rows) if line.startswith("|---")]
    assert len(rules) > 12
    assert all(widths[i] == widths[i - 1] == widths[i + 1] for i in rules)


def test_tables_say_what_the_arrays_say(folder: Path) -> None:
    measured = [read(folder, setting) for setting in SETTINGS]
    found = results(measured, draws=20)
    heads = measured[0].followed
    assert heads is not None
    error = np.abs(heads.estimates["hvp"] - heads.truth).sum() / np.abs(heads.truth).sum()
    table = found["errors"].query("site == 'heads' and which == 'followed'").set_index("method")
    assert table.loc["hvp", "l1"] == pytest.approx(error)
    ends = found["scaled"][HEADS].iloc[-1]
    assert ends["tangent"] == pytest.approx(table.loc["attribution-patching", "l1"], rel=1e-4)
    assert ends["parabola"] == pytest.approx(table.loc["hvp", "l1"], rel=1e-4)
    risk = found["risk"]
    assert (risk.groupby("site")["flagged"].diff().dropna() <= 0).all()  # a higher threshold never flags more
    assert risk["removed"].between(0, 1).all()
    coverage = found["intervals"].dropna()
    assert (coverage["coverage"] > coverage["level"] - 0.05).all()


def test_verdicts_follow_from_the_tables(folder: Path) -> None:
    found = results([read(folder, setting) for setting in SETTINGS], draws=2)
    before = {claim.says: claim.verdict for claim in claims(found)}
    cut = next(says for says in before if "five largest heads" in says and "HVP" in says)
    for share, verdict in ((0.8, "agrees"), (0.3, "agrees in part"), (-0.3, "does not agree")):
        found["improvement"].loc[found["improvement"]["site"] == HEADS, "hvp"] = share
        assert {claim.says: claim.verdict for claim in claims(found)}[cut] == verdict

    table = found["errors"].set_index(["which", "method"])
    for error, verdict in ((1.0, "does not agree"), (1e-9, "agrees")):
        table.loc[("followed", "ms-hvp:segments=5"), "l1"] = error
        found["errors"] = table.reset_index()
        compared = [claim.verdict for claim in claims(found) if "at cost 35" in claim.says]
        assert compared == [verdict, verdict]


def test_settings_are_those_of_the_issue() -> None:
    settings = DEFAULT.settings()
    assert len(settings) == 14  # greater-than on heads alone
    assert len(FULL.settings()) == 16
    assert len({setting.folder for setting in settings}) == 14
    assert DEFAULT.pairs == 4
