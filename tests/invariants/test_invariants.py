"""What must hold for every family and every method."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

import assay
from assay.data import PromptPairs
from assay.engine import batches
from assay.engine.replay import ReplayTap
from assay.errors import DataError, InterventionError, ModelError
from assay.methods import METHODS
from assay.methods.method import Method, measure
from assay.methods.registry import method_named
from assay.model.checks import probe_ids
from assay.model.recording import record
from conftest import random_pairs, words, wrapped
from families import TINY

every_family = pytest.mark.parametrize("family", TINY)
every_method = pytest.mark.parametrize("method", METHODS)
# One of each kind: plain, sliding windows with post-norms, experts, parallel, learned positions, sinks, own positions.
DISTINCT = ("llama", "gemma2", "mixtral", "gpt-neox", "gpt2", "gpt-oss", "llama4")


def combinations(heavy: Callable[[Method], bool]) -> pytest.MarkDecorator:
    """Every family with every method; a heavy method with distinct families only, unless all are asked for."""
    all_of_them = "ASSAY_EVERY_COMBINATION" in os.environ
    return pytest.mark.parametrize(
        ("family", "method"),
        [
            (family, name)
            for name, method in METHODS.items()
            for family in (DISTINCT if heavy(method) and not all_of_them else TINY)
        ],
    )


def takes_many_gradients(method: Method) -> bool:
    return method.uses_gradients and method.name not in ("attribution-patching", "direct-effect")


REFERENCE = random_pairs(30, seed=11)
# Cheap parameters: what must hold does not depend on them.
PARAMETERS = {
    "path-patching": {"receivers": "q[1],v[2],mlps[1],logits"},
    "ms-hvp": {"segments": 2},
    "hvp-sampled": {"probes": 2},
    "integrated-gradients": {"steps": 2},
    "integrated-hessians": {"steps": 1},
}


def run(method: str, model: assay.Model, pairs: PromptPairs, **options: object) -> assay.Scores:
    options = {"force": True, **options}
    if METHODS[method].uses_means:
        options["mean"] = "all-positions"
    if METHODS[method].uses_reference:
        options.setdefault("reference", REFERENCE)
    if METHODS[method].kinds == ("neurons-pre",):
        if any(layer.neuron_input is None for layer in model.layers):
            pytest.skip("experts have no neurons of their own here")
        options["sites"] = "neurons-pre[1]"
    return measure(method_named(method, **PARAMETERS.get(method, {})), model, pairs, **options)


def identical(pairs: PromptPairs) -> PromptPairs:
    return PromptPairs(tuple(type(p)(p.clean, p.clean, p.answer, p.wrong_answer) for p in pairs), metric="logit-diff")


@every_family
@pytest.mark.parametrize("method", ["activation-patching", "attribution-patching"])
def test_identical_prompts_have_no_effect(family: str, method: str) -> None:
    model = wrapped(family)
    pairs = identical(random_pairs())
    assert (run(method, model, pairs).values == 0).all()
    np.testing.assert_allclose(run(method, model, pairs, skip=False).values, 0, atol=1e-11)


@combinations(takes_many_gradients)
def test_batching_and_order_change_rounding_only(family: str, method: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        model, pairs = wrapped(family, dtype), random_pairs(6)
        whole = run(method, model, pairs)
        scale = max(1.0, np.abs(whole.values).max(), np.abs(whole.baseline.clean).max())
        small = run(method, model, pairs, memory="16M")
        np.testing.assert_allclose(small.values, whole.values, rtol=0, atol=tolerance * scale)
        if METHODS[method].has_unit:
            turned = run(method, model, PromptPairs(tuple(reversed(pairs.pairs)), metric="logit-diff"))
            np.testing.assert_allclose(turned.values[:, ::-1], whole.values, rtol=0, atol=tolerance * scale)
        heads = run(method, model, pairs, sites="heads")
        n_heads = len(heads.components)  # for a method of neurons alone, the same again
        if METHODS[method].has_unit:
            np.testing.assert_allclose(heads.values, whole.values[:n_heads], rtol=0, atol=tolerance * scale)


@every_family
@pytest.mark.parametrize("size", [1, 3])
def test_rows_run_at_once_change_rounding_only(family: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = wrapped(family), random_pairs(7, lengths=(7,))
    whole = [run(method, model, pairs).values for method in ("activation-patching", "attribution-patching")]
    monkeypatch.setattr(batches, "recording_bytes", lambda *_: (2 << 30) // size)
    seen: list[int] = []
    normal = batches._batch
    monkeypatch.setattr(
        batches, "_batch", lambda model, rows, *rest: seen.append(len(rows)) or normal(model, rows, *rest)
    )
    small = [run(method, model, pairs).values for method in ("activation-patching", "attribution-patching")]
    assert max(seen) == min(size, max(seen))
    for expected, found in zip(whole, small, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


@every_family
@pytest.mark.parametrize("padding", [0, 1, 3, 8])
def test_padding_on_the_right_changes_nothing(family: str, padding: int) -> None:
    """assay never pads; recordings take a mask all the same, for whoever does."""
    model = wrapped(family)
    ids = probe_ids(model)
    padded = torch.cat([ids, ids.new_zeros(len(ids), padding)], dim=1)
    mask = torch.ones_like(padded)
    mask[:, ids.shape[1] :] = 0
    alone, beside = record(model, ids), record(model, padded, mask)
    for layer in range(model.n_layers):
        for site in ("residual-post", "heads", "mlps"):
            here, there = alone.site(site, layer), beside.site(site, layer)[:, : ids.shape[1]]
            torch.testing.assert_close(there, here, rtol=0, atol=1e-11)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_tokenizer_that_pads_changes_nothing(side: str) -> None:
    model, pairs = wrapped("gpt2"), random_pairs()
    expected = run("activation-patching", model, pairs).values
    model.tokenizer.add_special_tokens({"pad_token": "<pad>"})
    model.tokenizer.padding_side = side
    assert (run("activation-patching", model, pairs).values == expected).all()


@every_family
@pytest.mark.parametrize("site", ["heads", "residual-pre", "q", "v", "embeddings"])
def test_patching_a_run_with_itself_changes_nothing(family: str, site: str) -> None:
    model, pairs = wrapped(family), identical(random_pairs(3))
    assert (run("activation-patching", model, pairs, sites=site).values == 0).all()
    everything = run("activation-patching", model, pairs, sites=site, skip=False)
    assert everything.cost["interventions"] > 0
    np.testing.assert_allclose(everything.values, 0, atol=1e-11)


def test_small_memory_really_makes_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.engine import response

    monkeypatch.setattr(response, "lane_bytes", lambda *_: 16 << 20)
    model, pairs = wrapped("llama"), random_pairs()
    one_at_a_time = run("activation-patching", model, pairs, memory="16M")
    monkeypatch.undo()
    together = run("activation-patching", model, pairs)
    np.testing.assert_allclose(one_at_a_time.values, together.values, rtol=0, atol=1e-11)


@every_method
def test_same_run_twice_gives_the_same_bits(method: str) -> None:
    model, pairs = wrapped("gemma2", torch.float32), random_pairs()
    first = run(method, model, pairs)
    run("activation-patching", model, random_pairs(3, seed=9))
    assert (run(method, model, pairs).values == first.values).all()


@every_family
def test_swapping_the_prompts_turns_denoise_into_noise(family: str) -> None:
    model, pairs = wrapped(family), random_pairs()
    denoise = run("activation-patching", model, pairs, direction="denoise")
    noise = run("activation-patching", model, pairs.swapped(), direction="noise")
    # The swapped metric has the opposite sign, and so has importance over effect.
    np.testing.assert_allclose(noise.values, -denoise.values, rtol=0, atol=1e-11)
    np.testing.assert_allclose(noise.importance, denoise.importance, rtol=0, atol=1e-11)


def hooks_of(model: assay.Model) -> list[int]:
    return [
        len(hooks)
        for module in model.hf.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    ]


def state_of(model: assay.Model) -> tuple:
    grads = [parameter.requires_grad for parameter in model.hf.parameters()]
    return hooks_of(model), model.hf.config._attn_implementation, grads, torch.is_grad_enabled()


class StopError(Exception):
    pass


@combinations(takes_many_gradients)
def test_the_model_is_left_as_it_was(family: str, method: str) -> None:
    model, pairs = wrapped(family), random_pairs(2)
    next(iter(model.hf.parameters())).requires_grad_(False)
    before = state_of(model)
    run(method, model, pairs)
    assert state_of(model) == before


@combinations(lambda _: True)
@pytest.mark.parametrize("ending", [StopError, KeyboardInterrupt])
def test_an_interrupted_run_leaves_the_model_as_it_was(
    family: str, method: str, ending: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise from inside a layer at every depth of the run until it gets through; not by a hook, which some refuse."""
    model, pairs = wrapped(family), random_pairs(2)
    next(iter(model.hf.parameters())).requires_grad_(False)
    before = state_of(model)
    kind, struck = type(model.layers[1].mlp), model.layers[1].mlp
    normal = kind.forward
    for calls in range(3, 60, 7):
        left = [calls]

        def strike(self: torch.nn.Module, *args: object, left: list[int] = left) -> object:
            left[0] -= self is struck
            if left[0] == 0:
                raise ending
            return normal(self, *args)

        monkeypatch.setattr(kind, "forward", strike)
        try:
            run(method, model, pairs)
        except ending:
            pass
        else:
            assert calls > 3, "nothing was struck"
            break
        finally:
            monkeypatch.setattr(kind, "forward", normal)
        assert state_of(model) == before


