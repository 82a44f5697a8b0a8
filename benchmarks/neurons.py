"""Neurons: attribution patching of all of them against heads, and one whole layer exactly.

Plain hooks check both: the estimates of all neurons, and the exact effects of a sample of the layer's.
"""

from __future__ import annotations

import numpy as np
from common import Side, evenly, make_job, parser, take_turns
from results import Result, figure, ratios, require_equal, require_same_every_time


def main() -> None:
    options = parser(__doc__, "neurons", repeats=6)
    options.add_argument("--layer", type=int, help="whose neurons are patched exactly (default: the middle one)")
    options.add_argument("--exact-repeats", type=int, default=2, help="rounds of exact patching (default 2)")
    options.add_argument(
        "--sample",
        type=int,
        default=16,
        help="neurons of the layer that plain hooks patch, half of them the largest (default 16)",
    )
    given = options.parse_args()
    job = make_job(given.model, given.pairs, given.memory)
    layer = job["n_layers"] // 2 if given.layer is None else given.layer
    sides = {
        site: Side(f"attribution, {site}", "with_assay.py",
                   {**job, "measures": [{"method": "attribution-patching", "sites": site}]})
        for site in ("heads", "neurons")
    }  # fmt: skip
    take_turns(list(sides.values()), given.repeats, warmups=1)
    plain = Side("plain hooks", "with_hooks.py", {**job, "work": "attribution", "sites": ["heads", "neurons"]})
    take_turns([plain], 1)
    agreement = {
        f"attribution, {site}": require_equal(
            f"attribution, {site}", side.answers[0].values[f"attribution-patching/{site}"],
            plain.answers[0].values[f"attribution-patching/{site}"],
        )
        for site, side in sides.items()
    }  # fmt: skip
    measures = [{"method": "activation-patching", "sites": f"neurons[{layer}]"}]
    exact = Side(f"exact, neurons of layer {layer}", "with_assay.py", {**job, "measures": measures})
    take_turns([exact], given.exact_repeats)
    effects = exact.answers[0].values["activation-patching/neurons"]
    largest = np.argsort(-np.abs(effects.mean(1)), kind="stable")[: given.sample // 2]
    chosen = sorted({*largest.tolist(), *evenly(job["d_mlp"], given.sample - len(largest))})
    work = {"work": "patches", "site": "neurons", "width": 1, "patches": [(layer, neuron) for neuron in chosen]}
    loop = Side("plain hook loop", "with_hooks.py", {**job, **work})
    take_turns([loop], 1)
    agreement["exact"] = require_equal("exact", effects, loop.answers[0].values["activation-patching/neurons"], chosen)
    for side in (*sides.values(), exact):
        require_same_every_time(side)
    Result(
        "neurons",
        "Neurons",
        f"{given.model}, {job['n_layers'] * job['d_mlp']} neurons and {job['n_layers'] * job['n_heads']} heads, "
        f"{given.pairs} IOI pairs, one thread, float32. Exact: all {job['d_mlp']} neurons of layer {layer} of "
        f"{job['n_layers']} (layers count from 0).",
        list(sides.values()),
        [
            figure("attribution, neurons / heads", ratios(sides["neurons"], sides["heads"]), "times", "at most 1.2"),
            figure(f"exact, {job['d_mlp']} neurons of layer {layer}", exact.seconds, "s", "under 60"),
            figure("peak memory of the exact run", [exact.peak_bytes / 1e9], "GB"),
        ],
        agreement,
    ).finish(given.out)


if __name__ == "__main__":
    main()
