"""How the page writes numbers and names."""

from __future__ import annotations

import numpy as np

from assay.comparison import EXACT
from assay.studies.patching_errors.settings import HEADS, NEURONS, SAMPLED

SHORT = {"smollm2-135m": "SmolLM2", "gemma-3-270m": "Gemma 3"}
KINDS = {HEADS: "heads", NEURONS: "neurons"}


def label(name: str) -> str:
    """A method in few words."""
    method, _, parameters = name.partition(":")
    values = dict(part.split("=") for part in parameters.split(":")) if parameters else {}
    match method:
        case "ms-hvp":
            return f"MS-HVP, K = {values['segments']}"
        case "integrated-gradients":
            return f"IG {values['rule']}, {values['steps']}"
        case "integrated-hessians":
            return f"IH, {values['steps']}"
    short = {"attribution-patching": "AtP", "hvp": "HVP", "atp-star": "AtP*", EXACT: "exact", SAMPLED: "HVP, sampled"}
    return short.get(method, method.replace("-", " "))


def percent(value: float | None, digits: int = 0) -> str:
    """As a percentage; an empty cell for what is not defined."""
    return "" if value is None or not np.isfinite(value) else f"{value:.{digits}%}".replace("%", " %")


def number(value: float | None, digits: int = 3) -> str:
    """To so many significant digits; an empty cell for what is not defined."""
    if value is None or not np.isfinite(value):
        return ""
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.0f}"
