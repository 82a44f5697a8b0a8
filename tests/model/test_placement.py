"""Models spread over devices, or whose weights come when they are called, give the numbers of the plain ones."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import cpu_offload, disk_offload
from typer.testing import CliRunner

import assay
from assay.cli.app import app
from assay.errors import ModelError, OptionError
from assay.methods import METHODS
from assay.methods.method import Method
from assay.methods.registry import method_named
from assay.model.recording import record
from conftest import random_pairs, wrapped
from fake_devices import FIRST, SECOND, MixedDevicesError, OnDevice, spread
from families import TINY, tiny_model, tiny_tokenizer

EXPERTS = ("mixtral", "gpt-oss")
DISTINCT = ("llama", "gemma3", "gpt2", "gpt-neox", "mixtral", "gpt-oss")
PAIRS = random_pairs(3)
REFERENCE = random_pairs(30, seed=11)
FAIL_BY_THEMSELVES = ("llama4",)
"""Offloaded, transformers' own forward pass fails: it makes tensors where the weights seem to be."""
SITES = {"local-curvature": "neurons-pre"}
SETTINGS = {"mean-ablation": {"mean": "all-positions"}, "resample-ablation": {"reference": REFERENCE}}


def measured(name: str, model: assay.Model, sites: str = "heads,mlps") -> np.ndarray:
    options = SETTINGS.get(name, {})
    return assay.measure(name, model, PAIRS, sites=SITES.get(name, sites), force=True, **options).values


def works_on_several_devices(method: Method) -> bool:
    return not method.takes_model_apart


def families_and_methods() -> list[tuple[str, str]]:
    """Every method on two families, the main ones on all that differ."""
    main = ("activation-patching", "attribution-patching", "hvp", "gim")
    all_of_them = "ASSAY_EVERY_COMBINATION" in os.environ
    return [
        (family, name)
        for name, method in METHODS.items()
        for family in DISTINCT
        if works_on_several_devices(method) and (all_of_them or family in ("llama", "gpt2") or name in main)
    ]


def test_tensors_of_two_devices_cannot_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    with spread(tiny_model("llama", torch.float32), 1, monkeypatch):
        one, other = (OnDevice(torch.ones(2), device) for device in (FIRST, SECOND))
        assert (one + one).device == FIRST
        assert (one.to(SECOND) + other).tolist() == [2.0, 2.0]
        for mixed in (
            lambda: one + other,
            lambda: torch.cat([one, other]),
            lambda: one @ other,
            lambda: one + torch.ones(2),
        ):
            with pytest.raises(MixedDevicesError):
                mixed()


@pytest.mark.parametrize(("family", "method"), families_and_methods())
def test_two_devices_give_the_numbers_of_one(family: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method in SITES and family in EXPERTS:
        pytest.skip("experts have no neurons of their own here")
    expected = measured(method, wrapped(family))
    with spread(tiny_model(family), 2, monkeypatch) as hf:
        model = assay.load(hf, tiny_tokenizer())
        assert model.devices == [FIRST, SECOND]
        np.testing.assert_allclose(
            measured(method, model), expected, rtol=0, atol=1e-12 * max(1, np.abs(expected).max())
        )


@pytest.mark.parametrize("method", ["activation-patching", "attribution-patching", "atp-star", "hvp"])
def test_every_kind_of_site_follows_its_layer(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = "heads,mlps,q,k,v,attention,neurons,neurons-pre"
    if method != "atp-star":
        sites += ",residual-pre,residual-mid,residual-post,embeddings"
    expected = measured(method, wrapped("llama"), sites)
    with spread(tiny_model("llama"), 1, monkeypatch) as hf:
        found = measured(method, assay.load(hf, tiny_tokenizer()), sites)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_pairs_are_ablated_over_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"sites": "heads[0:2]", "ablation": "zero", "metric": "log-prob", "force": True}
    expected = assay.measure_interactions(wrapped("llama"), PAIRS, **options)
    with spread(tiny_model("llama"), 1, monkeypatch) as hf:
        found = assay.measure_interactions(assay.load(hf, tiny_tokenizer()), PAIRS, **options)
    np.testing.assert_allclose(found.joint, expected.joint, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not works_on_several_devices(method)])
