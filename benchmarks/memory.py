"""500 runs in one process: resident memory stays flat, and every run gives the same numbers.

Every other run is attribution patching of all heads and MLPs, the rest exact patching of the last layer's. The memory
after a run is averaged over an early and a late stretch of the runs; more than two per cent of growth is a failure.
"""

from __future__ import annotations

import statistics

import numpy as np
from common import Side, make_job, parser, take_turns
from results import Result, figure

GROWTH_ALLOWED = 0.02


def main() -> None:
    given = parser(__doc__, "memory", pairs=1, repeats=500).parse_args()
    job = make_job(given.model, given.pairs, given.memory)
    last = job["n_layers"] - 1
    measures = [
        {"method": "attribution-patching", "sites": "heads,mlps"},
        {"method": "activation-patching", "sites": f"heads[{last}],mlps[{last}]"},
    ]
    side = Side("assay", "with_assay.py", {**job, "measures": measures, "in_turn": True})
    take_turns([side], given.repeats)
    for number, answer in enumerate(side.answers):
        first = side.answers[number % len(measures)].values
        for name, values in answer.values.items():
            if not np.array_equal(values, first[name]):
                raise SystemExit(f"Run {number + 1} gave other values for {name} than the first of its kind.")
    memory = [answer.bytes_now for answer in side.answers if answer.bytes_now is not None]
    if len(memory) < len(side.answers):
        raise SystemExit("This system does not say how much memory a process holds now (/proc/self/status).")
    stretch = max(1, len(memory) // 10)
    early, late = memory[stretch : 2 * stretch] or memory, memory[-stretch:]
    growth = statistics.mean(late) / statistics.mean(early) - 1
    Result(
        "memory",
        "Many runs in one process",
        f"{given.model}, {len(memory)} runs: attribution patching of all heads and MLPs, and exact patching of the "
        f"last layer's, in turn; {given.pairs} IOI pair, one thread, float32.",
        [side],
        [
            figure(f"memory after runs {stretch + 1} to {2 * stretch}", [value / 1e9 for value in early], "GB"),
            figure(f"memory after the last {stretch} runs", [value / 1e9 for value in late], "GB"),
            figure("growth", [100 * growth], "%", f"at most {100 * GROWTH_ALLOWED:.0f}"),
        ],
        notes=[f"All {len(memory)} runs gave the same values, bit for bit."],
    ).finish(given.out)
    if growth > GROWTH_ALLOWED:
        raise SystemExit(f"Memory grew by {growth:.1%}.")


if __name__ == "__main__":
    main()
