"""Quantised weights, with the real libraries: interventions run and say so, gradients are refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, TorchAoConfig

import assay
from assay.errors import ModelError
from assay.report import write_page
from assay.report.words import quantised
from conftest import ids_of, random_pairs, wrapped
from families import TINY, tiny_model, tiny_tokenizer
from oracles import naive
from oracles.test_exact_effects import logit_difference

FAMILIES = ("llama", "gemma2", "phi3", "opt")


def with_torchao(family: str) -> PreTrainedModel:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    hf = tiny_model(family, torch.float32)
    quantization.quantize_(hf, quantization.Int8WeightOnlyConfig())
    return hf


def with_quanto(family: str) -> PreTrainedModel:
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
    hf = tiny_model(family, torch.float32)
    quanto.quantize(hf, weights=quanto.qint4, exclude=["lm_head"])
    quanto.freeze(hf)
    return hf.eval()  # its own modules come in training mode


LIBRARIES = {"torchao": (with_torchao, r"\d+ x Int8Tensor \(int8\)"), "quanto": (with_quanto, r"\d+ x Weight\w+ \(")}
library = pytest.mark.parametrize(("quantise", "kind"), LIBRARIES.values(), ids=LIBRARIES)


@library
@pytest.mark.parametrize("family", FAMILIES)
def test_effects_are_those_of_the_quantised_model(
    family: str, quantise: Callable[[str], PreTrainedModel], kind: str
) -> None:
    """Against the hook loop over the same quantised model; the weights that it came from give other effects."""
    model, pairs = assay.load(quantise(family), tiny_tokenizer()), random_pairs(3)
    scores = assay.activation_patching(model, pairs, force=True)
    for place, found in zip(naive.places(model.hf), scores.values, strict=True):
        for pair, effect in zip(pairs, found, strict=True):
            clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
            new = naive.activation(model.hf, family, clean, place)
            patched = naive.patched_logits(model.hf, family, corrupted, place, new)
            base = naive.logits_of(model.hf, corrupted)
            assert effect == pytest.approx(logit_difference(patched, pair) - logit_difference(base, pair), abs=2e-4)
    original = assay.activation_patching(wrapped(family, torch.float32), pairs, force=True)
    assert np.abs(scores.values - original.values).max() > 2e-3, "nothing was quantised"
    assert original.provenance["model"]["quantisation"] is original.configuration["model"]["quantisation"] is None
    assert quantised(original) is None


@library
def test_methods_run_or_refuse_by_name(quantise: Callable[[str], PreTrainedModel], kind: str, tmp_path: Path) -> None:
    model, pairs = assay.load(quantise("llama"), tiny_tokenizer()), random_pairs(3)
    for name in ("attribution-patching", "two-point"):
        with pytest.raises(ModelError, match=rf"{name} takes gradients, and weights of .*{kind}.*full-precision"):
            assay.measure(name, model, pairs, force=True)
    reference = random_pairs(40, seed=1, lengths=(6, 7, 9))
    for name, options in {
        "activation-patching": {"direction": "noise"},
        "zero-ablation": {},
        "mean-ablation": {"reference": reference, "mean": "all-positions"},
        "resample-ablation": {"reference": reference},
        "random": {},
    }.items():
        assert np.isfinite(assay.measure(name, model, pairs, force=True, **options).values).all()
    receivers = assay.sites.queries(model).layers(2)
    assay.path_patching(model, pairs, receivers, sites=assay.sites.heads(model).layers(0), force=True)
    scores = assay.activation_patching(model, pairs, force=True)
    write_page(scores, tmp_path / "report.html")
    assert "effects are those of the quantised model" in (tmp_path / "report.html").read_text("utf-8")
    how = scores.provenance["model"]["quantisation"]
    assert how == scores.configuration["model"]["quantisation"] == model.quantisation
    assert f"quantised weights ({how})" in repr(model)


@library
def test_direct_effects_equal_those_of_the_same_weights_dequantised(
    quantise: Callable[[str], PreTrainedModel], kind: str
) -> None:
    """A quantised unembedding is refused; any other linear map is still one."""
    model, pairs = assay.load(quantise("llama"), tiny_tokenizer()), random_pairs(3)
    plain = tiny_model("llama", torch.float32)
    with torch.no_grad():
        for name, module in model.hf.named_modules():
            if isinstance(module, nn.Linear):
                plain.get_submodule(name).weight.copy_(module.weight.dequantize())
    if model.hf.lm_head.weight.data.__class__ is not torch.Tensor:
        with pytest.raises(ModelError, match=r"direct-effect reads the unembedding's weights.*exclude=.lm_head."):
            assay.direct_effect(model, pairs, force=True)
        model.hf.lm_head = plain.lm_head
    for method in (assay.direct_effect, assay.activation_patching):
        found = method(model, pairs, force=True).values
        expected = method(assay.load(plain, tiny_tokenizer()), pairs, force=True).values
        assert np.abs(expected).max() > 0.05
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


def test_a_quantised_unembedding_is_refused_by_direct_effect_alone() -> None:
    """optimum-quanto quantises it unless told otherwise, and leaves its modules in training mode."""
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
    pairs = random_pairs(3)
    for exclude in (None, "lm_head"):
        hf = tiny_model("llama", torch.float32)
        quanto.quantize(hf, weights=quanto.qint8, exclude=exclude)
        quanto.freeze(hf)
        with pytest.raises(ModelError, match=r"training mode.*eval\(\)"):
            assay.activation_patching(assay.load(hf, tiny_tokenizer()), pairs, force=True)
        model = assay.load(hf.eval(), tiny_tokenizer())
        assert np.isfinite(assay.activation_patching(model, pairs, force=True).values).all()
        if exclude is None:
            with pytest.raises(ModelError, match=r"direct-effect reads the unembedding's weights.*exclude=.lm_head."):
                assay.direct_effect(model, pairs, force=True)
        else:
            assert np.isfinite(assay.direct_effect(model, pairs, force=True).values).all()
        with pytest.raises(ModelError, match="attribution-patching takes gradients"):
            assay.attribution_patching(model, pairs, force=True)


def test_a_quantised_checkpoint_loads_from_its_folder(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    tiny_model("llama", torch.float32).save_pretrained(tmp_path / "whole")
    config = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    hf = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", quantization_config=config, dtype=torch.float32)
    hf.save_pretrained(tmp_path / "int8")
    tiny_tokenizer().save_pretrained(tmp_path / "int8")
    model = assay.load(tmp_path / "int8")
    assert model.quantisation.startswith("torchao: ")
    assert "Int8Tensor" in model.quantisation
    pairs = random_pairs(3)
    scores = assay.activation_patching(model, pairs, force=True)
    again = assay.activation_patching(assay.load(hf.eval(), tiny_tokenizer()), pairs, force=True)
    assert (scores.values == again.values).all()
    assert scores.configuration["model"]["weights_sha256"] == again.configuration["model"]["weights_sha256"]
    assert json.loads(json.dumps(scores.provenance))["model"]["quantisation"] == model.quantisation


@library
def test_the_hash_sees_the_numbers_inside(quantise: Callable[[str], PreTrainedModel], kind: str) -> None:
    model = assay.load(quantise("llama"), tiny_tokenizer())
    before = model.weight_hash
    assert before == assay.load(quantise("llama"), tiny_tokenizer()).weight_hash
    weight = model.hf.model.layers[1].self_attn.q_proj.weight
    names, _ = weight.__tensor_flatten__()
    with torch.no_grad():
        next(getattr(weight, name) for name in names if "scale" in name).mul_(2)
    assert model.weight_hash != before


def test_activations_rounded_by_the_batch_are_refused() -> None:
    """torch's own dynamic quantisation takes one scale from all rows, so a prompt's logits depend on its neighbours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = tiny_model("llama", torch.float32)
        hf = torch.ao.quantization.quantize_dynamic(whole, {nn.Linear}, dtype=torch.qint8).eval()
        with pytest.raises(ModelError, match=r"unembedding is quantised .*torch\.ao\.nn\.quantized\.dynamic"):
            assay.load(hf, tiny_tokenizer())
        hf.lm_head = whole.lm_head
        with pytest.raises(ModelError, match="fails the check"):
            assay.load(hf, tiny_tokenizer())


@pytest.mark.parametrize("family", TINY)
def test_no_family_is_taken_for_quantised(family: str) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        assert wrapped(family, dtype).quantisation is None


@library
def test_a_screening_of_quantised_weights_patches_everything(
    quantise: Callable[[str], PreTrainedModel], kind: str
) -> None:
    model, pairs = assay.load(quantise("llama"), tiny_tokenizer()), random_pairs(3)
    found = assay.screen(model, pairs, sites="heads[2]", force=True)
    assert found.certified
    assert "quantised" in found.notes[0]
    assert (found.values == assay.activation_patching(model, pairs, sites="heads[2]", force=True).values).all()
