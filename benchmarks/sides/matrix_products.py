"""What the machine reaches on matrix products alone: at the shapes of the model's layers, and square."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from serve import Run, Values, serve
from torch.nn.functional import linear

LEAST_SECONDS = 0.5


def prepare(job: dict[str, Any]) -> Run:
    weights = [torch.randn(wide, narrow) for wide, narrow in job["shapes"]]
    squares = [torch.randn(size, size) for size in job["squares"]]

    def rate(products: Callable[[], object], operations: float) -> float:
        """Operations a second of the fastest of several rounds."""
        products()
        best, spent = float("inf"), 0.0
        while spent < LEAST_SECONDS:
            began = time.perf_counter()
            products()
            took = time.perf_counter() - began
            best, spent = min(best, took), spent + took
        return operations / best

    @torch.no_grad()
    def run() -> tuple[Values, float]:
        layer = []
        for tokens in job["tokens"]:
            inputs = [torch.randn(tokens, weight.shape[1]) for weight in weights]
            layer.append(
                rate(
                    lambda: [linear(x, weight) for x, weight in zip(inputs, weights, strict=True)],  # noqa: B023
                    sum(2 * tokens * weight.numel() for weight in weights),
                )
            )
        square = [rate(lambda: x @ x, 2 * len(x) ** 3) for x in squares]  # noqa: B023
        return {"layer": np.array(layer), "square": np.array(square)}, 0.0

    return run


if __name__ == "__main__":
    serve(prepare)
