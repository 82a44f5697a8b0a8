"""How the page names sites and methods."""

from __future__ import annotations

from assay.comparison import EXACT
from assay.studies.patching_errors.settings import HEADS, NEURONS, SAMPLED

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
