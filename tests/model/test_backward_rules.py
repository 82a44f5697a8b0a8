"""Every rule on every family, and what ``with backward_rules`` leaves behind."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import assay
from assay import RuleSet, backward_rules, rule_set
from assay.circuits import edge_scores
from assay.errors import ModelError, OptionError
from assay.model.backward import PRESETS, PRODUCTS
from conftest import random_pairs, wrapped
from families import TINY, tiny_model

SINGLE = {
    "temperature": RuleSet(temperature=2),
    "freeze-norms": RuleSet(freeze_norms=True),
    "freeze-qk-norms": RuleSet(freeze_qk_norms=True),
    **{product: RuleSet(divide=(product,)) for product in PRODUCTS},
    "value-path-only": RuleSet(value_path_only=True),
    "identity": RuleSet(activation="identity"),
}
UNGATED = {"gpt2", "gpt-neox", "gpt-neox-sequential", "opt", "phi", "starcoder2", "nemotron"}
WITH_QK_NORMS = {"qwen3", "qwen3-moe", "gemma3", "phi", "olmo2", "olmo3", "cohere", "stablelm", "llama4"}
IDS = torch.tensor([[1, 5, 9, 2, 30, 7]])


def pass_through(hf: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of one of them at the token embeddings."""
    embeddings = hf.get_input_embeddings()(IDS).detach().requires_grad_(True)
    logits = hf(inputs_embeds=embeddings, use_cache=False).logits
    (gradient,) = torch.autograd.grad(logits[0, -1, 3] - logits[0, -1, 4], embeddings)
    return logits.detach(), gradient


def state(hf: PreTrainedModel) -> tuple:
    """All that a run may have touched."""
    hooks = {
        name: (list(module._forward_hooks), list(module._forward_pre_hooks), vars(module).get("forward"))
        for name, module in hf.named_modules()
    }
    grads = [parameter.requires_grad for parameter in hf.parameters()]
    return hooks, grads, hf.config._attn_implementation, hf.config._experts_implementation


@pytest.mark.parametrize("family", TINY)
def test_each_rule_changes_the_gradient_where_it_applies_and_no_value(family: str) -> None:
    hf = tiny_model(family)
    before = state(hf)
    with backward_rules(hf, "plain"):
        logits, plain = pass_through(hf)
    for name, rules in {**SINGLE, **{name: preset.rules for name, preset in PRESETS.items()}}.items():
        with backward_rules(hf, rules):
            same, gradient = pass_through(hf)
        assert torch.equal(logits, same), name
        change = ((gradient - plain).norm() / plain.norm()).item()
        if name == "plain" or (name == "gate-up" and family in UNGATED) or (
            name == "freeze-qk-norms" and family not in WITH_QK_NORMS
        ):  # fmt: skip
            assert change == 0, name
        else:
            assert change > 0.05, name
        assert state(hf) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "gpt-oss", "mixtral"])
def test_values_stay_in_every_precision(family: str, dtype: torch.dtype) -> None:
    hf = tiny_model(family, dtype)
    with backward_rules(hf, "plain"):
        logits, _ = pass_through(hf)
    for preset in ("gim", "attn-lrp", "transformer-lrp"):
        with backward_rules(hf, preset):
            same, gradient = pass_through(hf)
        assert torch.equal(logits, same)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_an_inner_rule_set_takes_the_place_of_the_outer_one_until_it_ends(family: str) -> None:
    hf = tiny_model(family)
    alone = {}
    for name in ("plain", "gim", "attn-lrp"):
        with backward_rules(hf, name):
            alone[name] = pass_through(hf)[1]
    before = state(hf)
    with backward_rules(hf, "gim"):
        assert torch.equal(pass_through(hf)[1], alone["gim"])
        for inner in ("attn-lrp", "plain", "gim"):
            with backward_rules(hf, inner) as rules:
                assert rules == rule_set(inner)
                assert torch.equal(pass_through(hf)[1], alone[inner])
            assert torch.equal(pass_through(hf)[1], alone["gim"])
    assert state(hf) == before


