"""Many runs in one process: does memory stay flat, and is every result the same to the bit?

    OMP_NUM_THREADS=1 python benchmarks/memory.py --out benchmarks/results/memory.json

Runs exact and first-order patching of the bundled sorting model in turn. The first tenth warms up allocators and
caches; after that, the slope of a straight line through the resident memory says what a run leaves behind.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import assay

PAGE = 4096
METHODS = ("activation-patching", "attribution-patching", "zero-ablation", "two-point")


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = assay.load("sequence-sort")
    pairs = assay.tasks.sort(model, n=4)
    expected = {method: assay.measure(method, model, pairs).values for method in METHODS}
    equal, memory = 0, []
    for number in range(options.runs):
        method = METHODS[number % len(METHODS)]
        equal += bool((assay.measure(method, model, pairs).values == expected[method]).all())
        memory.append(resident_mb())
    after = np.array(memory[options.runs // 10 :])
    slope = float(np.polyfit(np.arange(len(after)), after, 1)[0])
    result = {
        "runs": options.runs,
        "results_equal": equal,
        "resident_mb_after_warm_up": round(after[0], 1),
        "resident_mb_at_end": round(after[-1], 1),
        "resident_mb_highest": round(float(after.max()), 1),
        "kb_left_behind_by_a_run": round(slope * 1024, 2),
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
