"""What the command line says to a user who mistook something."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import assay
from assay.circuits import find_circuit
from assay.circuits.second_order import second_order
from assay.data.encoding import require_align
from assay.data.metrics import metric_named
from assay.data.tasks import make_pairs, require_task
from assay.errors import AssayError, DataError, ModelError, OptionError
from assay.methods.registry import METHODS, method_named
from assay.methods.requirements import require_direction
from assay.sites import parse, require_position
from cli.conftest import Run
from conftest import random_pairs, wrapped


@pytest.mark.parametrize(
    ("name", "nearest", "ask"),
    [
        ("logit_diff", "logit-diff", metric_named),
        ("iio", "ioi", require_task),
        ("atribution-patching", "attribution-patching", method_named),
        ("residual_pre", "residual-pre", parse),
        ("lasst", "last", require_position),
        ("last_k", "last-k", require_align),
        ("denoising", "denoise", lambda name: require_direction(method_named("random"), name)),
        ("smollm2-135", "smollm2-135m", assay.load),
        ("float23", "float32", lambda name: assay.load("sequence-sort", dtype=name)),
    ],
)
def test_the_nearest_name_is_suggested(name: str, nearest: str, ask: object) -> None:
    with pytest.raises(AssayError, match=rf"no \w+ '{name}'.*Did you mean '{nearest}'\? Choose one of .*{nearest}"):
        ask(name)
    with pytest.raises((OptionError, ModelError)) as raised:
        ask("./zzzz")
    assert "Did you mean" not in str(raised.value)


def test_layers_from_their_end_to_their_start_are_refused(sorter: assay.Model) -> None:
    with pytest.raises(OptionError, match=r"'heads\[3:1\]': The start, 3, is after the end, 1.*heads\[1:4\]"):
        parse("heads[3:1]")
    with pytest.raises(OptionError, match=r"The start, 2, is at the end, 2, which is not included.*heads\[2:3\]"):
        parse("heads[2:2]")
    with pytest.raises(OptionError, match="The start, 3, is after the end, 1"):
        assay.sites.heads(sorter).layers(3, 1)


@pytest.mark.parametrize(
    ("receivers", "complaint"),
    [
        ("heads[20]", r"'heads\[20\]' cannot receive. Receivers are q, k, v, mlps and logits"),
        ("logits,q[1]@last", r"'q\[1\]@last' cannot receive at a position of its own; leave @last out"),
        ("q[3:1]", "after the end"),
        ("querries", "no site 'querries'"),
        (" , ", "There are no receivers"),
    ],
)
def test_receivers_that_no_model_has_are_refused_before_one_is_loaded(receivers: str, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        method_named("path-patching", receivers=receivers)


def test_selected_receivers_are_named_and_layers_beyond_the_model_refused_before_it_runs(
    sorter: assay.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = assay.sites.heads(sorter).layers(1)
    with pytest.raises(OptionError, match="'L1H0' cannot receive"):
        method_named("path-patching", receivers=heads)
    pairs = assay.tasks.sort(sorter, n=2)
    monkeypatch.setattr("assay.methods.preparation.measure_baseline", None)
    with pytest.raises(OptionError, match="layer"):
        assay.path_patching(sorter, pairs, "q[40]")
    with pytest.raises(OptionError, match="path-patching needs receivers"):
        assay.measure("path-patching", sorter, pairs)


def test_resampling_without_another_prompt_is_refused_before_the_model_runs(
    sorter: assay.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.methods.preparation.measure_baseline", None)
    with pytest.raises(DataError, match="no other reference prompt"):
        assay.resample_ablation(sorter, assay.tasks.sort(sorter, n=1))
    longer = [{"clean": "START 1 SEP", "corrupted": "START SEP", "answer": " 1", "wrong_answer": " 2"}]
    for method in (assay.resample_ablation, assay.mean_ablation):
        with pytest.raises(DataError, match="have 3 and 2 tokens"):
            method(sorter, assay.tasks.sort(sorter, n=2), reference=longer)


def test_a_mean_over_too_few_prompts_is_refused_before_the_model_runs(
    sorter: assay.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.methods.preparation.measure_baseline", None)
    with pytest.raises(DataError, match="at least 32 reference prompts of each length; there are 2 of"):
        assay.mean_ablation(sorter, assay.tasks.sort(sorter, n=2))
    few = assay.tasks.sort(sorter, n=31, seed=1)
    with pytest.raises(DataError, match="there are 31 of"):
        assay.mean_ablation(sorter, assay.tasks.sort(sorter, n=2), reference=few)


def test_a_plain_function_is_told_how_to_become_a_metric(sorter: assay.Model) -> None:
    pairs = assay.tasks.sort(sorter, n=1)
    with pytest.raises(OptionError, match=r"an assay\.Metric, not a function.*docs/metrics\.md"):
        assay.zero_ablation(sorter, pairs, metric=lambda logits, targets: logits.sum())


def test_advice_is_for_python_too(sorter: assay.Model) -> None:
    def first(logits, targets):
        return logits[..., 0].sum(-1)

    mine = assay.Metric("mine", "logits", "the first logit", "answer", "vocabulary", True, first)
    pair = {"clean": "START 1 2 SEP", "corrupted": "START 4 3 SEP", "answer": [" 1", " 2"]}
    with pytest.raises(DataError, match=r"mine takes no sets.*in Python: metric=.*takes_sets=True"):
        assay.zero_ablation(sorter, [pair], metric=mine)
    with pytest.raises(DataError, match=r"needs. Give one, or use --metric log-prob \(in Python: metric=\)"):
        assay.zero_ablation(sorter, [pair], metric="log-prob-diff")


@pytest.mark.parametrize("method", [method for method in METHODS if method != "path-patching"])
def test_unknown_keyword_arguments_are_refused_alike(method: str, sorter: assay.Model) -> None:
    function = getattr(assay, "random_scores" if method == "random" else method.replace("-", "_"))
    for call in (function, partial(assay.measure, method)):
        with pytest.raises(OptionError, match=f"^{method} takes no option 'site'. Did you mean 'sites'. Choose one of"):
            call(sorter, assay.tasks.sort(sorter, n=1), site="heads")
        with pytest.raises(OptionError, match=f"^{method} takes no option 'receivers'; it is one of path-patching"):
            call(sorter, assay.tasks.sort(sorter, n=1), receivers="logits")


def test_unknown_keyword_arguments_are_refused_by_all_public_functions(sorter: assay.Model) -> None:
    pairs = assay.tasks.sort(sorter, n=1)
    for call, complaint in (
        (lambda: assay.hvp(sorter, pairs, segments=3), "hvp takes no option 'segments'; it is one of ms-hvp"),
        (lambda: assay.ms_hvp(sorter, pairs, segment=3), "ms-hvp takes no option 'segment'. Did you mean 'segments'"),
        (lambda: assay.measure("ms-hvp", sorter, pairs, segments=3), "'segments' is an option of assay.ms_hvp"),
        (lambda: assay.path_patching(sorter, pairs, "logits", sits="mlps"), "path-patching takes .* mean 'sites'"),
        (lambda: assay.compare(sorter, pairs, "hvp", segments=3), "compare takes no option 'segments'. Choose one of"),
        (lambda: assay.screen(sorter, pairs, levle=0.9), "screen takes no option 'levle'. Did you mean 'level'"),
        (lambda: assay.response_curve(sorter, pairs, "L0H0", point=3), "response_curve .* Did you mean 'points'"),
    ):
        with pytest.raises(OptionError, match=complaint):
            call()


@pytest.mark.parametrize("command", ["score", "screen", "circuit", "compare", "response", "self-repair", "explain"])
def test_a_negative_seed_is_refused_by_every_command(run: Run, command: str) -> None:
    named = ["L0 MLP"] if command == "response" else ["START 7 3 SEP"] if command == "explain" else []
    task = [] if command == "explain" else ["--task", "sort"]
    ended = run(command, "sequence-sort", *named, *task, "--seed", "-1")
    assert ended.code == 2, ended.out
    assert "'--seed': Input should be greater than or equal to 0" in ended.err
    assert not Path("runs").exists()


def test_a_seed_that_is_none_is_refused_in_python() -> None:
    model = wrapped("llama")
    pairs = random_pairs()
    calls = {
        "measure": lambda seed: assay.measure("random", model, pairs, seed=seed, force=True),
        "screen": lambda seed: assay.screen(model, pairs, seed=seed, force=True),
        "self_repair": lambda seed: assay.self_repair(model, pairs, seed=seed, force=True),
        "compensation": lambda seed: assay.compensation(model, pairs, seed=seed, force=True),
        "make_pairs": lambda seed: make_pairs(assay.load("sequence-sort"), "sort", seed=seed),
        "find_circuit": lambda seed: find_circuit(model, pairs, random_pairs(), seed=seed),
        "second_order": lambda seed: second_order(seed=seed),
    }
    for call in calls.values():
        for seed in (-1, "x", 0.5):
            with pytest.raises(OptionError, match="The seed must be a whole number from 0 on"):
                call(seed)
