"""``assay score --jobs 2`` against ``--jobs 1``: wall time of the whole command, and the bytes of its scores.

Both commands load the model, check it and write a run folder; each process computes with one thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Answer, Side, environment, parser, take_turns_with
from results import Result, figure, ratios


def main() -> None:
    options = parser(__doc__, "jobs")
    options.add_argument("--sites", default="heads", help="what is patched exactly (default heads)")
    options.add_argument("--jobs", type=int, default=2, help="processes of the faster side (default 2)")
    given = options.parse_args()
    command = [
        sys.executable, "-c", "from assay.cli import main; main()", "score",
        given.model, "--task", "ioi", "--n", str(given.pairs),
        "--method", "activation-patching", "--sites", given.sites, "--memory", given.memory,
    ]  # fmt: skip
    one, many = (Side(f"--jobs {jobs}", "", {"jobs": jobs}) for jobs in (1, given.jobs))
    scores: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as scratch:

        def ask(side: Side) -> Answer:
            folder = Path(scratch) / f"run-{len(scores)}"
            log = Path(scratch) / "log"
            began = time.perf_counter()
            with log.open("w") as output:
                process = subprocess.Popen(
                    [*command, "--jobs", str(side.job["jobs"]), "--out", str(folder)],
                    stdout=output, stderr=output, env=environment(Path(sys.executable)),
                )  # fmt: skip
                _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
            if os.waitstatus_to_exitcode(status) != 0:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
                raise SystemExit(f"{side.name} failed:\n{tail}")
            scores.append((folder / "scores.parquet").read_bytes())
            if scores[-1] != scores[0]:
                raise SystemExit(f"{side.name}: scores.parquet has other bytes than that of the first run.")
            unit = 1 if sys.platform == "darwin" else 1024
            return Answer(seconds, seconds, usage.ru_maxrss * unit, None, {})

        take_turns_with(ask, [one, many], given.repeats)
    Result(
        "jobs",
        "Two processes",
        f"assay score {given.model}, --sites {given.sites}, {given.pairs} IOI pairs, one thread in each process, "
        "float32. The whole command, loading included; memory is that of the largest process.",
        [one, many],
        [figure(f"--jobs 1 / --jobs {given.jobs}", ratios(one, many), "times", "at least 1.7")],
        notes=[f"scores.parquet has the same bytes in all {len(scores)} runs."],
    ).finish(given.out)


if __name__ == "__main__":
    main()
