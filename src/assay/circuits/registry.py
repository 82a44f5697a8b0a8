"""Every edge method, by name."""

from __future__ import annotations

from collections.abc import Callable

from assay.circuits import exact, first_order, second_order
from assay.circuits.method import EdgeMethod
from assay.errors import OptionError, instead_of

EDGE_METHODS: dict[str, Callable[[], EdgeMethod]] = {
    "eap": first_order.eap,
    "eap-ig-inputs": first_order.eap_ig_inputs,
    "eap-ig-activations": first_order.eap_ig_activations,
    "clean-corrupted": first_order.clean_corrupted,
    "second-order": second_order.second_order,
    "exact": exact.exact,
    "information-flow-routes": exact.information_flow_routes,
    "random": exact.random,
}
"""What makes each with its defaults."""


def edge_method(name: str) -> EdgeMethod:
    """An edge method by name, with its defaults.

    Raises:
        OptionError: there is none.
    """
    if name not in EDGE_METHODS:
        raise OptionError(f"There is no edge method {name!r}. {instead_of(name, EDGE_METHODS)}")
    return EDGE_METHODS[name]()
