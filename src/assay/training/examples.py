"""What a model is trained and evaluated on: batches of lines, all of one length.

Axes: B lines, T tokens of a line, n numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from assay.data.tasks import sequences
from assay.data.tasks.modular_addition import EQUALS, LARGEST_SHARE, MODULUS, summands
from assay.data.tasks.modular_addition import VOCABULARY as SYMBOLS_OF_SUMS
from assay.training.setting import TrainingSetting

HELD_OUT_SEED = 10_000_000


@dataclass(frozen=True)
class Lines:
    """Tokens (B, T): prompts, and from ``answer`` on what is to be predicted."""

    tokens: Tensor
    answer: int


class Examples(Protocol):
    """The examples of a task."""

    vocabulary: tuple[str, ...]
    """In the order of the token ids."""

    def batch(self, size: int, generator: torch.Generator) -> Lines:
        """Lines to train on, none of which is held out."""

    def held_out(self) -> list[Lines]:
        """Lines for the evaluation, the same for every seed."""


def examples_of(setting: TrainingSetting) -> Examples:
    if setting.task == "modular-addition":
        assert setting.share is not None
        return ModularAddition(setting.share, setting.held_out)
    return Sequences(setting.task, setting.held_out, setting.repeats)


class Sequences:
    """Reversal or sorting of lines that are drawn anew for ever; those held out are never trained on."""

    vocabulary = sequences.VOCABULARY

    def __init__(self, kind: str, held_out: int, repeats: float = 0.0) -> None:
        self.kind, self.repeats = kind, repeats
        lengths = list(sequences.TRAINED_LENGTHS)
        generator = torch.Generator().manual_seed(HELD_OUT_SEED)
        sizes = [held_out // len(lengths) + (number < held_out % len(lengths)) for number in range(len(lengths))]
        self._held_out = {
            length: self._draw(length, size, generator) for length, size in zip(lengths, sizes, strict=True)
        }
        self._keys = {length: _keys(numbers) for length, numbers in self._held_out.items()}

    def batch(self, size: int, generator: torch.Generator) -> Lines:
        lengths = list(self._held_out)
        length = lengths[int(torch.randint(len(lengths), (1,), generator=generator))]
        often = self.repeats > 0 and torch.rand((), generator=generator).item() < self.repeats
        pool = 2 * length if often else sequences.LARGEST
        numbers = self._draw(length, size, generator, pool)
        while (again := torch.isin(_keys(numbers), self._keys[length])).any():
            numbers[again] = self._draw(length, int(again.sum()), generator, pool)
        return self._lines(numbers)

    def held_out(self) -> list[Lines]:
        return [self._lines(numbers) for numbers in self._held_out.values() if len(numbers)]

    def _draw(self, length: int, size: int, generator: torch.Generator, pool: int = sequences.LARGEST) -> Tensor:
        """Numbers (B, n), those of each line from so many of its own."""
        if pool == sequences.LARGEST:
            return torch.randint(1, pool + 1, (size, length), generator=generator)
        pools = torch.rand(size, sequences.LARGEST, generator=generator).argsort(1)[:, :pool] + 1
        return pools.gather(1, torch.randint(pool, (size, length), generator=generator))

    def _lines(self, numbers_Bn: Tensor) -> Lines:
        size, length = numbers_Bn.shape
        transform = sequences.TRANSFORMATIONS[self.kind]
        targets_Bn = torch.tensor([transform(row) for row in numbers_Bn.tolist()])
        ids = {symbol: number for number, symbol in enumerate(self.vocabulary)}
        start, sep, end = (torch.full((size, 1), ids[name]) for name in (sequences.START, sequences.SEP, sequences.END))
        before = ids["1"] - 1
        tokens_BT = torch.cat([start, numbers_Bn + before, sep, targets_Bn + before, end], dim=1)
        return Lines(tokens_BT, answer=length + 2)


def _keys(numbers_Bn: Tensor) -> Tensor:
    """(B,): one integer for each row, for rows of one length."""
    key = torch.zeros(len(numbers_Bn), dtype=torch.long)
    for column in numbers_Bn.unbind(1):
        key = key * (sequences.LARGEST + 1) + column
    return key


class ModularAddition:
    """Sums of which a share is trained on; what is held out is drawn from those that no model is trained on."""

    vocabulary = SYMBOLS_OF_SUMS

    def __init__(self, share: float, held_out: int) -> None:
        self._trained = self._lines(torch.tensor(summands(0.0, share)))
        others = torch.tensor(summands(LARGEST_SHARE, 1.0))
        order = torch.randperm(len(others), generator=torch.Generator().manual_seed(HELD_OUT_SEED))
        self._held_out = self._lines(others[order[:held_out]])

    def batch(self, size: int, generator: torch.Generator) -> Lines:
        rows = torch.randint(len(self._trained.tokens), (size,), generator=generator)
        return Lines(self._trained.tokens[rows], self._trained.answer)

    def held_out(self) -> list[Lines]:
        return [self._held_out]

    def _lines(self, numbers_B2: Tensor) -> Lines:
        ids = {symbol: number for number, symbol in enumerate(self.vocabulary)}
        equals_B1 = torch.full((len(numbers_B2), 1), ids[EQUALS])
        sums_B1 = numbers_B2.sum(1, keepdim=True) % MODULUS
        return Lines(torch.cat([numbers_B2 + ids["0"], equals_B1, sums_B1 + ids["0"]], dim=1), answer=3)
