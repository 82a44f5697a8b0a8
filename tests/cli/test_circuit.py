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
    for part in (
        "CPR",
        "CMD",
        "Scores (eap-ig-inputs): not causally validated",
        "on 4 others",
        "m0->logits",
        "Metric log-prob-diff",
        "empty circuit",
        "f, random",
        "in the circuit",
        "curves",
        "Next: assay circuit",
    ):
        assert part in ended.out
    found = FoundCircuit.load("folder")
    assert {(p.clean, p.corrupted) for p in found.evaluated}.isdisjoint(
        {(p.clean, p.corrupted) for p in found.scores.pairs or ()}
    )
    page = (tmp_path / "folder/report.html").read_text("utf-8")
    assert page.count("not causally validated") >= 2
    assert "<svg" in page.split("<h1>")[-1].split("<script")[0]
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
    content = json.loads(run("show", "folder", "--json").out)
    in_circuit = set(content["circuit"]["items"])
    assert f"{len(in_circuit)} of {content['setting']['scored']} " in ended.out
    if level == "node":
        nodes = json.loads(Path("folder/scores.json").read_text())["nodes"]
        assert {name for name, row in nodes.items() if row["in_graph"]} - {"logits"} == in_circuit
    assert {row["name"] for row in content["top"] if row["in_circuit"]} <= in_circuit
    assert "path" not in ended.out.split("Faithfulness over size")[1].split("\n")[1]
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
    again = run(*COMMAND, "--level", level, "--method", method, "--submission", "all", "--out", "folder")
    assert "Replaced what was there in the submission" in again.out
    Path("all/sort_sequence-sort/importances.json").unlink()
    assert run(*COMMAND, "--level", level, "--method", method, "--submission", "all", "--out", "folder").code == 0
    assert len(check_submission("all", complete=False)) == 1


def test_from_runs_on_as_many_unseen_pairs_as_asked(run: Run) -> None:
    assert run(*COMMAND, "--method", "random", "--size", "0.1", "--out", "folder").code == 0
    for n in ("2", "7"):
        given = ("circuit", "sequence-sort", "--task", "sort", "--n", n, "--from", "folder", "--size", "0.1")
        ended = run(*given, "--out", f"of-{n}")
        assert ended.code == 0, ended.err
        assert f"circuits ran on {n} others" in " ".join(ended.out.split())


def test_a_threshold_that_nothing_reaches_is_refused(run: Run) -> None:
    ended = run(*COMMAND, "--method", "random", "--select", "threshold", "--threshold", "1000")
    assert ended.code == 2
    assert "No score reaches --threshold 1000: the largest absolute score is" in ended.err


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
        (("--level", "edges"), "Did you mean 'edge'?"),
        (("--ablation", "zeros"), "Did you mean 'zero'?"),
        (("--ablation", "zero"), "--method eap, second-order, exact"),
        (("--mean", "position"), "averages nothing"),
        (("--reference", "other.jsonl"), "takes no --reference"),
        (("--ablation", "mean", "--method", "eap", "--mean", "prompt"), "--mean is position"),
        (("--select", "tops"), "Did you mean 'top'?"),
        (("--select", "threshold"), "go together"),
        (("--threshold", "1"), "go together"),
        (("--select", "threshold", "--threshold", "1", "--size", "0.1"), "leave --size"),
        (("--select", "threshold", "--threshold", "-1"), "above 0"),
        (("--select", "greedy", "--level", "node"), "for --level edge"),
        (("--select", "greedy", "--faithfulness", "0.5"), "searches by score"),
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


def test_the_size_that_nobody_gave(run: Run) -> None:
    """The smallest of the curve that carries half, at every level, and it is said."""
    for level in ("edge", "node"):
        ended = run(*COMMAND, "--level", level, "--out", level)
        assert "the smallest size of the curve with a faithfulness of at least 0.5" in " ".join(ended.out.split())
        found = FoundCircuit.load(level)
        curve = found.absolute.curve
        reached = [size for size, f in zip(curve.sizes, curve.faithfulness, strict=True) if f.value >= 0.5]
        assert found.size == min(reached)
        assert found.faithfulness.value == pytest.approx(curve.faithfulness[list(curve.sizes).index(found.size)].value)


def test_ablation_selection_and_what_is_left_out(run: Run) -> None:
    options = ("--method", "eap", "--ablation", "mean", "--mean", "all-positions", "--completeness")
    ended = run(*COMMAND, *options, "--select", "greedy", "--size", "0.1", "--out", "mean")
    assert ended.code == 0, ended.err
    for part in ("carries its mean over reference prompts", "f, left out", "What it leaves out has by itself"):
        assert part in ended.out
    content = json.loads(run("show", "mean", "--json").out)
    assert content["configuration"]["ablation"] == content["setting"]["ablation"] == "mean"
    assert content["circuit"]["select"] == content["curves"]["signed"]["settings"]["choice"] == "greedy"
    found = FoundCircuit.load("mean")
    assert found.absolute.complement is not None
    assert found.absolute.complement.values.shape == found.absolute.curve.circuits.values.shape
    chosen = run(*COMMAND, "--select", "threshold", "--threshold", "10", "--out", "threshold")
    assert "every absolute score of at least 10" in " ".join(chosen.out.split())
    found = FoundCircuit.load("threshold")
    assert (abs(found.scores.mean[found.kept]) >= 10).all()
    assert found.kept.any()


def test_progress_is_told_on_standard_error(run: Run) -> None:
    ended = run(*COMMAND, "--out", "folder")
    for part in ("Scores by eap-ig-inputs, 4 pairs ...", "30 circuits ...", "The chosen circuit: 00:0"):
        assert part in ended.err
    quiet = run(*COMMAND, "--out", "other", "--json")
    told = json.loads(quiet.out)
    assert "costs" not in told
    assert told["cost"].keys() == {"ends", "scores", "curves", "chosen"}
    after = run(*COMMAND, "--from", "other/scores.json", "--out", "third")
    assert "scores made before, not counted here" in " ".join(after.out.split())
    assert "n/a, since the file holds means alone" in " ".join(after.out.split())


def test_bad_options_do_not_wait_for_the_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.cli import finding

    monkeypatch.setattr(finding, "load_given", lambda *_, **__: pytest.fail("loaded"))
    assert run(*COMMAND, "--metric", "exact-match", "--out", "folder").code == 2