@every_family
def test_a_hook_of_the_user_survives_and_counts(family: str) -> None:
    """A steering hook on one position: exact effects are those of the steered model."""
    model, pairs = wrapped(family), random_pairs()
    plain = run("activation-patching", model, pairs)

    def steer(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        changed = output.clone()
        changed[:, 3:5] = changed[:, 3:5].flip(-1)
        return changed

    handle = model.layers[1].module.register_forward_hook(steer)
    steered = run("activation-patching", model, pairs)
    whole = run("activation-patching", model, pairs, skip=False)
    assert steer in model.layers[1].module._forward_hooks.values()
    handle.remove()
    np.testing.assert_allclose(steered.values, whole.values, rtol=0, atol=1e-11)
    assert np.abs(steered.values - plain.values).max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt-neox", "gemma3"])
def test_training_mode_is_refused_by_name(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(2)
    nested = next(
        (name for name, module in model.hf.named_modules() if isinstance(module, torch.nn.Dropout)),
        "model.layers.1.self_attn",
    )
    model.hf.get_submodule(nested).train()
    with pytest.raises(ModelError, match=nested.replace(".", r"\.")):
        run("activation-patching", model, pairs)
    with pytest.raises(ModelError, match="training mode"):
        assay.load(model.hf, model.tokenizer)


@pytest.mark.parametrize(("site", "hook"), [("heads", "head_outputs"), ("mlps", "mlp_contribution")])
def test_a_patch_that_does_not_fire_is_an_error(site: str, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the wire between patch and model: what is left must not pass for an effect of zero."""
    monkeypatch.setattr(ReplayTap, "_setter", lambda *_: lambda value: value)
    with pytest.raises(InterventionError, match="fired 0 times"):
        run("activation-patching", wrapped("llama"), random_pairs(2), sites=site)


def test_a_layer_that_is_left_out_is_an_error() -> None:
    model = wrapped("llama")
    model.layers[1].module.forward = lambda hidden, **_: hidden
    with pytest.raises(ModelError, match="expected 3"):
        run("activation-patching", model, random_pairs(2))


def test_a_model_that_changes_between_runs_is_an_error() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    drift = [0.0]

    def unstable(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        drift[0] += 0.05
        return output + drift[0]

    handle = model.layers[1].mlp.register_forward_hook(unstable)
    with pytest.raises(InterventionError):
        run("activation-patching", model, pairs)
    handle.remove()


def test_the_golden_sign() -> None:
    """A linear model in which one head carries the answer: more important than nothing, under every method."""
    from oracles.test_first_order import linear_model

    model = linear_model()
    hf = model.hf
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        # Token w1 writes on axis 0 and token w2 against it; head 0 of layer 0 copies axis 0 of the first and
        # only token to axis 4, which is what the answer w9 reads.
        hf.transformer.wte.weight[1, 0], hf.transformer.wte.weight[2, 0] = 1.0, -1.0
        attention = hf.transformer.h[0].attn
        attention.c_attn.weight[0, 32] = 1.0
        attention.c_proj.weight[0, 4] = 1.0
        hf.lm_head.weight = torch.nn.Parameter(torch.zeros_like(hf.lm_head.weight))
        hf.lm_head.weight[9, 4] = 1.0
    pairs = PromptPairs((assay.PromptPair(words([1]), words([2]), " w9", " w8"),), metric="logit-diff")
    # The reference of ablations: a token that writes nothing to that axis, or what the corrupted prompt has.
    nothing = PromptPairs((assay.PromptPair(words([1]), words([3]), " w9", " w8"),))
    for name, method in METHODS.items():
        if not method.has_unit or method.kinds == ("neurons-pre",):
            continue
        for direction in method.directions:
            options = {"reference": nothing} if name == "resample-ablation" else {}
            if name == "mean-ablation":
                options = {"reference": pairs}
            scores = run(name, model, pairs, direction=direction, **options)
            best = int(scores.importance.argmax())
            assert scores.components[best].name == "L0H0"
            expected = 1.0 if name in ("zero-ablation", "resample-ablation") else 2.0
            assert scores.importance[best] == pytest.approx(expected)
            assert np.abs(np.delete(scores.importance, best)).max() == 0


def test_nan_in_a_weight_is_refused() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    with torch.no_grad():
        model.layers[2].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(DataError, match="first value that is not finite is in mlps of layer 2"):
        run("activation-patching", model, pairs)
    with pytest.raises(ModelError, match="logit parity"):
        assay.load(model.hf, model.tokenizer)


def test_a_none_gradient_names_the_site() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    layer = model.layers[1]
    handle = layer.mlp.register_forward_hook(lambda _, __, output: output.detach() * 0 + 1)
    with pytest.raises(InterventionError, match="mlps of layer 1"):
        run("attribution-patching", model, pairs)
    handle.remove()
