"""What ablated components are set to: zero, or a mean over reference prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from assay.data.encoding import Row
from assay.engine.batches import Batch
from assay.engine.cost import CostMeter
from assay.errors import DataError
from assay.model import Model
from assay.model.recording import Recording, record
from assay.sites import KINDS

MeanOver = Literal["position", "all-positions"]
EVERYWHERE = (0, 0)
SMALLEST_GROUP = 32
"""Reference prompts of one length that a mean per position needs."""


def zeros(_: Batch, base: Recording, site: str, layer: int) -> Tensor:
    """Zero, in the shape of the site."""
    return torch.zeros_like(base.site(site, layer))


class Means:
    """Mean activations over reference prompts; each distinct token sequence counts once.

    Args:
        rows: their corrupted side is the reference.
        places: the (site, layer) pairs that will be asked for.
        over: ``position``: for each position, over the reference rows whose prompt and answer are exactly as
            long as the patched one's (at least 32 of them); ``all-positions``: over all positions of all
            reference prompts, answers left out.
        wanted: the rows that will be patched.
        batch_rows: rows to run at once.
        read: what is averaged, (R, T, units, D), of a recording, for a site and layer.

    Raises:
        DataError: too few reference prompts of one length.
    """

    def __init__(
        self,
        model: Model,
        rows: Sequence[Row],
        places: Collection[tuple[str, int]],
        over: MeanOver,
        wanted: Sequence[Row],
        batch_rows: int,
        cost: CostMeter,
        read: Callable[[Recording, str, int], Tensor] = Recording.site,
    ) -> None:
        self.over, self.read = over, read
        groups = averaged_groups(rows, over, wanted)
        keep = {site for site, _ in places if KINDS[site].of_mlp}
        sums: defaultdict[tuple[str, int, tuple[int, int]], Tensor | float] = defaultdict(float)
        counts: defaultdict[tuple[int, int], int] = defaultdict(int)
        for lengths_of, distinct in groups.items():
            key = lengths_of if over == "position" else EVERYWHERE
            ids = list(distinct)
            for first in range(0, len(ids), batch_rows):
                part = torch.tensor(ids[first : first + batch_rows], device=model.device)
                recording = record(model, part, keep=keep)
                cost.forward(part.shape[0], part.shape[1], model.n_layers)
                dims = (0,) if over == "position" else (0, 1)
                for site, layer in places:
                    sums[site, layer, key] += read(recording, site, layer).double().sum(dims)
                counts[key] += len(part) if over == "position" else part.numel()
        self.means = {place: torch.as_tensor(total / counts[place[2]]) for place, total in sums.items()}

    def __call__(self, batch: Batch, base: Recording, site: str, layer: int) -> Tensor:
        value = self.read(base, site, layer)
        answer_length = batch.targets.positions.shape[1]
        lengths = (batch.positions - answer_length + 1, answer_length)
        mean = self.means[site, layer, lengths if self.over == "position" else EVERYWHERE]
        return mean.to(value).expand_as(value)


def averaged_groups(
    rows: Sequence[Row], over: MeanOver, wanted: Sequence[Row]
) -> dict[tuple[int, int], dict[tuple[int, ...], None]]:
    """By length of prompt and answer: the distinct token sequences that are averaged over, in their order. Arguments
    as of `Means`.

    Raises:
        DataError: too few reference prompts of one length.
    """
    groups: defaultdict[tuple[int, int], dict[tuple[int, ...], None]] = defaultdict(dict)
    for row in rows:
        prompt_length, answer_length = _lengths(row)
        if over == "all-positions":
            answer_length = 1
        groups[prompt_length, answer_length][row.corrupted[: prompt_length + answer_length - 1]] = None
    if over == "all-positions":
        return groups
    lengths = sorted({_lengths(row) for row in wanted})
    _require_large_groups({key: len({ids[: key[0]] for ids in groups.get(key, ())}) for key in lengths})
    return {key: groups[key] for key in lengths}


class Resampled:
    """Activations of another reference prompt of the same length, one drawn for each example.

    The row's own answer follows the drawn prompt where it is teacher-forced.

    Args:
        rows: the rows that will be patched.
        references: the prompts of their corrupted side are drawn from.
        sites: the kinds that will be asked for.
        seed: with an example's two prompts it decides what that example gets, however rows are ordered and batched.

    Raises:
        DataError: no other reference prompt of a row's length.
    """

    def __init__(
        self,
        model: Model,
        rows: Sequence[Row],
        references: Sequence[Row],
        sites: Collection[str],
        seed: int,
        cost: CostMeter,
    ) -> None:
        self.model = model
        self.keep = {site for site in sites if KINDS[site].of_mlp}
        self.cost = cost
        prompts: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
        for reference in references:
            length, _ = _lengths(reference)
            prompts[length].add(reference.corrupted[:length])
        self.drawn: dict[tuple[int, tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}
        """By the prompt's length (an answer may follow it in the row) and both sequences."""
        for row in rows:
            length, _ = _lengths(row)
            own = (row.clean[:length], row.corrupted[:length])
            others = sorted(prompts[length] - set(own))
            if not others:
                raise DataError(
                    f"Example {row.example} has no other reference prompt of its {length} tokens to take activations "
                    "from. Use more prompts of one length, or give them with --reference FILE."
                )
            generator = np.random.default_rng([seed, *own[0], *own[1]])
            prompt = others[int(generator.integers(len(others)))]
            self.drawn[length, row.clean, row.corrupted] = prompt + row.clean[length:]
        self._last: tuple[Batch, Recording] | None = None

    def __call__(self, batch: Batch, base: Recording, site: str, layer: int) -> Tensor:
        if self._last is None or self._last[0] is not batch:
            lengths = (batch.targets.positions[:, 0] + 1).tolist()
            rows = zip(lengths, batch.base.tolist(), batch.source.tolist(), strict=True)
            drawn = [self.drawn[length, tuple(clean), tuple(corrupted)] for length, clean, corrupted in rows]
            ids = torch.tensor(drawn, device=self.model.device)
            self._last = batch, record(self.model, ids, keep=self.keep)
            self.cost.forward(ids.shape[0], ids.shape[1], self.model.n_layers)
        return self._last[1].site(site, layer)


def _lengths(row: Row) -> tuple[int, int]:
    """Tokens of the prompt, and of the answer read after it."""
    return row.positions[0] + 1, len(row.positions)


def _require_large_groups(sizes: dict[tuple[int, int], int]) -> None:
    small = {length: size for length, size in sizes.items() if size < SMALLEST_GROUP}
    if small:
        (length, _), size = min(small.items(), key=lambda item: item[1])
        raise DataError(
            f"A mean per position needs at least {SMALLEST_GROUP} reference prompts of each length; there are {size} "
            f"of {length} tokens. Take the mean over all positions (--mean all-positions), or give more reference "
            "prompts (a larger --n, or --reference FILE)."
        )
