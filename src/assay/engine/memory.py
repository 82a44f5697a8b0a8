"""Go on with less at once when memory runs out."""

from __future__ import annotations

from collections.abc import Callable

import torch

from assay.errors import MemoryExhausted


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on an accelerator or on the CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


class Portions:
    """Runs a job over numbered items, several at once; fewer from the first time that memory runs out on."""

    def __init__(self) -> None:
        self.divisor = 1

    def run(self, count: int, job: Callable[[slice], object], limit: Callable[[int], int] | None = None) -> None:
        """Call ``job`` with slices that cover ``count`` items in their order.

        A slice whose job runs out of memory is tried again by halves, so a job must not keep anything of a failed
        attempt.

        Args:
            limit: how many items from a given one on may be run at once; all if None.

        Raises:
            MemoryExhausted: one item alone is too much.
        """
        first = 0
        while first < count:
            most = count if limit is None else limit(first)
            part = slice(first, min(first + max(1, most // self.divisor), count))
            if self._fits(job, part):
                first = part.stop
            else:
                while max(1, most // self.divisor) >= part.stop - part.start:
                    self.divisor *= 2

    def _fits(self, job: Callable[[slice], object], part: slice) -> bool:
        """Whether memory sufficed. Tried here, so that no traceback keeps tensors alive."""
        try:
            job(part)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if part.stop - part.start == 1:
                raise MemoryExhausted(
                    "There is not enough memory to run a single patched prompt. Close other programs, use shorter "
                    "prompts, or a smaller model or dtype."
                ) from error
        else:
            return True
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return False
