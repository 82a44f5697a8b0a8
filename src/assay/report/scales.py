"""Round numbers for axes."""

from __future__ import annotations

import math


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers that enclose both, which differ."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]
