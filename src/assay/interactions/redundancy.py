"""Which components stand in for each other: clusters of pairs whose joint loss no single ablation shows.

The *hidden share* of a pair is (E12 - E1 - E2) / E12: 1 where both alone seem dispensable, 0 where losses add up. Where
the interaction is not above 0 beyond doubt, or the joint loss not positive, it is 0.
"""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.stats import t as student

LEVEL = 0.05
HALF = 0.5


def hidden_share(joint: np.ndarray, interaction: np.ndarray, stderr: np.ndarray, n: int) -> np.ndarray:
    """(P,) hidden share of each pair, in [0, 1].

    Args:
        joint: (P,) mean loss of both.
        interaction: (P,) mean of joint loss less both single ones.
        stderr: (P,) its standard error over n examples; NaN for one.
    """
    # One-sided, Bonferroni over the pairs: with hundreds of pairs some noise is always above two standard errors.
    beyond = student.ppf(1 - LEVEL / max(1, len(joint)), max(1, n - 1))
    sure = (interaction > 0) & (joint > 0) & (interaction > beyond * stderr)  # never of one example
    share = np.divide(interaction, joint, out=np.zeros(len(joint)), where=sure)
    clipped: np.ndarray = np.clip(share, 0, 1)
    return clipped


def redundant_groups(count: int, pairs: np.ndarray, shares: np.ndarray) -> list[tuple[int, ...]]:
    """Groups of components of whose pairs half of the joint loss or more is hidden, on average.

    Average linkage on 1 - hidden share (scipy), cut at one half; the largest groups first.

    Args:
        count: of components.
        pairs: (P, 2) numbers of components; pairs that are missing share nothing.
        shares: (P,) of `hidden_share`.
    """
    if count < 2:
        return []
    distance = np.ones((count, count))
    distance[pairs[:, 0], pairs[:, 1]] = distance[pairs[:, 1], pairs[:, 0]] = 1 - shares
    np.fill_diagonal(distance, 0)
    labels = fcluster(linkage(squareform(distance), "average"), HALF, "distance")
    members: dict[int, list[int]] = {}
    for number, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(number)
    groups = [tuple(group) for group in members.values() if len(group) > 1]
    return sorted(groups, key=lambda group: (-len(group), group))
