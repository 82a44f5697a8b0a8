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
    """Runs a job over numbered items, at most ``limit`` at once; fewer from the first time that memory runs out on."""

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit)

    def run(self, count: int, job: Callable[[slice], object]) -> None:
        """Call ``job`` with slices that cover ``count`` items in their order.

        A slice whose job runs out of memory is tried again by halves, so a job must not keep anything of a failed
        attempt.

        Raises:
            MemoryExhausted: one item alone is too much.
        """
        first = 0
        while first < count:
            part = slice(first, min(first + self.limit, count))
            if self._fits(job, part):
                first = part.stop

    def _fits(self, job: Callable[[slice], object], part: slice) -> bool:
        """Try; if memory runs out, lower the limit. Only here, so that no traceback keeps the tensors alive."""
        try:
            job(part)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            size = part.stop - part.start
            if size == 1:
                raise MemoryExhausted(
                    "There is not enough memory to run a single patched prompt. Close other programs, use shorter "
                    "prompts, or a smaller model or dtype."
                ) from error
            self.limit = size // 2
        else:
            return True
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return False
