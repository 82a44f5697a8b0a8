"""A kept run answers only for what it was computed with."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import assay
from assay.data.metrics import Metric, Targets
from assay.errors import ModelError, OptionError, StoreError
from assay.methods import METHODS
from assay.methods.method import Method
from assay.methods.ms_hvp import method_with
from assay.methods.own_code import own_code
from assay.methods.registry import method_named
from assay.store import unfinished
from conftest import random_pairs, wrapped

PAIRS = random_pairs(3)
FACTOR = 1.0


def score(model: assay.Model, folder: Path, **options: object) -> assay.Scores:
    return assay.activation_patching(model, PAIRS, sites="heads[0]", force=True, run_folder=folder, **options)


def a_metric(function: Callable[[Tensor, Targets], Tensor]) -> Metric:
    return Metric("mine", "logits", "mine", "answer", "vocabulary", True, function)


def scaled_by(factor: float) -> Metric:
    return a_metric(lambda logits, targets: factor * logits[:, 0, 0])


def test_weights_changed_behind_their_version_are_seen(tmp_path: Path) -> None:
    model = wrapped("llama")
    score(model, tmp_path / "run")
    weight = model.hf.lm_head.weight
    weight.data[[0, 1]] = weight.data[[1, 0]]
    with pytest.raises(StoreError, match="content of the weights"):
        score(model, tmp_path / "run")


def test_a_changed_configuration_is_seen(tmp_path: Path) -> None:
    model = wrapped("llama")
    score(model, tmp_path / "run")
    model.hf.config.rms_norm_eps = 0.1
    with pytest.raises(StoreError, match="content of the model configuration"):
        score(model, tmp_path / "run")


def test_hooks_are_refused_with_a_finished_folder_too(tmp_path: Path) -> None:
    model = wrapped("llama")
    score(model, tmp_path / "run")
    model.hf.lm_head.register_forward_hook(lambda _, __, output: output * 2)
    with pytest.raises(ModelError, match="Hooks"):
        score(model, tmp_path / "run")


def test_own_metrics_that_differ_in_what_they_hold_are_told_apart(tmp_path: Path) -> None:
    model = wrapped("llama")
    kept = score(model, tmp_path / "run", metric=scaled_by(1.0))
    assert (score(model, tmp_path / "run", metric=scaled_by(1.0)).values == kept.values).all()
    with pytest.raises(StoreError, match="code of the metric and the method"):
        score(model, tmp_path / "run", metric=scaled_by(2.0))


def reads_a_global(logits: Tensor, targets: Targets) -> Tensor:
    return FACTOR * logits[:, 0, 0]


def test_own_code_knows_values_and_not_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def closing_over(value: object) -> Callable[[], object]:
        return lambda: value

    def inner(factor: float) -> Callable[[], float]:
        return partial(lambda x, y: x * y, factor, y=2.0)

    for one, other in (
        (closing_over(1), closing_over(2)),
        (closing_over(torch.tensor([1.0])), closing_over(torch.tensor([2.0]))),
        (closing_over({"a": [1]}), closing_over({"a": [2]})),
        (closing_over(closing_over(1)), closing_over(closing_over(2))),
        (inner(1.0), inner(2.0)),
        (lambda x=1: x, lambda x=2: x),
        (lambda: 1, lambda: 2),
    ):
        assert own_code(one) != own_code(other)
        assert own_code(one) == own_code(one)
    assert own_code(closing_over([1, "a"])) == own_code(closing_over([1, "a"]))
    before = own_code(reads_a_global)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert own_code(reads_a_global) != before
    assert own_code(METHODS["hvp"].compute) is None
    with pytest.raises(OptionError, match="generator"):
        own_code(closing_over(x for x in "a"))


def twice(response: object, setting: object) -> Tensor:
    return 2 * METHODS["activation-patching"].compute(response, setting)


@pytest.mark.parametrize(
    "method",
    [
        *METHODS.values(),
        method_with(segments=3),
        method_named("integrated-gradients", gap=True),
        replace(method_with(segments=3), compute=twice),
        replace(METHODS["activation-patching"], name="twice", compute=twice),
    ],
    ids=lambda method: method.name,
)
def test_a_method_sent_to_another_process_is_itself(method: Method) -> None:
    if method.name == "ms-hvp" and method.compute is twice:
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
            pickle.dumps(method)  # its other functions are closures
        return
    again = pickle.loads(pickle.dumps(method))
    assert (again.name, again.parameters) == (method.name, method.parameters)
    if method.compute is twice:
        assert again.compute is twice


def test_killed_while_the_plan_was_written(tmp_path: Path) -> None:
    model = wrapped("llama")
    child = os.fork()
    if child == 0:
        unfinished.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
        score(model, tmp_path / "run")
        os._exit(1)
    os.waitpid(child, 0)
    assert [path.name for path in (tmp_path / "run").glob(".plan*")] == [".plan.json"]
    whole = score(model, tmp_path / "run")
    assert not list((tmp_path / "run").glob(".plan*"))
    assert (whole.values == score(model, tmp_path / "other").values).all()
