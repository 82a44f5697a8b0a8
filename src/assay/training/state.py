"""What a training needs to go on as if it had never stopped: weights, moments, generator, step, log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from assay.errors import StoreError
from assay.store.files import SCRATCH, sync

STATE = "state.safetensors"
LOG = "log.jsonl"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_state(
    folder: Path, step: int, model: nn.Module, optimiser: torch.optim.AdamW, generator: torch.Generator
) -> None:
    """Write the state after a step; a process killed meanwhile leaves the state before."""
    tensors = {"generator": generator.get_state()}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for moment in MOMENTS if step else ():
            tensors[f"{moment}.{name}"] = optimiser.state[parameter][moment]
    scratch = folder / f"{SCRATCH}{STATE}"
    scratch.write_bytes(save(tensors, metadata={"step": str(step), "torch": torch.__version__}))
    sync(scratch)
    scratch.replace(folder / STATE)


def restore_state(
    folder: Path, model: nn.Module, optimiser: torch.optim.AdamW, generator: torch.Generator
) -> int | None:
    """Put back what `save_state` wrote; gives its step, None where nothing was written.

    Raises:
        StoreError: a damaged file, or one of another torch, whose next step might differ.
    """
    path = folder / STATE
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata()
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        step = int(about["step"])
        if about["torch"] != torch.__version__:
            raise StoreError(
                f"The training in {folder} was begun with torch {about['torch']}; with {torch.__version__} it would "
                "not end as it began. Remove that folder, or use that torch."
            )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
                if step:
                    # Cloned: where a file is mapped, tensors begin at addresses that may change the last bits.
                    optimiser.state[parameter] = {moment: tensors[f"{moment}.{name}"].clone() for moment in MOMENTS}
        generator.set_state(tensors["generator"])
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise StoreError(f"{path} is damaged: {error}. Remove {folder} to begin this seed again.") from error
    return step


def append_log(folder: Path, line: dict[str, Any]) -> None:
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a seed's log; a process that was killed may have left half a line."""
    path = folder / LOG
    if not path.exists():
        return []
    *whole, _ = path.read_text("utf-8").split("\n")
    try:
        return [json.loads(line) for line in whole]
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}. Remove {folder} to begin this seed again.") from error


def cut_log(folder: Path, step: int | None) -> None:
    """Take out what was logged after a step (all, if None), which will be logged again."""
    lines = [line for line in read_log(folder) if step is not None and line["step"] <= step]
    scratch = folder / f"{SCRATCH}{LOG}"
    scratch.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    scratch.replace(folder / LOG)
