"""``assay audit`` and ``assay interactions`` as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import assay
from assay.errors import StoreError
from cli.conftest import Run

AUDIT = (
    "audit", "sequence-sort", "--task", "sort", "--n", "40", "--ood", "8", "--rivals", "grad.delta,hvp",
    "--rival-examples", "4", "--pruning", "--pruned-examples", "35", "--force",
)  # fmt: skip
INTERACTIONS = ("interactions", "sequence-sort", "--task", "sort", "--n", "34", "--sites", "heads[0:2]")


def test_audit_tables_page_json_and_the_finished_run(run: Run, tmp_path: Path) -> None:
    ended = run(*AUDIT, "--out", "folder")
    assert ended.code == 0, ended.err
    for part in ("Hidden heroes", "rank G", "Layers, out of distribution", "one by one and together", "random"):
        assert part in ended.out
    page = (tmp_path / "folder/report.html").read_text("utf-8")
    assert "figure-pruning-1" in page
    assert "https://" not in page.replace("https://plotly", "").split("</script>")[-1]
    result = assay.Audit.load("folder")
    assert result.metric == "exact-match"
    assert result.gradient_metric == "log-prob"
    assert list(result.last.rivals) == ["grad.delta", "hvp"]
    assert [of.pairs.options["length"] for of in result.sets] == [5, 8]
    assert result.provenance["command"].startswith("assay audit sequence-sort --task sort")
    again = run(*AUDIT, "--out", "folder")
    assert "finished already" in again.out
    shown = run("show", "folder", "--top", "20")
    assert shown.code == 0, shown.err
    assert shown.out in again.out
    found = json.loads(run("show", "folder", "--json").out)
    assert found["summary"] == json.loads(json.dumps(result.summary()))
    result.save(tmp_path / "copy")
    copy = assay.Audit.load(tmp_path / "copy")
    pd.testing.assert_frame_equal(copy.correlations(), result.correlations())
    assert copy.pruning is not None
    assert result.pruning is not None
    pd.testing.assert_frame_equal(copy.pruning.to_pandas(), result.pruning.to_pandas())
    (tmp_path / "copy/tensors.safetensors").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="damaged"):
        assay.Audit.load(tmp_path / "copy")


def test_interactions_tables_page_json_and_the_finished_run(run: Run, tmp_path: Path) -> None:
    ended = run(*INTERACTIONS, "--group", "layer:1", "--out", "folder")
    assert ended.code == 0, ended.err
    for part in ("joint over mean single", "Largest interactions", "second order"):
        assert part in ended.out
    page = (tmp_path / "folder/report.html").read_text("utf-8")
    assert "figure-matrix" in page
    assert "figure-second-order" in page
    result = assay.Interactions.load("folder")
    assert result.names == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert result.is_complete
    shown = run("show", "folder")
    assert shown.out in run(*INTERACTIONS, "--group", "layer:1", "--out", "folder").out
    found = json.loads(run("show", "folder", "--json").out)
    assert found["summary"] == json.loads(json.dumps(result.summary()))
    result.save(tmp_path / "copy")
    copy = assay.Interactions.load(tmp_path / "copy")
    np.testing.assert_array_equal(copy.joint, result.joint)
    assert copy.group is not None
    assert result.group is not None
    assert copy.group.summary() == result.group.summary()
    with pytest.raises(StoreError, match="no audit"):
        assay.Audit.load("folder")
    with pytest.raises(StoreError, match="exists already"):
        result.save("folder")


def test_heroes_are_those_of_an_audit(run: Run) -> None:
    heroes = ("interactions", "sequence-sort", "--task", "sort", "--n", "80", "--group", "heroes")
    ended = run(*heroes, "--metric", "log-prob", "--out", "folder")
    assert ended.code == 0, ended.err
    model = assay.load("sequence-sort")
    audit = assay.audit_gradients(model, assay.tasks.sort(model, n=80), rivals=[], metric="log-prob")
    assert len(audit.members("hero")) > 1
    alone = run(*heroes, "--metric", "exact-match")
    assert alone.code == 2
    assert "sure of 1 heroes (L1 MLP); a group is two or more" in alone.err
    assert assay.Interactions.load("folder").names == [name for name in audit.names if name in audit.members("hero")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*AUDIT, "--rivals", "magic"), "magic"),
        ((*AUDIT, "--ood", "magic"), "--ood"),
        ((*AUDIT, "--batches", "0"), "--batches"),
        ((*AUDIT, "--ablation", "zero", "--mean", "position"), "averages nothing"),
        ((*AUDIT, "--metric", "magic"), "magic"),
        ((*INTERACTIONS, "--group", "L0H0"), "two components"),
        ((*INTERACTIONS, "--group", "layer:7"), "layers 0 to 3"),
        ((*INTERACTIONS, "--exact", "-1"), "--exact"),
        ((*INTERACTIONS, "--ablation", "magic"), "mean, zero, resample"),
        ((*INTERACTIONS, "--second-order", "--metric", "exact-match"), "gradient"),
    ],
)
def test_bad_options_are_refused(run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    ended = run(*arguments, "--out", "folder")
    assert ended.code == 2
    assert message in ended.err
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("audit", "--n", "0"), "at least 1"),
        (("interactions", "--n", "0"), "at least 1"),
        (("audit", "--ood", "5"), "the length of the prompts themselves"),
        (("audit", "--length", "9", "--ood", "9"), "the length of the prompts themselves"),
        (("audit", "--ood", "²"), "takes a length of sort or reverse, or a file"),
        (("audit", "--rivals", "gim,gim"), "names one twice"),
        (("interactions", "--n", "34", "--group", "layer:²"), "has layers 0 to 3"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, tmp_path: Path, command: tuple[str, ...], said: str) -> None:
    name, *options = command
    ended = run(name, "sequence-sort", "--task", "sort", *options, "--out", "folder")
    assert ended.code == 2
    assert said in " ".join(ended.err.split())
    assert not (tmp_path / "folder").exists()
