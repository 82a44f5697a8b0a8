"""All methods by name."""

from __future__ import annotations

import inspect
from typing import Any

from assay.errors import OptionError, instead_of
from assay.methods.activation_patching import METHOD as ACTIVATION_PATCHING
from assay.methods.atp_star import METHOD as ATP_STAR
from assay.methods.attribution_patching import METHOD as ATTRIBUTION_PATCHING
from assay.methods.direct_effect import METHOD as DIRECT_EFFECT
from assay.methods.gim import METHOD as GIM
from assay.methods.hvp import METHOD as HVP
from assay.methods.hvp_sampled import METHOD as HVP_SAMPLED
from assay.methods.integrated_gradients import METHOD as INTEGRATED_GRADIENTS
from assay.methods.integrated_hessians import METHOD as INTEGRATED_HESSIANS
from assay.methods.local_curvature import METHOD as LOCAL_CURVATURE
from assay.methods.mean_ablation import METHOD as MEAN_ABLATION
from assay.methods.method import Method
from assay.methods.ms_hvp import METHOD as MS_HVP
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
        HVP,
        MS_HVP,
        HVP_SAMPLED,
        INTEGRATED_GRADIENTS,
        INTEGRATED_HESSIANS,
        ATP_STAR,
        GIM,
        LOCAL_CURVATURE,
        TWO_POINT,
        ZERO_ABLATION,
        MEAN_ABLATION,
        RESAMPLE_ABLATION,
        DIRECT_EFFECT,
        PATH_PATCHING,
        RANDOM,
    )
}

ABLATIONS = ("mean", "zero", "resample")


def method_named(name: str, **parameters: Any) -> Method:
    """The method of this name, with those of its parameters that are not None.

    Raises:
        OptionError: there is none, or it does not take a parameter.
    """
    if name not in METHODS:
        raise OptionError(f"There is no method {name!r}. {instead_of(name, METHODS)}")
    method = METHODS[name]
    given = {key: value for key, value in parameters.items() if value is not None}
    for key in given:
        takers = [other for other in METHODS.values() if key in parameters_of(other)]
        if not takers:
            known = ", ".join(parameters_of(method)) or "none"
            raise OptionError(f"{name} has no option {key!r}. It takes: {known}.")
        if method not in takers:
            names = " or ".join(taker.name for taker in takers)
            raise OptionError(f"--{key.replace('_', '-')} is only for --method {names}.")
    return method.configure(**given) if given and method.configure is not None else method


def ablation_named(ablation: str) -> Method:
    """``mean``, ``zero`` or ``resample`` ablation.

    Raises:
        OptionError: there is no such ablation.
    """
    if ablation not in ABLATIONS:
        raise OptionError(f"There is no ablation {ablation!r}. {instead_of(ablation, ABLATIONS)}")
    return METHODS[f"{ablation}-ablation"]


def parameters_of(method: Method) -> tuple[str, ...]:
    """Names of the parameters that a method takes."""
    return () if method.configure is None else tuple(inspect.signature(method.configure).parameters)


PARAMETERS = tuple(dict.fromkeys(name for method in METHODS.values() for name in parameters_of(method)))
"""Of all methods."""
