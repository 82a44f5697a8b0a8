"""A model as other processes are told of it, on this machine or another: by name, and checked where it is loaded."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from assay.errors import ModelError, OptionError
from assay.methods.provenance import require_same_rounding, what_rounds
from assay.model import Model
from assay.model.attention import exclusive
from assay.model.checks import LIMITS, plain_logits


@dataclass(frozen=True)
class Elsewhere:
    """Loads, in another process, the model that this one has."""

    load: Callable[[], Model]
    identity: tuple[str, ...]
    ids: tuple[int, ...]
    """Of a prompt, ..."""
    logits: np.ndarray
    """... for which the model of this process gives this, run plainly: no hash sees all that a model computes with."""
    threads: int
    precision: str
    environment: dict[str, str]
    """Versions and processor, which decide how numbers are rounded."""
    host: str

    @classmethod
    def of(cls, model: Model, ids: Sequence[int]) -> Elsewhere:
        """
        Args:
            ids: tokens of any prompt.

        Raises:
            OptionError: the model cannot be loaded again there as it is here.
        """
        if model.load_again is None:
            raise OptionError(
                f"{model.name} was handed over in memory, so other processes cannot load it. Save it to a folder and "
                "load that, or leave jobs at 1."
            )
        if model.has_foreign_hooks:
            raise OptionError(
                f"Hooks or replaced forward methods sit on {model.name}; other processes would run it without them. "
                "Remove them, or leave jobs at 1."
            )
        threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
        return cls(
            model.load_again, identity_of(model), tuple(ids), _logits(model, ids), threads, precision, what_rounds(),
            socket.gethostname(),
        )  # fmt: skip

    def __call__(self) -> Model:
        """
        Raises:
            ModelError: it cannot be loaded, or is another model than there.
            WorkerError: versions or processor are not the same.
        """
        require_same_rounding(self.environment)
        torch.set_num_threads(self.threads)
        torch.set_float32_matmul_precision(self.precision)
        model = self._loaded()
        if identity_of(model) != self.identity:
            raise ModelError(
                f"{model.name} as a worker process loads it is not the model of this process: its weights, adapters or "
                "configuration were changed after loading, or its files since. Save the model and load it from there, "
                f"or leave jobs at 1.{self._of_another_host}"
            )
        model.require_ready()
        off = np.abs(_logits(model, self.ids) - self.logits).max()
        if not off <= LIMITS[model.dtype] * np.abs(self.logits).max():
            raise ModelError(
                f"{model.name} as a worker process loads it gives other logits than here (off by {off:.3g}): "
                "something besides its weights was changed after loading. Save the model and load it from there, or "
                f"leave jobs at 1.{self._of_another_host}"
            )
        return model

    def _loaded(self) -> Model:
        try:
            return self.load()
        except ModelError as error:
            if not (note := self._of_another_host):
                raise
            raise ModelError(f"{error}{note}") from error

    @property
    def _of_another_host(self) -> str:
        host = socket.gethostname()
        if host == self.host:
            return ""
        return f" This was on {host}: a model's files must lie at the same path on every machine that computes."


def identity_of(model: Model) -> tuple[str, ...]:
    """What two processes must agree on before their numbers are put together."""
    return model.weight_hash, model.configuration_hash, *model.adapters


def _logits(model: Model, ids: Sequence[int]) -> np.ndarray:
    tokens = torch.tensor([list(ids)], device=model.device)
    with exclusive(model.hf):
        logits: np.ndarray = plain_logits(model, tokens, keep=1).double().cpu().numpy()
    return logits
