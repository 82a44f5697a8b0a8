"""Exact patching of every head in prompts of 60 tokens whose pairs differ in the last five only.

assay replays from the first difference on; the plain hook loop runs whole prompts. The loop may patch a part of the
heads (``--peer-heads``) and is scaled up.
"""

from __future__ import annotations

from common import Side, evenly, make_job, parser, take_turns
from results import Result, figure, ratios, require_equal, require_same_every_time

VALUES = "activation-patching/heads"


def main() -> None:
    options = parser(__doc__, "long_prompt", pairs=8, repeats=2)
    options.add_argument("--tokens", type=int, default=60, help="of every prompt (default 60)")
    options.add_argument("--peer-heads", type=int, default=27, help="heads that the loop patches (default 27; 0: all)")
    given = options.parse_args()
    job = make_job(given.model, given.pairs, given.memory, tokens=given.tokens)
    total = job["n_layers"] * job["n_heads"]
    chosen = evenly(total, given.peer_heads or total)
    work = {"work": "patches", "site": "heads", "patches": [divmod(number, job["n_heads"]) for number in chosen]}
    ours = Side("assay", "with_assay.py", {**job, "measures": [{"method": "activation-patching", "sites": "heads"}]})
    loop = Side("plain hook loop", "with_hooks.py", {**job, **work}, share=len(chosen) / total)
    take_turns([ours, loop], given.repeats)
    effects = ours.answers[0].values[VALUES]
    agreement = {loop.name: require_equal(loop.name, effects, loop.answers[0].values[VALUES], chosen)}
    for side in (ours, loop):
        require_same_every_time(side)
    Result(
        "long_prompt",
        "A long prompt that differs late",
        f"{given.model}, {total} heads, {given.pairs} IOI pairs of {given.tokens} tokens that differ in the last five "
        "only, one thread, float32.",
        [ours, loop],
        [figure("plain hook loop / assay", ratios(loop, ours), "times", "at least 20")],
        agreement,
    ).finish(given.out)


if __name__ == "__main__":
    main()
