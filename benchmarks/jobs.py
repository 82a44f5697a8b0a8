"""``assay score --jobs 2`` against ``--jobs 1``: wall time of the whole command, and the bytes of its scores.

Both commands load the model, check it and write a run folder; each process computes with one thread. What comes before
the first patch is done once, whatever --jobs says, so a longer run (--longer) gains more.
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
    options.add_argument("--longer", type=int, default=64, help="pairs of a longer run (default 64)")
    options.add_argument("--jobs", type=int, default=2, help="processes of the faster side (default 2)")
    given = options.parse_args()
    command = [
        sys.executable, "-c", "from assay.cli import main; main()", "score",
        given.model, "--task", "ioi",
        "--method", "activation-patching", "--sites", given.sites, "--memory", given.memory,
    ]  # fmt: skip
    one, many, one_longer, many_longer = (
        Side(f"--jobs {jobs}, {pairs} pairs", "", {"jobs": jobs, "pairs": pairs})
        for pairs in (given.pairs, given.longer)
        for jobs in (1, given.jobs)
    )
    scores: dict[int, list[bytes]] = {given.pairs: [], given.longer: []}
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as scratch:

        def ask(side: Side) -> Answer:
            pairs = side.job["pairs"]
            folder = Path(scratch) / f"run-{pairs}-{len(scores[pairs])}"
            log = Path(scratch) / "log"
            began = time.perf_counter()
            with log.open("w") as output:
                process = subprocess.Popen(
                    [*command, "--n", str(pairs), "--jobs", str(side.job["jobs"]), "--out", str(folder)],
                    stdout=output, stderr=output, env=environment(Path(sys.executable)),
                )  # fmt: skip
                _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
            if os.waitstatus_to_exitcode(status) != 0:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
                raise SystemExit(f"{side.name} failed:\n{tail}")
            scores[pairs].append((folder / "scores.parquet").read_bytes())
            if scores[pairs][-1] != scores[pairs][0]:
                raise SystemExit(f"{side.name}: scores.parquet has other bytes than that of the first run.")
            unit = 1 if sys.platform == "darwin" else 1024
            return Answer(seconds, seconds, usage.ru_maxrss * unit, None, {})

        take_turns_with(ask, [one, many, one_longer, many_longer], given.repeats)
    Result(
        "jobs",
        "Two processes",
        f"assay score {given.model}, --sites {given.sites}, IOI pairs, one thread in each process, "
        "float32. The whole command, loading included; memory is that of the largest process.",
        [one, many, one_longer, many_longer],
        [
            figure(f"--jobs 1 / --jobs {given.jobs}, {given.pairs} pairs", ratios(one, many), "times", "at least 1.7"),
            figure(f"--jobs 1 / --jobs {given.jobs}, {given.longer} pairs", ratios(one_longer, many_longer), "times"),
        ],
        notes=[f"scores.parquet has the same bytes in all {2 * given.repeats} runs of either length."],
    ).finish(given.out)


if __name__ == "__main__":
    main()
