"""Rivals of gradient magnitude: what a gradient says of the very ablation that cause is measured by.

All are assay's own methods, with the ablation's values as the source: delta = mean (or zero, or another prompt's value)
less the clean activation. Values are predicted losses, but for ``|grad.delta|``, their absolute value.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from assay.engine.joint import KINDS_OF_GROUPS
from assay.engine.response import Response
from assay.errors import OptionError, instead_of
from assay.methods.attribution_patching import first_order
from assay.methods.gim import METHOD as GIM
from assay.methods.hvp import second_order
from assay.methods.integrated_gradients import METHOD as INTEGRATED_GRADIENTS
from assay.methods.method import Method, Setting
from assay.methods.registry import METHODS

RIVALS = ("|grad.delta|", "grad.delta", "gim", "integrated-gradients", "hvp")


def rival_named(name: str, ablation: str) -> Method:
    """The rival, to be used as a method on the clean prompts.

    Raises:
        OptionError: there is none of this name.
    """
    if name not in RIVALS:
        raise OptionError(f"There is no rival {name!r}. {instead_of(name, RIVALS)}")
    method = replace(
        METHODS[f"{ablation}-ablation"],
        name=f"{name} ({ablation}-ablation)",
        compute=first_order,
        exact=False,
        uses_gradients=True,
        by_component=False,
        kinds=KINDS_OF_GROUPS,
        at_positions=False,
    )
    match name:
        case "|grad.delta|":
            return replace(method, compute=_absolute, estimates_effect=False, signed=False)
        case "gim":
            return replace(method, rules=GIM.rules, estimates_effect=False)
        case "integrated-gradients":
            ig = INTEGRATED_GRADIENTS
            return replace(method, compute=ig.compute, sweeps=ig.sweeps, by_component=True, source_note=ig.source_note)
        case "hvp":
            return replace(method, compute=second_order, by_component=True, second_order=True)
    return method


def _absolute(response: Response, _: Setting) -> Tensor:
    return response.slope(0).abs()
