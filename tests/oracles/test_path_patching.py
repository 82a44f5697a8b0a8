"""Path patching against its definition by plain hooks: freeze everything, see what receivers get, set it, run on."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch

import assay
from assay.errors import OptionError
from conftest import ids_of, random_pairs, wrapped
from families import attention_inputs
from oracles import naive
from oracles.test_exact_effects import logit_difference

PHRASES = ["logits", "q[2]", "k[1],v[1]", "mlps[1],mlps[2]", "q[2],mlps[1],logits", "q[1],k[2]"]


def receivers_of(model: assay.Model, phrase: str) -> tuple[list[naive.Place], bool]:
    places: list[naive.Place] = []
    for term in phrase.split(","):
        if term != "logits":
            kind, layer = term[:-3], int(term[-2])
            units = {"q": range(model.n_heads), "k": range(model.n_kv_heads), "v": range(model.n_kv_heads)}
            places += [(kind, layer, unit) for unit in units.get(kind, [None])]
    return places, "logits" in phrase


def naive_path(
    model: assay.Model, family: str, base: list[int], source: list[int], sender, phrase: str
) -> torch.Tensor:
    hf = model.hf
    receivers, to_logits = receivers_of(model, phrase)
    frozen = {place: naive.activation(hf, family, base, place) for place in naive.places(hf)}
    frozen[sender] = naive.activation(hf, family, source, sender)
    final = model.family.final_norm

    def run_frozen(see: naive.Place | None) -> torch.Tensor:
        """One run with every head and MLP held; what ``see`` computes, or the last residual stream."""
        kept: list[torch.Tensor] = []
        with ExitStack() as hooks:
            for place, value in frozen.items():
                if place == see:
                    continue
                hooks.enter_context(naive.hooked(hf, family, place, lambda _, value=value: value.unsqueeze(0)))
            if see is None:
                norm = hf.get_submodule(final)
                handle = norm.register_forward_pre_hook(lambda _, args: kept.append(args[0][0].clone()))
                hooks.callback(handle.remove)
            else:
                hooks.enter_context(naive.hooked(hf, family, see, lambda value: kept.append(value[0].clone())))
            naive.logits_of(hf, base)
        return kept[0]

    seen = {place: run_frozen(place) for place in receivers if place != sender}
    moved = run_frozen(None)
    frozen[sender] = naive.activation(hf, family, base, sender)
    unmoved = run_frozen(None)
    with ExitStack() as hooks:
        by_layer: dict[int, list] = {}
        for (kind, layer, unit), value in seen.items():
            if kind == "mlps":
                set_mlp = naive.hooked(hf, family, (kind, layer, unit), lambda _, value=value: value.unsqueeze(0))
                if not (sender[0] == "mlps" and sender[1] == layer):
                    hooks.enter_context(set_mlp)
            else:
                by_layer.setdefault(layer, []).append((kind, unit, value))
        for layer, sets in by_layer.items():

            def change(q, k, v, sets=sets):
                inputs = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
                for kind, unit, value in sets:
                    inputs[kind][:, unit] = value
                return inputs["q"], inputs["k"], inputs["v"]

            hooks.enter_context(attention_inputs(hf, layer, change))
        if to_logits:
            handle = hf.get_submodule(final).register_forward_pre_hook(lambda _, args: (args[0] + moved - unmoved,))
            hooks.callback(handle.remove)
        return naive.logits_of(hf, base)


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "gpt-neox", "granite", "qwen2", "cohere"])
def test_paths_equal_naive_hooks(family: str, phrase: str) -> None:
    model, pairs = wrapped(family), random_pairs(1)
    (pair,) = pairs
    for direction in ("denoise", "noise"):
        scores = assay.path_patching(model, pairs, phrase, direction=direction, force=True)
        clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
        base, source = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
        before = logit_difference(naive.logits_of(model.hf, base), pair)
        expected = []
        for sender in naive.places(model.hf):
            if sender[:2] in [place[:2] for place in receivers_of(model, phrase)[0]]:
                # An MLP that is sender and receiver at once receives nothing from itself.
                assert sender[0] == "mlps"
            expected.append(logit_difference(naive_path(model, family, base, source, sender, phrase), pair) - before)
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(scores.values[:, 0], expected, rtol=0, atol=1e-9)


def test_senders_and_receivers_are_checked() -> None:
    model, pairs = wrapped("llama"), random_pairs(1)
    for phrase in ("heads", "q@last", "nothing", ""):
        with pytest.raises(OptionError):
            assay.path_patching(model, pairs, phrase, force=True)
    with pytest.raises(OptionError, match="is defined for heads, attention, mlps"):
        assay.path_patching(model, pairs, "logits", sites="residual-pre", force=True)
    with pytest.raises(OptionError, match="needs receivers"):
        assay.measure("path-patching", model, pairs, force=True)


def test_where_there_is_no_path_there_is_no_effect() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    with pytest.raises(OptionError, match="no path"):
        assay.path_patching(model, pairs, "q[1]", sites="heads[2]", force=True)
    scores = assay.path_patching(model, pairs, "q[1]", force=True)
    for component, values in zip(scores.components, scores.values, strict=True):
        assert (values == 0).all() == (component.layer >= 1)
