"""Comparing methods with exact patching."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.comparison import compared, describe_method, parse_methods
from assay.errors import OptionError
from assay.methods import METHODS
from assay.report.comparison import headline, read_comparison
from conftest import random_pairs, wrapped
from oracles.test_first_order import linear_model

METHODS_COMPARED = ["attribution-patching", "ms-hvp:segments=2", "integrated-gradients:rule=gauss-legendre:steps=8"]


def test_the_figures_by_hand() -> None:
    exact = assay.activation_patching(wrapped("llama"), random_pairs(2), sites="mlps,attention", force=True)
    truth = np.array([[10.0, -8], [4, 4], [2, 2], [1, 1], [0.5, 0.5], [0.0, 0.02]])
    values = np.array([[11.0, -8], [2, 4], [2, 2], [1, 1], [-0.5, -0.5], [3.0, 3]])
    exact = replace(exact, values=truth)
    scores = replace(exact, values=values, exact=False)
    found = compared(METHODS["attribution-patching"], scores, exact, 3, 12)
    # Prompt 0: errors .1 .5 0 0 2 of its five largest; prompt 1: 0 0 0 0 2.
    assert found.top_error == pytest.approx(np.median([2.6 / 5, 2 / 5]))
    assert found.l1_error == pytest.approx((1 + 2 + 2 + 3 + 2.98) / (18 + 8 + 4 + 2 + 1 + 0.02))
    assert found.pearson == pytest.approx(np.corrcoef(values.mean(1), truth.mean(1))[0, 1])
    # Means of the exact 1 4 2 1 .5 .01, of the estimate 1.5 3 2 1 -.5 3; ties share a rank.
    assert found.spearman == pytest.approx(np.corrcoef([3.5, 6, 5, 3.5, 2, 1], [3, 5.5, 4, 2, 1, 5.5])[0, 1])
    assert found.overlap == {3: pytest.approx(2 / 3), 5: pytest.approx(4 / 5), 10: None, 20: None}
    assert found.sign_errors == pytest.approx(1 / 5)  # the last exact mean is too small to have a sign
    assert found.backward_passes == pytest.approx(1 / 6)
    assert found.scale == 1


def test_on_a_linear_model_every_estimate_is_the_truth() -> None:
    exact, found = assay.compare(linear_model(), random_pairs(3), METHODS_COMPARED, sites="heads,mlps", force=True)
    assert [row.method.split(":")[0] for row in found] == [
        "activation-patching",
        *(m.split(":")[0] for m in METHODS_COMPARED),
    ]
    for row in found:
        assert row.l1_error < 1e-10
        assert row.spearman == pytest.approx(1)
        assert row.overlap[5] == 1
        assert row.sign_errors == 0
    assert exact.exact


def test_finer_steps_come_nearer() -> None:
    _, found = assay.compare(wrapped("gpt2"), random_pairs(3), METHODS_COMPARED, force=True)
    errors = {row.method.split(":")[0]: row.l1_error for row in found}
    assert errors["activation-patching"] == 0
    assert errors["integrated-gradients"] < errors["attribution-patching"]
    cost = [row.forward_equivalents for row in found]
    assert cost[1] < cost[0] < cost[2]


def test_what_estimates_no_effect_is_scaled_first() -> None:
    _, found = assay.compare(wrapped("gpt2"), random_pairs(3), ["direct-effect", "random", "atp-star"], force=True)
    by_name = {row.method.split(":")[0]: row for row in found}
    assert by_name["direct-effect"].scale != 1
    assert by_name["random"].scale != 1
    assert by_name["random"].l1_error > 0.3
    assert by_name["atp-star"].sign_errors is None
    assert by_name["atp-star"].scale == 1


def test_a_negative_scale_turns_neither_correlation_nor_signs() -> None:
    exact = assay.activation_patching(wrapped("llama"), random_pairs(2), sites="heads", force=True)
    against = replace(exact, values=-exact.values, exact=False)
    found = compared(METHODS["random"], against, exact, 3, 12)
    assert found.scale == pytest.approx(-1)
    assert (found.pearson, found.spearman) == (pytest.approx(-1), pytest.approx(-1))
    assert found.l1_error == pytest.approx(0)


def test_overlap_of_absolute_scores_is_with_absolute_effects() -> None:
    exact = assay.activation_patching(wrapped("llama"), random_pairs(2), sites="heads", force=True)
    values = np.zeros_like(exact.values)
    values[0], values[1], values[2] = [5.0, -5], [1.0, 1], [0.5, 0.5]
    exact = replace(exact, values=values)
    absolute = replace(exact, values=np.abs(values), exact=False, signed=False)
    found = compared(METHODS["atp-star"], absolute, exact, 2, 12)
    assert (found.overlap[2], found.l1_error, found.pearson) == (1, 0, pytest.approx(1))


def test_phrases() -> None:
    methods = parse_methods("hvp, ms-hvp:segments=2,integrated-gradients:rule=left:steps=5,atp-star:qk-fix=false")
    assert [describe_method(method) for method in methods] == [
        "hvp",
        "ms-hvp:segments=2",
        "integrated-gradients:rule=left:steps=5",
        "atp-star:qk_fix=False:grad_drop=True",
    ]
    assert parse_methods(",".join(map(describe_method, methods)))[3].parameters == methods[3].parameters
    for phrase, message in (
        ("", "names each method once"),
        ("hvp,hvp", "names each method once"),
        ("hvp:segments", "are written"),
        ("hvp:segments=2", "only for --method ms-hvp"),
        ("zero-ablation", "cannot be compared"),
        ("path-patching:receivers=logits", "cannot be compared"),
    ):
        with pytest.raises(OptionError, match=message):
            parse_methods(phrase)


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from assay.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    arguments = ["assay", "compare", "sequence-sort", "--task", "sort", "--n", "4", "--methods"]
    arguments += ["attribution-patching,hvp-sampled:probes=2", "--out", "folder"]

    def run(*more: str) -> str:
        monkeypatch.setattr("sys.argv", [*arguments, *more])
        with pytest.raises(SystemExit, match="0"):
            main()
        return capsys.readouterr().out

    printed = run()
    assert "hvp-sampled:probes=2" in printed
    assert (tmp_path / "folder" / "report.html").stat().st_size > 1e6
    stored = json.loads((tmp_path / "folder" / "run.json").read_text())
    assert len(stored["methods"]) == 3
    assert "finished already" in run()
    assert json.loads(run("--json")) == stored
    exact = assay.measure("activation-patching", (model := assay.load("sequence-sort")), assay.tasks.sort(model, n=4))
    assert (stored["schema_version"], stored["kind"]) == (1, "comparison")
    for name, value in (("direction", "denoise"), ("metric", "log-prob-diff"), ("unit", "nats"), ("examples", 4)):
        assert stored[name] == value
    assert stored["components"] == 16
    assert stored["baseline"]["difference"] == pytest.approx(exact.baseline.difference)
    assert stored["baseline"]["per_example"]["clean"] == pytest.approx(exact.baseline.clean.tolist())
    shown = [printed, run()]
    monkeypatch.setattr("sys.argv", ["assay", "show", "folder"])
    with pytest.raises(SystemExit, match="0"):
        main()
    shown.append(capsys.readouterr().out)
    said = headline(read_comparison(stored))
    page = (tmp_path / "folder" / "report.html").read_text("utf-8")
    assert said in page
    assert "assay compare sequence-sort --task sort --methods" in page
    for text in shown:
        assert text.index(said) < text.index("Baseline (unpatched prompts)")
        assert f"{exact.baseline.clean.mean():+.4g}" in text
        assert "16 components, 4 prompt pairs, direction denoise" in text
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_precision_says_nothing_of_backward_passes_beforehand() -> None:
    _, found = assay.compare(wrapped("gpt2"), random_pairs(2), ["hvp-sampled:precision=0.9"], sites="heads", force=True)
    assert found[1].backward_passes is None
