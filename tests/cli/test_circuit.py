"""``assay circuit`` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.circuits import FoundCircuit, check_submission
from cli.conftest import Run

COMMAND = ("circuit", "sequence-sort", "--task", "sort", "--n", "4")


def test_table_page_drawing_json_and_the_finished_run(run: Run, tmp_path: Path) -> None:
    ended = run(*COMMAND, "--size", "0.1", "--out", "folder")
    assert ended.code == 0
    for part in ("CPR", "CMD", "Scores (eap-ig-inputs): not causally validated", "on 4 others", "m0->logits", "pruned"):
        assert part in ended.out
    found = FoundCircuit.load("folder")
    assert {(p.clean, p.corrupted) for p in found.evaluated}.isdisjoint(
        {(p.clean, p.corrupted) for p in found.scores.pairs or ()}
    )
    page = (tmp_path / "folder/report.html").read_text("utf-8")
    assert page.count("not causally validated") >= 2
    assert "<svg" in page.split("</script>")[-1]
    assert "https://" not in page.replace("https://plotly", "").split("</script>")[-1]
    dot = (tmp_path / "folder/circuit.dot").read_text()
    assert dot.startswith("digraph")
    assert json.loads((tmp_path / "folder/scores.json").read_text())["assay"]["label"] == "not causally validated"
    assert "finished already" in run(*COMMAND, "--size", "0.1", "--out", "folder").out
    shown = run("show", "folder")
    assert shown.code == 0
    assert "CPR" in shown.out
    content = json.loads(run("show", "folder", "--json").out)
    assert content["label"] == "not causally validated"
    assert content["cpr"]["value"] == found.cpr.value
    assert len(content["circuit"]["edges"]) == found.kept.sum()
    other = run(*COMMAND, "--size", "0.2", "--out", "folder")
    assert other.code == 2
    assert "size" in other.err

    again = run(*COMMAND, "--from", "folder/scores.json", "--size", "0.1", "--out", "again", "--json")
    assert again.code == 0
    assert json.loads(again.out)["circuit"]["edges"] == content["circuit"]["edges"]
    assert json.loads(again.out)["provenance"]["command"].startswith("assay circuit sequence-sort --task sort --from f")
    shown = run("show", "again", "--json")
    assert shown.out == again.out
    foreign = json.loads((tmp_path / "folder/scores.json").read_text())
    del foreign["assay"]
    (tmp_path / "foreign.json").write_text(json.dumps(foreign))
    unknown = run(*COMMAND, "--from", "foreign.json", "--size", "0.1", "--out", "unknown")
    assert unknown.code == 0, unknown.err
    for part in ("of sequence-sort carry", "cannot be known", "Scores (imported): not causally validated"):
        assert part in unknown.out
    assert run("show", "unknown").code == 0
    folder = run(*COMMAND, "--from", "folder", "--size", "0.1", "--out", "third", "--json")
    assert json.loads(folder.out)["cpr"] == content["cpr"]


@pytest.mark.parametrize("level", ["node", "neuron"])
def test_nodes_and_neurons(run: Run, level: str) -> None:
    ended = run(*COMMAND, "--level", level, "--size", "0.5", "--out", "folder")
    assert ended.code == 0, ended.err
    assert "attribution-patching): not causally validated" in ended.out
    assert run("show", "folder").code == 0
    again = run(*COMMAND, "--level", level, "--size", "0.5", "--from", "folder", "--out", "again", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["cpr"] == json.loads(run("show", "folder", "--json").out)["cpr"]


@pytest.mark.parametrize("level", ["edge", "node"])
def test_scores_are_added_to_a_submission(run: Run, level: str) -> None:
    method = "random" if level == "edge" else "attribution-patching"
    ended = run(*COMMAND, "--level", level, "--method", method, "--submission", "all", "--out", "folder")
    assert ended.code == 0, ended.err
    assert "all/sort_sequence-sort/importances.json" in ended.out.replace("\n", "")
    (entry,) = check_submission("all", complete=False)
    assert (entry.task, entry.model, entry.level) == ("sort", "sequence-sort", level)
    Path("all/sort_sequence-sort/importances.json").unlink()
    assert run(*COMMAND, "--level", level, "--method", method, "--submission", "all", "--out", "folder").code == 0
    assert len(check_submission("all", complete=False)) == 1


def test_exact_scores_are_not_called_unvalidated(run: Run) -> None:
    ended = run(*COMMAND, "--method", "exact", "--out", "folder", "--json")
    assert json.loads(ended.out)["label"] == "measured by intervention"
    assert "not causally" not in Path("folder/circuit.dot").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--level", "head"), "no level 'head'"),
        (("--method", "eap-ig"), "no edge method"),
        (("--method", "eap", "--steps", "3"), "takes no 'steps'"),
        (("--method", "second-order", "--dtype", "bfloat16"), "second-order takes second derivatives"),
        (("--method", "second-order", "--rules", "gim"), "no curvature"),
        (("--level", "node", "--method", "hvp", "--dtype", "float16"), "hvp takes second derivatives"),
        (("--level", "node", "--method", "zero-ablation"), "direction noise"),
        (("--level", "node", "--ungrouped"), "--level edge"),
        (("--level", "node", "--faithfulness", "0.8"), "--level edge"),
        (("--level", "neuron", "--submission", "all"), "coordinates of what a node writes"),
        (("--size", "2"), "above 0 and at most 1"),
        (("--size", "0.1", "--faithfulness", "0.8"), "one of them"),
        (("--from", "nothing.json"), "There is no nothing.json"),
        (("--rules", "none"), "no backward rules"),
        (("--metric", "exact-match"), "gradient"),
    ],
)
def test_bad_options_are_refused(run: Run, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    ended = run(*COMMAND, *options, "--out", "folder")
    assert ended.code == 2
    assert message in ended.err
    assert not (tmp_path / "folder").exists()


def test_from_brings_its_own_method_and_model(run: Run, tmp_path: Path) -> None:
    assert run(*COMMAND, "--method", "random", "--out", "folder").code == 0
    ended = run(*COMMAND, "--from", "folder/scores.json", "--method", "eap", "--out", "other")
    assert ended.code == 2
    assert "leave --method out" in ended.err
    ended = run(*COMMAND, "--level", "node", "--from", "folder/scores.json", "--out", "other")
    assert "JSON holds scores of edges" in ended.err
    other = run("circuit", "sequence-reverse", "--task", "reverse", "--from", "folder/scores.json", "--out", "other")
    assert other.code == 2
    assert "other weights" in other.err
    assert not (tmp_path / "other").exists()
