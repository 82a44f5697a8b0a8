"""Parallel ensembles: one score for every edge from those of several methods (Mondorf et al., arXiv 2510.06811).

Methods have units and tails of their own, so each one's mean scores are replaced by their signed ranks: the sign of the
score times the rank of its absolute value, as a share of the number of edges. With `edge-masks`, which starts from
`eap-ig-inputs`, among the members the ensemble is a hybrid of parallel and sequential.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from assay.circuits.edges import EdgeScores
from assay.errors import OptionError, instead_of

How = Literal["mean", "min", "max"]
_COMBINE: dict[str, Callable[..., NDArray[np.float64]]] = {"mean": np.mean, "min": np.min, "max": np.max}


def signed_ranks(scores: ArrayLike) -> NDArray[np.float64]:
    """(E,) from -1 to 1: sign times rank of the absolute score, over their number; ties share their mean rank."""
    values = np.asarray(scores, np.float64)
    found: NDArray[np.float64] = np.sign(values) * rankdata(np.abs(values)) / len(values)
    return found


def ensemble(scores: Sequence[EdgeScores], how: How = "mean") -> EdgeScores:
    """The mean, least or largest of the signed ranks that several methods give each edge.

    Args:
        scores: of one graph and the same prompts.

    Returns:
        (1, E) scores that estimate no effect; their cost is that of all members together.

    Raises:
        OptionError: fewer than two members, members of other graphs, models or prompts, or no such combination.
    """
    if how not in get_args(How):
        raise OptionError(f"There is no ensemble by {how!r}. {instead_of(how, get_args(How))}")
    if len(scores) < 2:
        raise OptionError(f"An ensemble needs two or more members, not {len(scores)}.")
    first, *others = scores
    weights = [member.provenance.get("model", {}).get("weights_sha256") for member in scores]
    for other, weight in zip(others, weights[1:], strict=True):
        if other.graph != first.graph or weight != weights[0]:
            raise OptionError(f"{first.method} and {other.method} were made on other models or graphs.")
        if (other.pairs, other.metric) != (first.pairs, first.metric):
            raise OptionError(f"{first.method} and {other.method} were made on other prompts or by another metric.")
    values = _COMBINE[how](np.stack([signed_ranks(member.mean) for member in scores]), axis=0)
    members = [{"method": member.method, "configuration": member.configuration} for member in scores]
    return EdgeScores(
        first.graph, values[None], first.pairs, f"{how} of {', '.join(member.method for member in scores)}",
        first.metric, "none", False, False, {"ensemble": how, "members": members},
        _together([member.cost for member in scores]), first.provenance,
    )  # fmt: skip


def _together(costs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums of what all of them count."""
    shared = [name for name in costs[0] if all(isinstance(cost.get(name), (int, float)) for cost in costs)]
    seconds = {"members": sum(sum(cost.get("seconds", {}).values()) for cost in costs)}
    return {**{name: sum(cost[name] for cost in costs) for name in shared}, "seconds": seconds}
