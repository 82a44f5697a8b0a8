"""What ``assay plan`` foresees, beside what runs then take: forward-equivalents, seconds and peak memory.

Each run is a process of its own with one thread. Seconds are of the work, as the run's cost says, without loading.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
METHODS = ("activation-patching", "screen", "attribution-patching", "gim", "hvp-sampled", "hvp")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", action="append", help="name, or name=folder; default: both real ones")
    options.add_argument("--task", default="ioi")
    options.add_argument("--sites", default="heads,mlps")
    options.add_argument("--pairs", type=int, default=16)
    options.add_argument("--methods", default=",".join(METHODS))
    options.add_argument("--out", type=Path, default=HERE / "results" / "planning.json")
    options.add_argument("--run", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.run:
        print(json.dumps(run(given)))
        return
    models = [model.split("=") for model in given.model or ("smollm2-135m", "gemma-3-270m")]
    methods = given.methods.split(",")
    found = []
    for name, *folder in models:
        where = folder[0] if folder else name
        foreseen = {line["method"]: line for line in plan(where, given, methods)["lines"]}
        for method in methods:
            measured = in_process(where, given, method)
            said = foreseen[method]
            line = {"model": name, "method": method}
            for of in ("forward_equivalents", "seconds", "bytes"):
                line |= {of: measured[of], f"{of}_foreseen": said[of], f"{of}_ratio": said[of] / measured[of]}
            print(json.dumps(line), flush=True)
            found.append(line)
    given.out.write_text(json.dumps(found, indent=2) + "\n")


def plan(model: str, given: argparse.Namespace, methods: list[str]) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "assay", "plan", model, "--task", given.task, "--n", str(given.pairs), "--sites",
        given.sites, "--methods", ",".join(method for method in methods if method != "screen"), "--json",
    ]  # fmt: skip
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def in_process(model: str, given: argparse.Namespace, method: str) -> dict[str, float]:
    command = [
        sys.executable, __file__, "--run", method, "--model", model, "--task", given.task, "--pairs",
        str(given.pairs), "--sites", given.sites,
    ]  # fmt: skip
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


def run(given: argparse.Namespace) -> dict[str, float]:
    import torch

    import assay
    from assay.data.tasks import make_pairs

    torch.set_num_threads(1)
    model = assay.load(given.model[0])
    pairs = make_pairs(model, given.task, given.pairs)
    if given.run == "screen":
        scores = assay.screen(model, pairs, sites=given.sites)
    else:
        scores = assay.measure(given.run, model, pairs, sites=given.sites)
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "forward_equivalents": scores.cost["forward_equivalents"],
        "seconds": sum(scores.cost["seconds"].values()),
        "bytes": 1024 * int(peak.split()[1]),
    }


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    main()