@pytest.mark.parametrize("family", TINY)
def test_presets_nest_on_every_family(family: str) -> None:
    """Norms are looked at as they are, not with the outer rules on them."""
    hf, alone = tiny_model(family), {}
    before = state(hf)
    for name in ("gim", "transformer-lrp", "attn-lrp"):
        with backward_rules(hf, name):
            alone[name] = pass_through(hf)[1]
    for outer in alone:
        with backward_rules(hf, outer):
            for inner in alone:
                with backward_rules(hf, inner):
                    assert torch.equal(pass_through(hf)[1], alone[inner]), (outer, inner)
            assert torch.equal(pass_through(hf)[1], alone[outer]), outer
    assert state(hf) == before


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_each_preset_inside_each_other(family: str) -> None:
    hf, alone = tiny_model(family), {}
    for name in PRESETS:
        with backward_rules(hf, name):
            alone[name] = pass_through(hf)[1]
    for outer in PRESETS:
        with backward_rules(hf, outer):
            for inner in PRESETS:
                with backward_rules(hf, inner):
                    assert torch.equal(pass_through(hf)[1], alone[inner]), (outer, inner)


def test_blocks_may_be_left_in_any_order() -> None:
    """What holds is the last block entered of those that are open; after the last, nothing is left on the model."""
    hf = tiny_model("gpt2")
    hf.set_attn_implementation("eager")
    names, alone = ("gim", "attn-lrp", "gim", "plain"), {}
    for name in names:
        with backward_rules(hf, name):
            alone[name] = pass_through(hf)[1]
    before, plain = state(hf), pass_through(hf)[1]
    for order in permutations(range(len(names))):
        blocks = [backward_rules(hf, name) for name in names]
        for block in blocks:
            block.__enter__()
        left = list(range(len(names)))
        for number in order:
            assert hf.config._attn_implementation == "assay"
            blocks[number].__exit__(None, None, None)
            left.remove(number)
            if left:
                assert torch.equal(pass_through(hf)[1], alone[names[left[-1]]]), (order, number)
        assert state(hf) == before
    assert torch.equal(pass_through(hf)[1], plain)


def test_rules_that_cannot_be_put_on_leave_the_outer_ones() -> None:
    hf = tiny_model("llama")
    hf.model.layers[1].mlp.act_fn = Shifted().eval()
    with backward_rules(hf, "gim"):
        expected = pass_through(hf)[1]
        with pytest.raises(ModelError, match="is 1 at 0"), backward_rules(hf, "attn-lrp"):
            pass
        assert torch.equal(pass_through(hf)[1], expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps, lambda hf: torch.save(hf, io.BytesIO())])
def test_no_copy_keeps_the_rules_or_runs_the_originals_norms(copied: Callable[[PreTrainedModel], object]) -> None:
    hf = tiny_model("llama")
    for rules in ("gim", "attn-lrp", "gim-without-norm"):
        with backward_rules(hf, rules), pytest.raises(ModelError, match="cannot be copied or pickled while"):
            copied(hf)
        copied(hf)
    with backward_rules(hf, RuleSet(temperature=2)):  # these stand beside the model, not on it
        other = copy.deepcopy(hf)
    torch.testing.assert_close(pass_through(other)[1], pass_through(hf)[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt-oss"])
def test_a_second_derivative_is_refused(family: str) -> None:
    """Through the constants that rules put in, it would be a number that means nothing."""
    hf = tiny_model(family)

    def second(rules: RuleSet | str) -> Tensor:
        with backward_rules(hf, rules):
            embeddings = hf.get_input_embeddings()(IDS).detach().requires_grad_(True)
            logits = hf(inputs_embeds=embeddings, use_cache=False).logits
            (gradient,) = torch.autograd.grad(logits[0, -1, 3], embeddings, create_graph=True)
            return torch.autograd.grad(gradient.sum(), embeddings)[0]

    assert second("plain").isfinite().all()
    applies = {name: rules for name, rules in SINGLE.items() if name != "freeze-qk-norms"}
    applies = {name: rules for name, rules in applies.items() if name != "gate-up" or family not in UNGATED}
    for rules in (*applies.values(), "gim", "transformer-lrp", "attn-lrp"):
        with pytest.raises(ModelError, match="cannot be differentiated again"):
            second(rules)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
def test_a_temperature_leaves_rows_that_are_masked_whole_finite(temperature: float) -> None:
    hf = tiny_model("llama", torch.float32)
    embeddings = hf.get_input_embeddings()(IDS).detach().requires_grad_(True)
    with backward_rules(hf, RuleSet(temperature=temperature)):
        logits = hf(inputs_embeds=embeddings, attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1]])).logits
    (gradient,) = torch.autograd.grad(logits[0, -1, 3], embeddings)
    assert gradient.isfinite().all()
    assert gradient[0, 2:].abs().min() > 0


