"""Exact patching of every attention head: assay, a plain hook loop, and peers, in one run.

All sides patch the clean run's head outputs into the corrupted prompts, all positions of a head at once. The others
may patch a part of the heads, evenly spread over the layers (``--peer-heads``): each patch costs them a whole forward
pass wherever it is, so their time is scaled up, but for the unpatched runs that are made once.
"""

from __future__ import annotations

from common import Side, evenly, make_job, parser, peers, take_turns
from results import Result, figure, ratios, require_equal, require_same_every_time

GOALS = {"transformer-lens": "at least 5", "nnsight": "at least 5"}
SCRIPTS = {"transformer-lens": "with_transformer_lens.py", "nnsight": "with_nnsight.py"}
VALUES = "activation-patching/heads"


def main() -> None:
    options = parser(__doc__, "replay", peers=True)
    options.add_argument("--peer-heads", type=int, default=27, help="heads that the others patch (default 27; 0: all)")
    given = options.parse_args()
    job = make_job(given.model, given.pairs, given.memory)
    total = job["n_layers"] * job["n_heads"]
    chosen = evenly(total, given.peer_heads or total)
    patches = {
        "work": "patches", "site": "heads", "patches": [divmod(number, job["n_heads"]) for number in chosen],
    }  # fmt: skip
    share = len(chosen) / total
    ours = Side("assay", "with_assay.py", {**job, "measures": [{"method": "activation-patching", "sites": "heads"}]})
    others = [Side("plain hook loop", "with_hooks.py", {**job, **patches}, share=share)]
    for name, python in peers(given.python, tuple(SCRIPTS)).items():
        others.append(Side(name, SCRIPTS[name], {**job, **patches}, python, share))
    take_turns([ours, *others], given.repeats)
    effects = ours.answers[0].values[VALUES]
    agreement = {
        other.name: require_equal(other.name, effects, other.answers[0].values[VALUES], chosen) for other in others
    }
    for side in (ours, *others):
        require_same_every_time(side)
    lengths = [len(row["clean"]) for row in job["rows"]]
    Result(
        "replay",
        "Exact patching of every head",
        f"{given.model}, {total} heads, {given.pairs} IOI pairs of {min(lengths)} to {max(lengths)} tokens, "
        "one thread, float32.",
        [ours, *others],
        [figure(f"{other.name} / assay", ratios(other, ours), "times", GOALS.get(other.name, "")) for other in others]
        + [figure("peak memory of assay", [ours.peak_bytes / 1e9], "GB", "under 2")],
        agreement,
    ).finish(given.out)


if __name__ == "__main__":
    main()
