"""The work of a circuit run in pieces: told on standard error as they are done, kept in a run folder to go on from."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from assay.engine.cost import CostMeter
from assay.methods.progress import progress_of
from assay.scale import Crew
from assay.store import RunFolder

Values = NDArray[np.float64]


class Work:
    """What is kept and told of a run, and what its stages cost.

    Args:
        folder: where finished pieces are kept; nowhere, if None.
        show: say on standard error what is being done, and how far it is.
        crew: others who compute pieces; this process does alone if None.
    """

    def __init__(self, folder: RunFolder | None = None, *, show: bool = False, crew: Crew | None = None) -> None:
        self.folder, self.show, self.crew = folder, show, crew
        self._handed_over: dict[str, tuple[Values, dict[str, Any]]] = {}
        self.costs: dict[str, dict[str, Any]] = {}
        """By stage: forward-equivalents, patched sequences, seconds of work in all sittings."""
        self._stage = ""
        self._advance: Callable[[int], object] = lambda _: None
        self._done = 0

    @contextmanager
    def stage(self, name: str, said: str) -> Iterator[None]:
        """Whatever is spent inside belongs to this stage."""
        before, self._stage = self._stage, name
        began = time.monotonic()
        self._say(f"{said} ...")
        yield
        self._say(f"{said}: {tqdm.format_interval(time.monotonic() - began)}")
        self._stage = before

    def _say(self, line: str) -> None:
        if self.show:
            print(line, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, total: int, parts: str) -> Iterator[None]:
        """`advance` is told how many of so many parts are done."""
        with progress_of(self._stage, total, 0, self.show and bool(self._stage), parts) as advance:
            self._advance, self._done = advance, 0
            yield
            self._advance = lambda _: None

    def advance(self, parts: int) -> None:
        self._done += parts
        self._advance(parts)

    def reach(self, parts: int) -> None:
        """So many parts are done in all: what came from the folder told of none."""
        self.advance(max(0, parts - self._done))

    def charge(self, spent: dict[str, Any]) -> None:
        """Add what `CostMeter.summary` says to the stage."""
        stage = self.costs.setdefault(
            self._stage or "circuits", {"forward_equivalents": 0.0, "interventions": 0, "seconds": 0.0}
        )
        stage["forward_equivalents"] += spent["forward_equivalents"]
        stage["interventions"] += spent["interventions"]
        stage["seconds"] = round(stage["seconds"] + sum(spent["seconds"].values()), 3)

    def piece(self, content: str, name: str, cost: CostMeter, compute: Callable[[], Values]) -> Values:
        """What ``compute`` gives, from the folder if it is there.

        Args:
            content: what the piece is of, the same words in every sitting.
            name: of the cost's stage.
            cost: is charged with what the piece took, in whichever sitting.
        """
        if (there := self._there(content)) is not None:
            values, spent = there
            cost.add(CostMeter(**spent))
            return values
        before = deepcopy(cost)
        with cost.stage(name):
            values = compute()
        if self.folder is not None:
            self.folder.write_shard(_number(content), content, values, asdict(cost.since(before)))
        return values

    def has(self, content: str) -> bool:
        """Whether a piece need not be computed."""
        return self._there(content) is not None

    def hand_over(self, content: str, values: Values, spent: dict[str, Any]) -> None:
        """A piece that others computed, and what it took."""
        if self.folder is not None:
            self.folder.write_shard(_number(content), content, values, spent)
        else:
            self._handed_over[content] = values, spent

    def _there(self, content: str) -> tuple[Values, dict[str, Any]] | None:
        if self.folder is not None:
            return self.folder.read_shard(_number(content), content)
        return self._handed_over.get(content)


def _number(content: str) -> int:
    return int(hashlib.sha256(content.encode()).hexdigest()[:12], 16)


def digest(*arrays: NDArray[Any] | None) -> str:
    """Of circuits, to tell those of one piece from those of another."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(
            b"none" if array is None else f"{array.dtype}{array.shape}".encode() + np.packbits(array).tobytes()
        )
    return found.hexdigest()
