"""All methods by name."""

from __future__ import annotations

from assay.errors import OptionError
from assay.methods.activation_patching import METHOD as ACTIVATION_PATCHING
from assay.methods.attribution_patching import METHOD as ATTRIBUTION_PATCHING
from assay.methods.direct_effect import METHOD as DIRECT_EFFECT
from assay.methods.mean_ablation import METHOD as MEAN_ABLATION
from assay.methods.method import Method
from assay.methods.path_patching import METHOD as PATH_PATCHING
from assay.methods.random_scores import METHOD as RANDOM
from assay.methods.resample_ablation import METHOD as RESAMPLE_ABLATION
from assay.methods.two_point import METHOD as TWO_POINT
from assay.methods.zero_ablation import METHOD as ZERO_ABLATION

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        ACTIVATION_PATCHING,
        ATTRIBUTION_PATCHING,
        TWO_POINT,
        ZERO_ABLATION,
        MEAN_ABLATION,
        RESAMPLE_ABLATION,
        DIRECT_EFFECT,
        PATH_PATCHING,
        RANDOM,
    )
}


def method_named(name: str) -> Method:
    if name not in METHODS:
        raise OptionError(f"There is no method {name!r}. Choose one of {', '.join(METHODS)}.")
    return METHODS[name]
