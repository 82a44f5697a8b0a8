"""Attribution patching of all heads and MLPs against one plain forward pass of each prompt and one backward pass.

The plain passes are the least that the method needs: clean prompts forward, corrupted prompts forward and backward,
weights without gradients, the unembedding at the last position only, nothing kept. Plain hooks, and TransformerLens
with hooks, compute the estimates themselves.
"""

from __future__ import annotations

import numpy as np
from common import Side, make_job, parser, peers, take_turns
from results import Result, figure, ratios, require_equal, require_same_every_time

SITES = ("heads", "mlps")


def main() -> None:
    given = parser(__doc__, "attribution", repeats=10, peers=True).parse_args()
    job = make_job(given.model, given.pairs, given.memory)
    measures = [{"method": "attribution-patching", "sites": ",".join(SITES)}]
    ours = Side("assay", "with_assay.py", {**job, "measures": measures})
    passes = Side("plain passes", "with_hooks.py", {**job, "work": "passes"})
    work = {"work": "attribution", "sites": list(SITES)}
    others = [Side("plain hooks", "with_hooks.py", {**job, **work})]
    if python := peers(given.python, ("transformer-lens",)).get("transformer-lens"):
        others.append(Side("transformer-lens", "with_transformer_lens.py", {**job, **work}, python))
    take_turns([ours, passes, *others], given.repeats, warmups=1)
    found = ours.answers[0].values
    agreement = {
        f"{other.name}, {site}": require_equal(
            f"{other.name}, {site}", found[f"attribution-patching/{site}"],
            other.answers[0].values[f"attribution-patching/{site}"],
        )
        for other in others for site in SITES
    }  # fmt: skip
    agreement["plain passes, metric"] = require_equal(
        "plain passes, metric", np.stack([found["baseline/clean"], found["baseline/corrupted"]]),
        passes.answers[0].values["metric"],
    )  # fmt: skip
    for side in (ours, passes, *others):
        require_same_every_time(side)
    Result(
        "attribution",
        "Attribution patching of all heads and MLPs",
        f"{given.model}, {job['n_layers'] * (job['n_heads'] + 1)} components, {given.pairs} IOI pairs, one thread, "
        "float32. Plain passes: each prompt forward once, the corrupted ones backward once.",
        [ours, passes, *others],
        [figure("assay / plain passes", ratios(ours, passes), "times", "at most 1.3")]
        + [figure(f"{other.name} / assay", ratios(other, ours), "times") for other in others],
        agreement,
    ).finish(given.out)


if __name__ == "__main__":
    main()
