"""Every edge method, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from assay.circuits import exact, first_order, masks, second_order
from assay.circuits.method import EdgeMethod
from assay.errors import OptionError, instead_of

EDGE_METHODS: dict[str, Callable[..., EdgeMethod]] = {
    "eap": first_order.eap,
    "eap-ig-inputs": first_order.eap_ig_inputs,
    "eap-ig-activations": first_order.eap_ig_activations,
    "clean-corrupted": first_order.clean_corrupted,
    "second-order": second_order.second_order,
    "edge-masks": masks.edge_masks,
    "exact": exact.exact,
    "information-flow-routes": exact.information_flow_routes,
    "random": exact.random,
}
"""What makes each, with its parameters."""


def edge_method(name: str, **parameters: Any) -> EdgeMethod:
    """An edge method by name, with those of its parameters that are not None.

    Raises:
        OptionError: there is none, or it does not take a parameter.
    """
    if name not in EDGE_METHODS:
        raise OptionError(f"There is no edge method {name!r}. {instead_of(name, EDGE_METHODS)}")
    given = {key: value for key, value in parameters.items() if value is not None}
    for key in given:
        if key not in inspect.signature(EDGE_METHODS[name]).parameters:
            if key == "rules" and name == "second-order":
                raise OptionError(
                    "second-order takes second derivatives. Under backward rules what goes back is no gradient of any "
                    "function, so what its derivative would be is no curvature. Leave the rules out."
                )
            takers = [other for other, make in EDGE_METHODS.items() if key in inspect.signature(make).parameters]
            raise OptionError(f"The edge method {name} takes no {key!r}; it is for {' and '.join(takers) or 'none'}.")
    return EDGE_METHODS[name](**given)