def test_everything_is_put_back_after_an_exception() -> None:
    hf = tiny_model("gemma3")
    hf.set_attn_implementation("sdpa")
    before = state(hf)
    for inner in ("attn-lrp", "plain"):
        with pytest.raises(RuntimeError, match="mine"), backward_rules(hf, "gim"), backward_rules(hf, inner):
            raise RuntimeError("mine")
        assert state(hf) == before

    def broken(*_: object) -> None:
        raise RuntimeError("mine")

    handle = hf.model.layers[1].mlp.register_forward_hook(broken)
    with pytest.raises(RuntimeError, match="mine"), backward_rules(hf, "gim"):
        pass_through(hf)
    handle.remove()
    assert state(hf) == before
    expected = pass_through(hf)[1]
    with backward_rules(hf, "gim"):
        pass
    assert torch.equal(pass_through(hf)[1], expected)


def test_the_graph_carries_the_rules_out_of_the_block() -> None:
    hf = tiny_model("llama")
    embeddings = hf.get_input_embeddings()(IDS).detach().requires_grad_(True)
    with backward_rules(hf, "gim"):
        logits = hf(inputs_embeds=embeddings, use_cache=False).logits
        _, expected = pass_through(hf)
    (found,) = torch.autograd.grad(logits[0, -1, 3] - logits[0, -1, 4], embeddings)
    assert torch.equal(found, expected)


def test_hooks_and_forward_methods_of_the_user_stay_and_see_what_they_saw() -> None:
    """Before, inside and after; a hook that changes a norm's output has the last word."""
    model, seen = wrapped("llama"), []
    hf = model.hf
    layer = hf.model.layers[1]
    norm, down = layer.input_layernorm, layer.mlp.down_proj
    own = norm.forward
    norm.forward = lambda x: own(x) * 1.5
    norm.register_forward_hook(lambda _, __, output: output + 1)
    before = down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with backward_rules(model, "plain"):
        logits, _ = pass_through(hf)
    with backward_rules(model, "gim"):
        inside = down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        same, _ = pass_through(hf)
        before.remove()
    assert torch.equal(logits, same)
    assert len(seen) == 3
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert list(down._forward_pre_hooks.values()) != []
    assert norm.forward(torch.ones(1, 32, dtype=torch.float64)).shape == (1, 32)
    inside.remove()
    assert not down._forward_pre_hooks


def test_a_product_that_is_watched_has_its_whole_gradient_and_its_factors_half() -> None:
    """The neurons of a gated MLP are the product; gate and up are its factors."""
    hf = tiny_model("llama")
    kept: dict[str, Tensor] = {}
    mlp = hf.model.layers[-1].mlp
    mlp.down_proj.register_forward_pre_hook(lambda _, args: kept.__setitem__("product", args[0]))
    mlp.gate_proj.register_forward_hook(lambda _, __, output: kept.__setitem__("gate", output))
    mlp.up_proj.register_forward_hook(lambda _, __, output: kept.__setitem__("up", output))
    found = {}
    for rules in ("plain", RuleSet(divide=("gate-up",))):
        with backward_rules(hf, rules):
            logits = hf(input_ids=IDS, use_cache=False).logits
            found[str(rules)] = torch.autograd.grad(
                logits[0, -1, 3], [kept[name] for name in ("product", "gate", "up")]
            )
    plain, divided = found.values()
    for factor, one, other in zip((1, 2, 2), plain, divided, strict=True):
        torch.testing.assert_close(one, other * factor, rtol=1e-12, atol=1e-14)


def test_the_rules_do_not_count_as_somebodys_hooks() -> None:
    model = wrapped("llama")
    with backward_rules(model, "attn-lrp"):
        assert not model.has_foreign_hooks
        handle = model.layers[0].mlp.register_forward_hook(lambda *_: None)
        assert model.has_foreign_hooks
        handle.remove()
    norm = model.layers[0].module.input_layernorm
    own = norm.forward
    norm.forward = lambda x: own(x)
    with backward_rules(model, "gim"):
        assert model.has_foreign_hooks


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_function_of_assay_refuses_a_block_of_other_rules(family: str) -> None:
    """Neither would the block be heeded, nor could the numbers say that it was not."""
    model, pairs = wrapped(family), random_pairs()
    expected = {rules: assay.attribution_patching(model, pairs, rules=rules, force=True) for rules in ("plain", "gim")}
    calls = {
        "attribution-patching": lambda: assay.attribution_patching(model, pairs, force=True),
        "gim": lambda: assay.gim(model, pairs, force=True),
        "hvp": lambda: assay.measure("hvp", model, pairs, sites="mlps", force=True),
        "activation-patching": lambda: assay.screen(model, pairs, sites="mlps", top=2, force=True),
        "eap": lambda: edge_scores(model, pairs, "eap", force=True),
        "self-repair": lambda: assay.self_repair(model, pairs, force=True),
        "gradient-x-input": lambda: assay.explain(model, "w1 w2", " w3", method="gradient-x-input", baseline="w4"),
    }
    before = state(model.hf)
    with backward_rules(model, "attn-lrp"):
        inside = state(model.hf)
        for name, call in calls.items():
            with pytest.raises(OptionError, match=rf"^{name} is called inside .*'attn-lrp'"):
                call()
            assert state(model.hf) == inside
        with pytest.raises(OptionError, match="rules of its own"):
            assay.response_curve(model, pairs, "L1 MLP", points=2, segments=1)
        for rules, scores in expected.items():
            with backward_rules(model, rules):
                again = assay.attribution_patching(model, pairs, rules=rules, force=True)
            assert (again.values == scores.values).all()
            assert again.configuration == scores.configuration
            with pytest.raises(OptionError, match="Call it outside that block"):
                assay.attribution_patching(model, pairs, rules=rules, force=True)
        assay.attribution_patching(wrapped(family), pairs, force=True)
    assert state(model.hf) == before
    again = assay.attribution_patching(model, pairs, force=True)
    assert (again.values == expected["plain"].values).all()


