"""Writes docs/performance.md from the files in benchmarks/results.

Run: python benchmarks/page.py [--results FOLDER] [--out FILE.md]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from results import FORMAT, table

ORDER = (
    "replay",
    "residual",
    "long_prompt",
    "arithmetic",
    "attribution",
    "gim",
    "neurons",
    "circuits",
    "jobs",
    "memory",
)
HEADER = """# Performance

Written by `benchmarks/page.py` from `benchmarks/results`; how to run it again is in
`benchmarks/README.md`. Times are wall time once the model is loaded, unless a section says
otherwise. *Spread* is the least and the largest of all rounds, *times the first* is taken round by round against the
first side, *peak memory* is the largest resident memory of the side's own process, loading included. A benchmark that
finds two sides with different numbers writes nothing. A goal that is missed stays in the table.
"""
BOUNDS = """## What bounds the figures that miss their goals

- **All neurons of layer 15, exactly.** 1 536 neurons x 16 prompts from layer 15 on, five positions each, need
  about 12 000 GFLOP: 81 s at the rate of a layer's products on this machine. A minute is possible from about
  layer 20 on, or with fewer prompts.
- **`--jobs 2`.** The command imports, loads, checks and measures the baseline before it patches anything, which
  more processes do not shorten (workers start at once and load meanwhile); only patching is halved. So a longer
  run gains more.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "performance.md")
    options = parser.parse_args()
    parts, machines = [], []
    for name in ORDER:
        file = options.results / f"{name}.json"
        if not file.is_file():
            print(f"No {file}: left out.")
            continue
        content = json.loads(file.read_text())
        if content.get("format") != FORMAT:
            raise SystemExit(f"{file} is not of format {FORMAT}; run benchmarks/{name}.py again.")
        where = content["machine"]
        versions: dict[str, str] = {}
        for side in content["sides"]:
            versions.update(side["versions"])
        said = f"{where['processor']}, {where['cores']} cores, {where['system']}, Python {where['python']}" + "".join(
            f", {package} {version}" for package, version in sorted(versions.items())
        )
        machines.append((content["title"], said + (f"; commit {content['commit']}" if content["commit"] else "")))
        parts.append("\n".join(table(content)))
    if not parts:
        raise SystemExit(f"There are no results in {options.results}.")
    lines = [f"- {title}: {said}." for title, said in machines]
    options.out.write_text("\n".join([HEADER, *parts, BOUNDS, "## Machines and versions", "", *lines, ""]))
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main()