def test_what_needs_one_device_says_so(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with spread(tiny_model("llama"), 1, monkeypatch) as hf:
        model = assay.load(hf, tiny_tokenizer())
        chosen = method_named(method, **({"receivers": "logits"} if method == "path-patching" else {}))
        with pytest.raises(ModelError, match=r"needs the model on one device.*lazy:0, lazy:1"):
            assay.methods.method.measure(chosen, model, PAIRS, sites="heads", force=True)
        with pytest.raises(ModelError, match="needs the model on one device"):
            assay.explain(model, PAIRS[0].clean)


@pytest.mark.parametrize(
    ("family", "where"),
    [(family, "memory") for family in TINY if family not in FAIL_BY_THEMSELVES]
    + [("gemma3", "disk"), ("gpt2", "disk")],
)
def test_offloaded_weights_give_the_same_numbers(family: str, where: str, tmp_path: Path) -> None:
    plain = wrapped(family)
    hf = tiny_model(family)
    hf = cpu_offload(hf, "cpu") if where == "memory" else disk_offload(hf, tmp_path, "cpu")
    assert all(parameter.is_meta for parameter in hf.parameters())
    model = assay.load(hf, tiny_tokenizer())
    assert model.is_offloaded
    assert not model.has_foreign_hooks
    assert model.device == torch.device("cpu")
    assert model.weight_hash == plain.weight_hash
    for method in ("activation-patching", "zero-ablation", "attribution-patching", "direct-effect"):
        np.testing.assert_array_equal(measured(method, model), measured(method, plain))
    assert all(parameter.is_meta for parameter in hf.parameters()), "weights stayed behind"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_works_on_offloaded_weights(method: str) -> None:
    model = assay.load(cpu_offload(tiny_model("gemma3"), "cpu"), tiny_tokenizer())
    if method == "path-patching":
        expected, found = (
            assay.path_patching(m, PAIRS, receivers="logits", sites="heads", force=True).values
            for m in (wrapped("gemma3"), model)
        )
    else:
        expected, found = measured(method, wrapped("gemma3")), measured(method, model)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_changed_offloaded_weight_changes_the_hash() -> None:
    hf = cpu_offload(tiny_model("llama"), "cpu")
    model = assay.load(hf, tiny_tokenizer())
    before = model.weight_hash
    hf.model.layers[1].self_attn.o_proj._hf_hook.weights_map["weight"].mul_(2)
    assert model.weight_hash != before


def test_a_forward_method_under_accelerates_is_still_seen() -> None:
    hf = tiny_model("llama")
    own = hf.model.layers[0].mlp.down_proj
    forward = own.forward
    own.forward = lambda x: forward(x) * 2
    assert assay.load(cpu_offload(hf, "cpu"), tiny_tokenizer(), check=False).has_foreign_hooks


def test_gradient_magnitude_needs_the_weights_themselves() -> None:
    model = assay.load(cpu_offload(tiny_model("llama"), "cpu"), tiny_tokenizer())
    with pytest.raises(ModelError, match="needs all weights in place"):
        assay.audit_gradients(model, PAIRS, ablation="zero", metric="log-prob", force=True)


@pytest.mark.parametrize("device_map", ["cpu", "disk", "auto"])
def test_a_folder_is_loaded_where_it_is_asked_for(device_map: str, tmp_path: Path) -> None:
    tiny_model("llama", torch.float32).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    plain, model = assay.load(tmp_path), assay.load(tmp_path, device_map=device_map)
    assert model.is_offloaded == (device_map != "auto")
    assert model.weight_hash == plain.weight_hash
    np.testing.assert_array_equal(measured("activation-patching", model), measured("activation-patching", plain))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device_map": "everywhere"}, "There is no device map 'everywhere'"),
        ({"device_map": "nowhere.json"}, "cannot be read"),
        ({"max_memory": "0=2GiB"}, "need a device map that heeds them"),
        ({"device_map": "auto", "max_memory": "2GiB"}, "devices and sizes such as"),
        ({"device": "nothing"}, "There is no device 'nothing'"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        assay.load("sequence-sort", **options)


def test_the_run_folder_says_where_the_weights_were(tmp_path: Path) -> None:
    command = ["score", "sequence-sort", "--task", "sort", "--n", "2", "--method", "attribution-patching"]
    found = CliRunner().invoke(app, [*command, "--device-map", "disk", "--out", str(tmp_path / "run")])
    assert found.exit_code == 0, found.output
    provenance = json.loads((tmp_path / "run" / "run.json").read_text())["provenance"]
    assert provenance["offloaded"] is True
    assert "disk" in provenance["device_map"].values()


def test_the_real_model_from_disk_gives_the_plain_numbers(smollm2: assay.Model, tmp_path: Path) -> None:
    pairs = assay.tasks.ioi(smollm2, n=2)
    expected = assay.activation_patching(smollm2, pairs, sites="heads[14:16],mlps[14:16]")
    for offload in (lambda hf: cpu_offload(hf, "cpu"), lambda hf: disk_offload(hf, tmp_path, "cpu")):
        model = assay.load(offload(copy.deepcopy(smollm2.hf)), smollm2.tokenizer)
        found = assay.activation_patching(model, pairs, sites="heads[14:16],mlps[14:16]")
        np.testing.assert_array_equal(found.values, expected.values)


@pytest.mark.parametrize("family", DISTINCT)
@pytest.mark.parametrize("method", ["attribution-patching", "gim", "hvp-sampled", "atp-star"])
def test_layers_that_are_computed_again_give_the_same_bits(family: str, method: str) -> None:
    model = wrapped(family)
    kept = assay.measure(method, model, PAIRS, sites="heads,mlps", force=True)
    model.checkpointing = True
    again = assay.measure(method, model, PAIRS, sites="heads,mlps", force=True)
    np.testing.assert_array_equal(again.values, kept.values)
    assert again.cost["layer_tokens_forward"] > kept.cost["layer_tokens_forward"]


def test_layers_that_are_computed_again_keep_little() -> None:
    model = wrapped("llama")
    ids = torch.arange(1, 31).view(3, 10)
    kept = {}
    for model.checkpointing in (False, True):
        sizes: list[int] = []

        def count(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            record(model, ids, gradients=True)
        kept[model.checkpointing] = sum(sizes)
    assert kept[True] < kept[False] / 5


def test_offloaded_weights_come_back_for_layers_that_are_computed_again() -> None:
    model = assay.load(cpu_offload(tiny_model("gemma3"), "cpu"), tiny_tokenizer(), checkpointing=True)
    plain = measured("attribution-patching", wrapped("gemma3"))
    np.testing.assert_array_equal(measured("attribution-patching", model), plain)
