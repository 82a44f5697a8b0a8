"""From whatever a user has in hand to a checked `Model`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from assay.errors import ModelError, OptionError, instead_of
from assay.model.catalogue import CATALOGUE
from assay.model.checks import require_sound
from assay.model.families import family_of
from assay.model.model import Model
from assay.model.quiet import quiet_transformers
from assay.model.spreading import Place
from assay.model.wheels import cache_folder, dequantise, dequantised_folder, dequantised_path, sha256_of

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    source: str | Path | PreTrainedModel | Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    device_map: str | Mapping[str, Any] | None = None,
    max_memory: Mapping[Any, Any] | None = None,
    checkpointing: bool = False,
    revision: str | None = None,
    check: bool = True,
) -> Model:
    """Load a causal language model and check that assay sees it as it is.

    Args:
        source: a short name (``assay list models``), a local Hugging Face folder, a GGUF file, a hub id,
            or a ``PreTrainedModel`` already in memory (used as it is: dtype, device, device_map and revision do not
            apply), which may be wrapped by PEFT and spread or offloaded by accelerate.
        tokenizer: needed with a ``PreTrainedModel`` whose prompts are text.
        dtype: of the weights: float32 (default, whatever the checkpoint holds), float64, bfloat16 or float16. Of a
            quantised checkpoint: of what is not quantised.
        device: a torch device.
        device_map: ``auto``, ``balanced`` or ``sequential``: accelerate spreads the layers over all devices;
            ``cpu`` or ``disk``: weights stay in main memory or in their files, and each part comes to ``device`` when
            it is called; or names of modules and their devices, as transformers takes them.
        max_memory: of each device, such as ``{0: "20GiB", "cpu": "60GiB"}``; for ``device_map``.
        checkpointing: backward passes over whole prompts compute the inside of each layer again instead of keeping
            it: the same bits, a third less speed, a fraction of the memory.
        revision: of a hub id: branch, tag or commit.
        check: run the checks of `assay.model.checks` that ``assay doctor`` prints.

    Raises:
        ModelError: unknown source, unsupported architecture, or a failed check.
        OptionError: an unknown dtype or device, or a device map that cannot be laid out.
    """
    if hasattr(source, "get_base_model") and hasattr(source, "peft_config"):
        if any(config.is_prompt_learning for config in source.peft_config.values()):
            raise ModelError(
                "Prompt-learning adapters (prefix or prompt tuning) lie outside the model; merge or drop them."
            )
        source = source.get_base_model()  # other adapters stay in it, inside its linear maps
    if isinstance(source, PreTrainedModel):
        name = str(getattr(source.config, "_name_or_path", "") or type(source).__name__)
        model = Model(source, tokenizer, name=name, origin={"kind": "in memory"})
    else:
        where = Place.of(device, device_map, max_memory)
        model = _load_from(str(source), tokenizer, _dtype(dtype), where, revision)
        model.load_again = LoadAgain(
            str(source), _dtype(dtype), where, model.origin.get("commit", revision), tokenizer, checkpointing
        )
    model.checkpointing = checkpointing
    if check:
        require_sound(model)
    return model


@dataclass(frozen=True)
class LoadAgain:
    """Loads a model in another process as it was loaded in this one, once there however often it is called.

    Unchecked: what calls it makes sure that weights and configuration are those of a model that was checked.
    """

    source: str
    dtype: torch.dtype
    where: Place
    revision: str | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    checkpointing: bool = False

    def __call__(self) -> Model:
        return _loaded_once(self)

    def warm_up(self) -> None:
        """Do all that is slow now, unless that would fetch or convert files, which one process does."""
        torch.set_num_threads(1)
        if is_at_hand(self.source):
            _ = self().weight_hash


@lru_cache(maxsize=1)
def _loaded_once(again: LoadAgain) -> Model:
    model = _load_from(again.source, again.tokenizer, again.dtype, again.where, again.revision)
    model.load_again, model.checkpointing = again, again.checkpointing
    return model


def is_at_hand(source: str) -> bool:
    """Whether a model can be read from the disk as it is."""
    entry = CATALOGUE.get(source)
    folder = (entry.folder or dequantised_path(entry)) if entry is not None else Path(source).expanduser()
    return (folder / "config.json").is_file()


def fingerprint(source: str, revision: str | None = None) -> dict[str, str]:
    """What identifies a source before anything is loaded: content hashes where the content is at hand."""
    if source in CATALOGUE and not CATALOGUE[source].folder:
        return {"model": source, "sha256": CATALOGUE[source].gguf_sha256}
    folder = CATALOGUE[source].folder if source in CATALOGUE else None
    path = folder or Path(source).expanduser()
    if path.is_file():
        return {"model": source, "sha256": sha256_of(path)}
    if path.is_dir():
        files = sorted(
            file for file in path.iterdir() if file.suffix in {".safetensors", ".json", ".bin", ".model", ".txt"}
        )
        return {"model": source, **{file.name: sha256_of(file) for file in files}}
    return {"model": source, "revision": revision or "main"}


def _load_from(
    source: str,
    tokenizer: PreTrainedTokenizerBase | None,
    dtype: torch.dtype,
    where: Place,
    revision: str | None,
) -> Model:
    entry = CATALOGUE.get(source)
    if entry is not None:
        folder = entry.folder or dequantised_folder(entry)
        return _load_folder(
            folder, source, {"kind": "short name", "description": entry.description}, tokenizer, dtype, where
        )
    path = Path(source).expanduser()
    if path.suffix == ".gguf" or path.is_file():
        return _load_gguf(path, source, tokenizer, dtype, where)
    if path.is_dir():
        return _load_folder(path, source, {"kind": "folder", "path": str(path)}, tokenizer, dtype, where)
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") != 1:
        raise ModelError(
            f"There is no model {source!r}: no such folder or file, and not a short name. "
            f"{instead_of(source, CATALOGUE)} A hub id has the form owner/name."
        )
    origin = {"kind": "hub", "revision": revision or "main"}
    return _load_folder(source, source, origin, tokenizer, dtype, where, revision)


def _load_gguf(
    path: Path, name: str, tokenizer: PreTrainedTokenizerBase | None, dtype: torch.dtype, where: Place
) -> Model:
    if not path.is_file():
        raise ModelError(f"There is no file {path}.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file. Give a folder, a GGUF file, a hub id or a short name.")
    digest = sha256_of(path)
    folder = cache_folder() / "models" / f"gguf-{digest[:16]}"
    if not (folder / "config.json").is_file():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".gguf-") as scratch:
                dequantise(path.resolve(), Path(scratch) / "converted")
                (Path(scratch) / "converted").rename(folder)
        except OSError as error:
            raise ModelError(f"Cannot keep the dequantised {path.name} in {folder.parent}: {error}") from error
    return _load_folder(folder, name, {"kind": "gguf", "path": str(path), "sha256": digest}, tokenizer, dtype, where)


def _load_folder(
    location: str | Path,
    name: str,
    origin: dict[str, str],
    tokenizer: PreTrainedTokenizerBase | None,
    dtype: torch.dtype,
    where: Place,
    revision: str | None = None,
) -> Model:
    options: dict[str, Any] = {"trust_remote_code": False}
    if isinstance(location, Path):
        options["local_files_only"] = True
        if not (location / "config.json").is_file():
            if (location / "adapter_config.json").is_file():
                raise ModelError(_adapter_alone(location))
            raise ModelError(f"{location} has no config.json, so it is not a Hugging Face model folder.")
    elif revision:
        options["revision"] = revision
    with quiet_transformers():
        config = _attempt(lambda: AutoConfig.from_pretrained(location, **options), name, "configuration")
        family_of(config)  # refuse by name before anything large is read
        if getattr(config, "quantization_config", None) is not None:
            options["device_map"] = where.device  # many quantised models cannot be moved once they are loaded
        options |= where.options(config)
        hf, report = _attempt(
            lambda: AutoModelForCausalLM.from_pretrained(location, dtype=dtype, output_loading_info=True, **options),
            name,
            "weights",
        )
        if tokenizer is None:
            tokenizer = _attempt(lambda: AutoTokenizer.from_pretrained(location, **options), name, "tokenizer")
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise ModelError(
            f"The checkpoint of {name} lacks {len(missing)} weights, for example {missing[0]!r}. They would be random."
        )
    commit = getattr(hf.config, "_commit_hash", None)
    if commit:
        origin = {**origin, "commit": commit}
    try:
        hf = hf if "device_map" in options else where.put(hf)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"Cannot put {name} on device {where.device!r}: {error}") from error
    return Model(hf.eval(), tokenizer, name=name, origin=origin)


def _adapter_alone(folder: Path) -> str:
    try:
        base = json.loads((folder / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base = None
    model = repr(base) if isinstance(base, str) else "BASE"
    return (
        f"{folder} is an adapter of PEFT{f' for {model}' if isinstance(base, str) else ''}, not a whole model. In "
        "Python, load it into its model and hand that over:\n"
        f"  hf = AutoModelForCausalLM.from_pretrained({model})\n"
        f"  model = assay.load(PeftModel.from_pretrained(hf, {str(folder)!r}).eval(), "
        f"AutoTokenizer.from_pretrained({model}))\n"
        "For the command line, save the merged model and its tokenizer to a folder of their own: "
        "PeftModel.from_pretrained(...).merge_and_unload().save_pretrained(FOLDER)."
    )


def _attempt(load_part: Any, name: str, part: str) -> Any:
    try:
        return load_part()
    except Exception as error:  # the readers of many formats and architectures raise whatever they like
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"The {part} of {name!r} cannot be loaded: {reason[:300]}") from error


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise OptionError(f"There is no dtype {dtype!r}. {instead_of(dtype, DTYPES)}")
    return DTYPES[dtype]
