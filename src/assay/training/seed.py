"""The training of one seed, in one thread, so that the same seed gives the same bytes."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from assay.errors import ModelError
from assay.store.files import SCRATCH
from assay.store.lock import FolderLock
from assay.training.checkpoints import FINAL, is_scheduled, write_checkpoint
from assay.training.examples import Examples, Lines, examples_of
from assay.training.sequence_model import build_model, build_tokenizer
from assay.training.setting import TrainingSetting
from assay.training.state import STATE, append_log, cut_log, restore_state, save_state


def train_seed(setting: TrainingSetting, seed: int, folder: Path, advance: Callable[[int], object]) -> None:
    """Train, or go on after the last evaluation that is kept in the folder.

    Args:
        advance: told of each evaluation, once its line is in the log.

    Raises:
        StoreError: another process trains here, or what is kept is damaged.
        ModelError: the loss is not a finite number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder / "lock")
    lock.acquire()
    try:
        _remove_scratch(folder)
        if not (folder / FINAL).is_dir():
            with one_thread():
                _Run(setting, seed, folder).train(advance)
        (folder / STATE).unlink(missing_ok=True)
    finally:
        lock.release()


class _Run:
    """A model under training."""

    def __init__(self, setting: TrainingSetting, seed: int, folder: Path) -> None:
        self.setting, self.seed, self.folder = setting, seed, folder
        self.examples: Examples = examples_of(setting)
        self.held_out = self.examples.held_out()
        vocabulary = self.examples.vocabulary
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model: PreTrainedModel = build_model(
                vocabulary, setting.positions, setting.layers, setting.heads, setting.width
            )
        self.tokenizer = build_tokenizer(vocabulary)
        self.generator = torch.Generator().manual_seed(seed)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=setting.learning_rate, weight_decay=setting.weight_decay, fused=True
        )
        self.losses: list[float] = []
        self.right: list[float] = []
        """Loss, and share of the lines answered exactly, of each batch since the last evaluation."""

    def train(self, advance: Callable[[int], object]) -> None:
        step = restore_state(self.folder, self.model, self.optimiser, self.generator)
        cut_log(self.folder, step)
        if step is None:
            step = 0
            self._evaluate(step)
            advance(1)
        ended = False
        while not ended:
            step += 1
            self._step(step)
            if step % self.setting.evaluate_every == 0 or is_scheduled(step) or step == self.setting.steps:
                ended = self._evaluate(step)
                advance(1)

    def _step(self, step: int) -> None:
        if self.setting.decay:
            share = (step - 1) / self.setting.steps
            for group in self.optimiser.param_groups:
                group["lr"] = self.setting.learning_rate * (1 + math.cos(math.pi * share)) / 2
        lines = self.examples.batch(self.setting.batch, self.generator)
        logits = answer_logits(self.model, lines)
        loss = cross_entropy(logits.flatten(0, 1), lines.tokens[:, lines.answer :].flatten())
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.losses.append(loss.item())
        self.right.append(_all_right(logits.detach(), lines).double().mean().item())

    def _evaluate(self, step: int) -> bool:
        """Measure, and keep all that is due, the state last of all; whether training has ended."""
        accuracy = torch.cat([exact_match(self.model, lines) for lines in self.held_out]).double().mean().item()
        loss, trained = _mean(self.losses), _mean(self.right)
        if loss is not None and not math.isfinite(loss):
            raise ModelError(f"The loss of seed {self.seed} is {loss} at step {step}. Use a smaller learning rate.")
        reached = accuracy >= self.setting.wanted
        final = step == self.setting.steps or (reached and not self.setting.long and step > 0)
        line: dict[str, Any] = {"step": step, "loss": loss, "trained": trained, "accuracy": accuracy}
        about = {**self.setting.to_dict(), "seed": self.seed, **line, "reached": reached, "final": final}
        append_log(self.folder, line)
        if is_scheduled(step):
            name = f"step-{step:06d}"
            write_checkpoint(self.folder / name, self.model, self.tokenizer, {**about, "final": False})
        if final:
            write_checkpoint(self.folder / FINAL, self.model, self.tokenizer, about)
        else:
            save_state(self.folder, step, self.model, self.optimiser, self.generator)
        self.losses.clear()
        self.right.clear()
        return final


def answer_logits(model: PreTrainedModel, lines: Lines) -> Tensor:
    """(B, A, V): what the model says at the tokens before those of the answer."""
    logits: Tensor = model(lines.tokens).logits
    return logits[:, lines.answer - 1 : -1]


@torch.no_grad()
def exact_match(model: PreTrainedModel, lines: Lines) -> Tensor:
    """(B,): whether greedy decoding gives the whole answer (teacher-forced, which is the same)."""
    return _all_right(answer_logits(model, lines), lines)


def _all_right(logits: Tensor, lines: Lines) -> Tensor:
    return (logits.argmax(-1) == lines.tokens[:, lines.answer :]).all(-1)


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


@contextmanager
def one_thread() -> Iterator[None]:
    """The sums of a product of matrices are added in another order by other numbers of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _remove_scratch(folder: Path) -> None:
    """What a killed process was writing."""
    for path in folder.glob(f"{SCRATCH}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                path.unlink()
