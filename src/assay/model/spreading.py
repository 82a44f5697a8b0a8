"""Where weights are to lie: on one device, spread over several, or in main memory or files until they are called."""

from __future__ import annotations

import atexit
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import torch
from accelerate import cpu_offload
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from assay.errors import OptionError, instead_of
from assay.model.families import family_of

SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
"""Accelerate's ways to fill several devices."""
IN_MEMORY, ON_DISK = "cpu", "disk"


@dataclass(frozen=True)
class Place:
    """Plain data, so that another process can put the model in the same place."""

    device: str
    device_map: str | None = None
    """A word, or JSON."""
    max_memory: str | None = None
    """JSON."""

    @classmethod
    def of(
        cls,
        device: str | torch.device,
        device_map: str | Mapping[str, Any] | None = None,
        max_memory: str | Mapping[Any, Any] | None = None,
    ) -> Place:
        """
        Args:
            device_map: a word, a file of JSON, or names of modules and their devices.
            max_memory: such as ``0=20GiB,cpu=60GiB``, or that as a mapping.

        Raises:
            OptionError: no such device, word or file; or a limit without a map.
        """
        try:
            device = str(torch.device(device))
        except RuntimeError as error:
            raise OptionError(f"There is no device {device!r}: {str(error).splitlines()[0]}") from error
        words = (*SPREAD, IN_MEMORY, ON_DISK)
        if isinstance(device_map, str) and device_map not in words:
            device_map = _read(device_map, words)
        if max_memory is not None and device_map not in SPREAD:
            raise OptionError(f"Limits of memory need a device map that heeds them: {', '.join(SPREAD)}.")
        if isinstance(max_memory, str):
            max_memory = _limits(max_memory)
        if isinstance(device_map, Mapping):
            device_map = json.dumps(dict(device_map))
        return cls(device, device_map, None if max_memory is None else json.dumps(list(max_memory.items())))

    def options(self, config: PretrainedConfig) -> dict[str, Any]:
        """What `from_pretrained` is told."""
        if self.device_map is None or self.device_map == IN_MEMORY:
            return {}
        where: Any = self.device_map
        if where == ON_DISK:
            where = _all_but_layers(config, self.device)
        elif where not in SPREAD:
            where = json.loads(where)
        limits = {} if self.max_memory is None else {"max_memory": dict(json.loads(self.max_memory))}
        folder = mkdtemp(prefix="assay-offload-")  # for weights that lie in no file of their own
        atexit.register(rmtree, folder, ignore_errors=True)
        return {"device_map": where, "offload_folder": folder, **limits}

    def put(self, hf: PreTrainedModel) -> Any:
        """A model that was loaded without a map."""
        return cpu_offload(hf, torch.device(self.device)) if self.device_map == IN_MEMORY else hf.to(self.device)


def _all_but_layers(config: PretrainedConfig, device: str) -> dict[str, str]:
    """Layers stay in their files; all that is outside of them is on the device."""
    with torch.device("meta"):
        module: torch.nn.Module = AutoModelForCausalLM.from_config(config)
    found: dict[str, str] = {}
    prefix = ""
    for step in family_of(config).layers.split("."):
        found |= {prefix + name: device for name, _ in module.named_children() if name != step}
        module, prefix = module.get_submodule(step), f"{prefix}{step}."
    return {**found, prefix.removesuffix("."): ON_DISK}


def _read(path: str, words: tuple[str, ...]) -> dict[str, Any]:
    if not path.endswith(".json"):
        raise OptionError(f"There is no device map {path!r}. {instead_of(path, words)} Or give a .json file.")
    try:
        found = json.loads(Path(path).expanduser().read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"The device map {path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found:
        raise OptionError(f"The device map {path} must be an object of module names and their devices.")
    return found


def _limits(text: str) -> dict[int | str, str]:
    found: dict[int | str, str] = {}
    for part in text.split(","):
        device, equals, size = part.strip().partition("=")
        if not (device and equals and size):
            raise OptionError(f"--max-memory takes devices and sizes such as 0=20GiB,cpu=60GiB, not {text!r}.")
        found[int(device) if device.isascii() and device.isdigit() else device] = size
    return found
