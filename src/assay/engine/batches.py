"""Rows of one length side by side, as many as the memory budget allows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from assay.data.encoding import Row
from assay.data.metrics import Targets
from assay.errors import DataError, OptionError
from assay.model import Model
from assay.sites import Position

Direction = Literal["denoise", "noise", "ablation"]
DEFAULT_MEMORY = "2G"


@dataclass(frozen=True)
class Batch:
    """R rows of T tokens, each with the prompt that its source activations come from."""

    base: Tensor
    """(R, T) token ids of the run that is patched."""
    source: Tensor
    """(R, T) token ids of the run that activations come from."""
    starts: Tensor
    """(R,) the position at which each row first differs from its source."""
    targets: Targets
    examples: Tensor
    """(R,) which example each row belongs to."""
    copies: Tensor
    """(R,) how many examples before it have the row's tokens."""

    @cached_property
    def start(self) -> int:
        """The first position at which any row differs from its source."""
        return int(self.starts.min())

    @property
    def rows(self) -> int:
        return self.base.shape[0]

    @property
    def positions(self) -> int:
        return self.base.shape[1]

    @property
    def reversed(self) -> Batch:
        """The same rows, patched the other way: base and source exchanged."""
        return replace(self, base=self.source, source=self.base)

    def part(self, rows: slice) -> Batch:
        """Some of the rows."""
        index = torch.arange(self.rows, device=self.base.device)[rows]
        return Batch(
            self.base[rows], self.source[rows], self.starts[rows], self.targets.rows(index), self.examples[rows],
            self.copies[rows],
        )  # fmt: skip

    def mask(self, position: Position) -> Tensor | None:
        """(R, T) bool: where a component at this position is patched; None for all positions.

        Raises:
            DataError: a prompt is too short for the index.
        """
        if position is None:
            return None
        numbers = torch.arange(self.positions, device=self.base.device)
        last = self.targets.positions[:, :1]
        if position == "answer":
            return (numbers == self.targets.positions.unsqueeze(2)).any(1)
        if position == "last":
            return numbers == last
        if position == "first-difference":
            return numbers == self.starts.unsqueeze(1)
        assert isinstance(position, int), position
        wanted = torch.full_like(last, position) if position >= 0 else last + 1 + position
        if not ((wanted >= 0) & (wanted <= last)).all():
            raise DataError(f"Position {position} lies outside a prompt of {int(last.min()) + 1} tokens.")
        return numbers == wanted


def make_batches(
    model: Model, rows: Sequence[Row], direction: Direction, memory: int, *, by_start: bool = True
) -> list[Batch]:
    """Group rows by length and first difference, and cut the groups to the memory budget in bytes.

    Args:
        by_start: replay runs from the first difference of a batch on, so it is worth a group of its own where many
            patches are to be run; with ``False`` the groups are fewer and larger, as a single pass likes them.
    """
    groups: defaultdict[tuple[int, int, int], list[tuple[Row, int]]] = defaultdict(list)
    with_tokens: defaultdict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    for row in rows:
        same = with_tokens[tuple(row.clean), tuple(row.corrupted)]
        copy = same.setdefault(row.example, len(same))
        groups[len(row.clean), row.first_difference if by_start else 0, len(row.positions)].append((row, copy))
    batches = []
    for (length, _, _), members in groups.items():
        most = max(1, memory // recording_bytes(model, length))
        for first in range(0, len(members), most):
            batches.append(_batch(model, members[first : first + most], direction))
    return batches


def _batch(model: Model, members: Sequence[tuple[Row, int]], direction: Direction) -> Batch:
    rows = [row for row, _ in members]

    def tensor(values: Sequence[object]) -> Tensor:
        return torch.tensor(values, device=model.device)

    clean, corrupted = tensor([row.clean for row in rows]), tensor([row.corrupted for row in rows])
    base, source = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
    answers = [(row.tokens, row.further) for row in rows]
    wrongs = [((row.wrong,) * len(row.tokens), row.further_wrong) for row in rows]
    targets = Targets(
        positions=tensor([row.positions for row in rows]),
        answers=tensor(_members(answers)),
        wrongs=tensor(_members(wrongs)),
        sign=tensor([row.sign for row in rows]),
    )
    starts = tensor([row.first_difference for row in rows])
    return Batch(
        base, source, starts, targets, tensor([row.example for row in rows]), tensor([copy for _, copy in members])
    )


def _members(sets: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[list[list[int]]]:
    """(R, P, members), filled up with -1, from each row's token per position and the further ones of its set."""
    most = max(len(further) for _, further in sets)
    return [[[token, *further, *[-1] * (most - len(further))] for token in tokens] for tokens, further in sets]


def parse_memory(text: str) -> int:
    """``"2G"`` or ``"500M"`` in bytes.

    Raises:
        OptionError: anything else, or less than 16 MB.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG])i?B?", str(text).strip(), re.IGNORECASE)
    if match is None:
        raise OptionError(f"--memory takes a size such as 500M or 2G, not {text!r}.")
    size = int(float(match[1]) * {"M": 1 << 20, "G": 1 << 30}[match[2].upper()])
    if size < 16 << 20:
        raise OptionError(f"--memory {text} is too little to work with; give at least 16M.")
    return size


def recording_bytes(model: Model, positions: int) -> int:
    """Roughly what one row of a base and a source recording take, with the graph of a gradient run."""
    per_token = 12 * model.d_model + 6 * model.d_mlp + 8 * model.n_heads * model.d_head
    per_row: int = model.n_layers * positions * (per_token + 4 * model.n_heads * positions)
    return per_row * int(model.dtype.itemsize) + 3 * positions * model.vocab_size * 4


def lane_bytes(model: Model, positions: int, keys: int, answer_positions: int, whole_vocabulary: bool) -> int:
    """Roughly what one patched sequence takes while it passes through a layer and the unembedding."""
    per_token = 6 * model.d_model + 3 * model.d_mlp + 4 * model.n_heads * (model.d_head + keys)
    cache = 4 * keys * model.n_kv_heads * model.d_head
    logits = 3 * answer_positions * model.vocab_size if whole_vocabulary else 0
    numbers: int = positions * per_token + cache + logits
    return numbers * max(4, model.dtype.itemsize)