def test_another_thread_waits() -> None:
    hf = tiny_model("gpt2")
    order = []

    def other() -> None:
        with backward_rules(hf, "plain"):
            order.append("other")

    with backward_rules(hf, "gim"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.3)
        order.append("this")
    thread.join()
    assert order == ["this", "other"]


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class BentNorm(nn.Module):
    """Has one factor, but is no norm."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * torch.rsqrt(x.square().mean(-1, keepdim=True))


class SlowNorm(nn.Module):
    """Makes its factor in a way that is not known."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()


class Shifted(nn.SiLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


Shifted.__module__ = nn.SiLU.__module__


@pytest.mark.parametrize(
    ("place", "module", "rules", "message"),
    [
        ("mlp", nn.Sequential(Doubling(), nn.Linear(32, 32)), "gim", r"model\.layers\.1\.mlp\.0 .* is a Doubling"),
        ("input_layernorm", BentNorm(), "gim", r"model\.layers\.1\.input_layernorm, a BentNorm, is not a norm"),
        ("input_layernorm", SlowNorm(), "gim", r"model\.layers\.1\.input_layernorm made 0 factors"),
        ("mlp.act_fn", Shifted(), "attn-lrp", r"model\.layers\.1\.mlp\.act_fn is 1 at 0"),
    ],
)
def test_what_cannot_be_handled_is_refused_by_name(place: str, module: nn.Module, rules: str, message: str) -> None:
    hf = tiny_model("llama")
    parent = hf.model.layers[1].get_submodule(place.rpartition(".")[0])
    setattr(parent, place.rpartition(".")[2], module.eval().double())
    before = state(hf)
    with pytest.raises(ModelError, match=message), backward_rules(hf, rules):
        pass
    assert state(hf) == before
    with backward_rules(hf, "plain"):
        pass_through(hf)


def test_other_things_that_are_refused() -> None:
    hf = tiny_model("llama")
    with pytest.raises(OptionError, match=r"Did you mean 'gim'\? Choose one of plain, gim, gim-without"):
        rule_set("gmi")
    with pytest.raises(OptionError, match="There are no backward rules"), backward_rules(hf, "lrp"):
        pass
    for wrong in (["gim"], {"gim": 1}, None, 3):
        with pytest.raises(
            OptionError, match=r"Backward rules are a name or a RuleSet, not .* Choose one of plain, gim"
        ):
            rule_set(wrong)
    with pytest.raises(ModelError, match="go on a model"), backward_rules("smollm2-135m", "gim"):
        pass
    with pytest.raises(ModelError, match="training mode"), backward_rules(tiny_model("llama").train(), "gim"):
        pass
    for wrong in ({"temperature": 0}, {"temperature": float("nan")}, {"divide": ("q-k",)}, {"activation": "none"}):
        with pytest.raises(OptionError):
            RuleSet(**wrong)


def test_names_of_rule_sets() -> None:
    for name, preset in PRESETS.items():
        assert str(preset.rules) == name
        assert rule_set(name) == preset.rules == rule_set(preset.rules)
    gim = rule_set("gim")
    assert replace(gim, divide=list(reversed(PRODUCTS))) == gim
    assert str(replace(gim, temperature=3)) == "temperature=3+freeze-norms+divide=pattern-value/query-key/gate-up"
    assert len({str(rules) for rules in SINGLE.values()}) == len(SINGLE)
