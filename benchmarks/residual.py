"""The residual stream before each layer at each position of one prompt pair: assay and TransformerLens.

TransformerLens's side is its ``get_act_patch_resid_pre``. It may patch a part of the places, evenly spread
(``--peer-places``), and is scaled up: every patch costs it a whole forward pass.
"""

from __future__ import annotations

from common import Side, evenly, make_job, parser, peers, take_turns
from results import Result, figure, ratios, require_equal, require_same_every_time

VALUES = "activation-patching/residual-pre"


def main() -> None:
    options = parser(__doc__, "residual", pairs=1, peers=True)
    options.add_argument(
        "--peer-places", type=int, default=150, help="places that the peer patches (default 150; 0: all)"
    )
    given = options.parse_args()
    job = make_job(given.model, given.pairs, given.memory)
    positions = len(job["rows"][0]["clean"])
    total = job["n_layers"] * positions
    chosen = evenly(total, given.peer_places or total)
    places = [divmod(number, positions) for number in chosen]
    measures = [{"method": "activation-patching", "sites": "residual-pre@each"}]
    ours = Side("assay", "with_assay.py", {**job, "measures": measures})
    others = []
    if python := peers(given.python, ("transformer-lens",)).get("transformer-lens"):
        work = {"work": "patches", "site": "residual-pre", "patches": places}
        others = [Side("transformer-lens", "with_transformer_lens.py", {**job, **work}, python, len(chosen) / total)]
    take_turns([ours, *others], given.repeats, warmups=1)
    effects = ours.answers[0].values[VALUES]
    agreement = {
        other.name: require_equal(other.name, effects, other.answers[0].values[VALUES], chosen) for other in others
    }
    for side in (ours, *others):
        require_same_every_time(side)
    Result(
        "residual",
        "Residual stream, every layer and position of one pair",
        f"{given.model}, {job['n_layers']} layers × {positions} positions, {given.pairs} IOI pair, one thread, "
        "float32.",
        [ours, *others],
        [figure(f"{other.name} / assay", ratios(other, ours), "times", "at least 20") for other in others],
        agreement,
    ).finish(given.out)


if __name__ == "__main__":
    main()
