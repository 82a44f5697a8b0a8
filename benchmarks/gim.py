"""A backward pass under GIM's rules against a plain one: 32 prompts of 60 tokens, each forward and backward once.

The plain side is Hugging Face's model with its own attention. ``plain rules`` is assay's attention with nothing else
changed; the difference to it is what the rules cost. Putting them on and taking them off is part of the time.
"""

from __future__ import annotations

from common import Side, make_job, parser, take_turns
from results import Result, figure, ratios, require_equal, require_same_every_time


def main() -> None:
    options = parser(__doc__, "gim", pairs=32, repeats=10)
    options.add_argument("--tokens", type=int, default=60, help="of every prompt (default 60)")
    given = options.parse_args()
    job = make_job(given.model, given.pairs, given.memory, tokens=given.tokens)
    gim = Side("gim", "with_rules.py", {**job, "rules": "gim"})
    unchanged = Side("plain rules", "with_rules.py", {**job, "rules": "plain"})
    passes = Side("plain passes", "with_rules.py", {**job, "rules": None})
    sides = [gim, unchanged, passes]
    take_turns(sides, given.repeats, warmups=1)
    expected = passes.answers[0].values
    agreement = {
        "gim, metric": require_equal("gim, metric", expected["metric"], gim.answers[0].values["metric"]),
        **{
            f"plain rules, {what}": require_equal(what, expected[what], unchanged.answers[0].values[what])
            for what in ("metric", "gradient")
        },
    }
    for side in sides:
        require_same_every_time(side)
    Result(
        "gim",
        "A backward pass under GIM's rules",
        f"{given.model}, {given.pairs} prompts of {given.tokens} tokens, one thread, float32, gradient at the token "
        "embeddings.",
        sides,
        [
            figure("gim / plain passes", ratios(gim, passes), "times", "at most 1.5"),
            figure("gim / plain rules", ratios(gim, unchanged), "times"),
        ],
        agreement,
    ).finish(given.out)


if __name__ == "__main__":
    main()
