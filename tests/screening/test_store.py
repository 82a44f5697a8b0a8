"""A screening survives the disk, a kill at any moment, and other processes."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.errors import StoreError
from assay.methods import plan
from assay.methods.workbench import Workbench
from assay.screening.result import ARRAYS
from conftest import random_pairs, wrapped
from scale.interrupted import bytes_of, in_small_shards, kill_after


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_shards(monkeypatch)


def screen_into(folder: Path | None, **options: object) -> assay.ScreenedScores:
    options = {"sites": "neurons,mlps", "top": 5, **options}
    return assay.screen(wrapped("llama"), random_pairs(4), run_folder=folder, force=True, **options)


def require_same_numbers(a: assay.ScreenedScores, b: assay.ScreenedScores) -> None:
    for name in ("values", *ARRAYS):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert (a.verdicts, a.notes, a.summary()) == (b.verdicts, b.notes, b.summary())
    assert [stage.forward_equivalents for stage in a.stages[:2]] == [
        stage.forward_equivalents for stage in b.stages[:2]
    ]


def require_same(a: assay.ScreenedScores, b: assay.ScreenedScores) -> None:
    for name in ("values", *ARRAYS):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in ("components", "pairs", "verdicts", "stages", "notes", "exhausted", "smooth", "probes", "level"):
        assert getattr(a, name) == getattr(b, name), name
    assert a.summary() == b.summary()
    for here, there in zip(a.calibrations, b.calibrations, strict=True):
        assert (here.sample == there.sample).all()
        assert (here.kind, here.quantile, here.widened, here.uses_curvature) == (
            there.kind,
            there.quantile,
            there.widened,
            there.uses_curvature,
        )


def test_a_round_trip_loses_nothing(tmp_path: Path) -> None:
    scores = screen_into(None)
    scores.save(tmp_path / "run")
    again = assay.ScreenedScores.load(tmp_path / "run")
    require_same(scores, again)
    assert again.top(8).equals(scores.top(8))
    assert repr(again) == repr(scores)
    assert "verified" in again._repr_html_()
    plain = assay.Scores.load(tmp_path / "run")
    assert (plain.values == scores.values).all()
    stored = assay.store.read_run(tmp_path / "run").components
    assert stored["verdict"].tolist() == list(scores.verdicts)
    np.testing.assert_array_equal(stored["reliability"].to_numpy(float), scores.reliability)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    assay.activation_patching(wrapped("llama"), random_pairs(3), force=True).save(tmp_path / "scores")
    with pytest.raises(StoreError, match="not of a screening"):
        assay.ScreenedScores.load(tmp_path / "scores")
    screen_into(tmp_path / "run")
    with pytest.raises(StoreError, match=r"level: 0\.95 there, 0\.9 now"):
        screen_into(tmp_path / "run", level=0.9)


def test_a_larger_budget_goes_on_and_ends_as_if_it_had_been_there_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"sites": "neurons", "top": 20, "probes": 2}
    whole = screen_into(tmp_path / "whole", **options)
    spent = whole.cost["forward_equivalents"]
    budgets = [spent - 12, spent - 1, None]
    folder, kept, computed = tmp_path / "run", [], []
    normal = Workbench.__call__
    monkeypatch.setattr(Workbench, "__call__", lambda self, shard: (computed.append(shard), normal(self, shard))[1])
    for budget in budgets:
        fresh = screen_into(tmp_path / f"fresh-{budget}", budget=budget, **options)
        alone = len(computed)
        computed.clear()
        found = screen_into(folder, budget=budget, **options)
        kept.append((alone, len(computed)))
        computed.clear()
        require_same_numbers(found, fresh)
        assert bytes_of(folder) == bytes_of(tmp_path / f"fresh-{budget}")
        assert (folder / "shards").exists() == (not found.screened) == (budget is not None)
        # The same again reads the result and leaves the shards; less is refused.
        require_same(screen_into(folder, budget=budget, **options), found)
        assert not computed
        if budget is not None:
            assert found.cost["forward_equivalents"] <= budget
            assert (folder / "shards").exists()
            with pytest.raises(StoreError, match="budget: "):
                screen_into(folder, budget=budget - 1, **options)
    assert kept[0][0] == kept[0][1] > 0
    assert all(0 < more < alone for alone, more in kept[1:]), "what is the same is not computed again"
    with pytest.raises(StoreError, match="budget: none there"):
        screen_into(folder, budget=1000.0, **options)
    assert bytes_of(folder) == bytes_of(tmp_path / "whole")


def test_a_run_that_its_budget_did_not_stop_is_handed_back_for_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = screen_into(tmp_path / "run", budget=1000.0)
    assert found.screened
    before = bytes_of(tmp_path / "run")
    monkeypatch.setattr(Workbench, "__call__", None)
    for budget in (2000.0, None):
        require_same(screen_into(tmp_path / "run", budget=budget), found)
    with pytest.raises(StoreError, match="budget: 1000"):
        screen_into(tmp_path / "run", budget=900.0)
    assert bytes_of(tmp_path / "run") == before


def test_going_on_with_a_budget_survives_a_kill(tmp_path: Path) -> None:
    options = {"sites": "neurons", "top": 20, "probes": 2}
    spent = screen_into(tmp_path / "whole", **options).cost["forward_equivalents"]
    folder = tmp_path / "run"
    screen_into(folder, budget=spent - 12, **options)

    def stopped(_: object, __: object, ___: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        screen_into(folder, on_baseline=stopped, **options)
    assert not assay.ScreenedScores.load(folder).screened, "nothing was lost yet"
    kill_after(1.0, lambda: screen_into(folder, **options))
    screen_into(folder, **options)
    assert bytes_of(folder) == bytes_of(tmp_path / "whole")


def test_killed_at_random_points_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    began = time.monotonic()
    screen_into(tmp_path / "whole")
    usual = time.monotonic() - began
    draw, folder, kills, seen = random.Random(1), tmp_path / "run", 0, set()
    while not (folder / "run.json").exists():
        if kill_after(draw.uniform(0.3, 0.9) * usual, lambda: screen_into(folder)) == -signal.SIGKILL:
            kills += 1
            seen.add(len(list(folder.glob("shards/*.safetensors"))))
        assert kills < 100
    assert kills
    assert max(seen) > 0
    assert bytes_of(folder) == bytes_of(tmp_path / "whole")
    # A kill may fall between the result and the removal of what was kept; then the next to come removes it.
    require_same(screen_into(folder), assay.ScreenedScores.load(folder))
    assert not (folder / "shards").exists()


def test_processes_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LANES", 20)  # pilot and search stay here, the sample is spread
    model = assay.load("sequence-sort")
    options = {"sites": "neurons[2:4]", "top": 3, "probes": 2}
    alone = assay.screen(model, assay.tasks.sort(model, n=3), jobs=1, **options)
    shared = assay.screen(model, assay.tasks.sort(model, n=3), jobs=2, **options)
    for name in ("values", "lower", "upper", "leaders", "source"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name), err_msg=name)
