"""Path patching: the exact effect of each sender through its direct paths to chosen receivers.

The sender takes its source value, but only the receivers read the change, with every head and MLP between held at its
base value; what is after the receivers is computed anew (Goldowsky-Dill et al., arXiv 2304.05969; Wang et al., arXiv
2211.00593, who let MLPs between recompute).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Unpack

from torch import Tensor

from assay.engine.paths import RECEIVERS_ARE, PathPatch, parse_receivers, require_receivers
from assay.engine.response import Response
from assay.errors import OptionError
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.scores import Scores
from assay.sites import Selection

NAME = "path-patching"
NOTE = "Goldowsky-Dill et al., arXiv 2304.05969; Wang et al., arXiv 2211.00593"
SENDERS = ("heads", "attention", "mlps")
DESCRIPTION = "exact effect of senders (heads, attention, mlps) by direct paths to --receivers (q, k, v, mlps, logits)"


def method_to(receivers: str | Selection) -> Method:
    """Path patching to these receivers: a phrase such as ``q[9:12],mlps[10],logits``, or a selection.

    Raises:
        OptionError: something that cannot receive in any model.
    """
    require_receivers(receivers)
    return replace(
        METHOD,
        compute=partial(_effects, receivers=receivers),
        check=lambda setting: parse_receivers(setting.model, receivers),
        arguments={"receivers": receivers},
    )


def _effects(response: Response, setting: Setting, receivers: str | Selection) -> Tensor:
    paths = PathPatch(response, parse_receivers(response.model, receivers))
    paths.require_any(setting.components)
    return paths.values() - response.base_values


def _require_configured(_: Setting) -> None:
    raise OptionError(f"{NAME} needs receivers (--receivers). {RECEIVERS_ARE}")


def _without_receivers(_: Response, __: Setting) -> Tensor:
    raise AssertionError("checked before")


METHOD = Method(
    name=NAME,
    description=DESCRIPTION,
    source_note=NOTE,
    compute=_without_receivers,
    check=_require_configured,
    exact=True,
    by_component=True,
    estimates_effect=False,
    kinds=SENDERS,
    takes_model_apart=True,
    configure=method_to,
)


def path_patching(
    model: Model, pairs: AnyPairs, receivers: str | Selection, **options: Unpack[MeasureOptions]
) -> Scores:
    """Effects of the paths from each component (``sites``) to the receivers; options as in `assay.measure`.

    Args:
        receivers: a phrase such as ``q[9:12],mlps[10],logits``, or a selection of q, k, v and mlps.

    Raises:
        OptionError: something that cannot receive; otherwise as `assay.measure`.
    """
    return measure(method_to(receivers), model, pairs, **options)
