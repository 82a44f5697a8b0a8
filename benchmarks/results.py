"""Checks that two sides gave the same numbers; the table and the file of a benchmark's results."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import HERE, Side

FORMAT = 1
TOLERANCE = 1e-3
"""How far two sides' values may lie apart, as a share of the largest value."""


def require_equal(name: str, ours: np.ndarray, theirs: np.ndarray, at: Sequence[int] | None = None) -> dict[str, float]:
    """The largest difference of two sides' numbers, which must be small on the scale of our largest.

    Args:
        at: which of ours the other side has; all if None.

    Raises:
        SystemExit: the sides did not compute the same.
    """
    scale = float(np.abs(ours).max())
    ours = ours if at is None else ours[list(at)]
    if ours.shape != theirs.shape:
        raise SystemExit(f"{name}: {theirs.shape} values instead of {ours.shape}")
    largest = float(np.abs(ours - theirs).max())
    if not (scale > 0 and largest <= TOLERANCE * scale):
        raise SystemExit(
            f"{name}: values differ by {largest:.3g} where the largest is {scale:.3g}. Not the same numbers."
        )
    return {"largest_difference": largest, "largest_value": scale}


def require_same_every_time(side: Side) -> None:
    for answer in side.answers[1:]:
        for name, values in answer.values.items():
            require_equal(f"{side.name}, {name}, first run and a later one", side.answers[0].values[name], values)


def figure(what: str, values: Sequence[float], unit: str = "", goal: str = "") -> dict[str, Any]:
    """A number that the benchmark is about, over its rounds."""
    return {
        "what": what, "unit": unit, "goal": goal,
        "median": statistics.median(values), "low": min(values), "high": max(values), "values": list(values),
    }  # fmt: skip


def ratios(numerator: Side, denominator: Side) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(numerator.seconds, denominator.seconds, strict=True)]


@dataclass
class Result:
    """What a benchmark found, to be printed and written."""

    name: str
    title: str
    setting: str
    sides: Sequence[Side]
    figures: list[dict[str, Any]]
    agreement: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        reference = self.sides[0]
        return {
            "format": FORMAT,
            "name": self.name,
            "title": self.title,
            "setting": self.setting,
            "machine": machine(),
            "commit": commit(),
            "sides": [
                {
                    "name": side.name,
                    "versions": side.versions,
                    "seconds": side.seconds,
                    "measured_seconds": [answer.measured for answer in side.answers],
                    "share_of_patches": side.share,
                    "ratios": ratios(side, reference),
                    "peak_bytes": side.peak_bytes,
                }
                for side in self.sides
            ],
            "figures": self.figures,
            "agreement": self.agreement,
            "notes": self.notes,
        }

    def finish(self, out: Path) -> None:
        """Print the table and write the file."""
        content = self.content()
        print("\n".join(table(content)))
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = out.with_name(f".{out.name}.part")
        scratch.write_text(json.dumps(content, indent=2) + "\n")
        scratch.replace(out)
        print(f"Written: {out}")


def commit() -> str | None:
    """Of the code that was measured, with a mark if it was changed since (results do not count)."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (
            "+" if git("status", "--short", "../src", ".", ":!results") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor)
    except OSError:
        pass
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def table(content: dict[str, Any]) -> list[str]:
    """The result as Markdown."""
    lines = [f"## {content['title']}", "", content["setting"], ""]
    if content["sides"]:
        lines += [
            "| side | median | spread | times the first | spread | peak memory |",
            "|---|---:|---:|---:|---:|---:|",
        ]
    for side in content["sides"]:
        mark = "" if side["share_of_patches"] == 1 else " *"
        cells = (
            side["name"] + mark,
            f"{statistics.median(side['seconds']):.3g} s",
            spread(side["seconds"]),
            f"{statistics.median(side['ratios']):.2f}",
            spread(side["ratios"]),
            f"{side['peak_bytes'] / 1e9:.2f} GB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    scaled = [side for side in content["sides"] if side["share_of_patches"] != 1]
    if scaled:
        shares = ", ".join(f"{side['name']} {side['share_of_patches']:.0%}" for side in scaled)
        lines += [
            "",
            f"\\* Did a part of the patches, evenly spread over the layers ({shares}); its time is scaled up to all.",
        ]
    if content["figures"]:
        lines += ["", "| figure | median | spread | goal |", "|---|---:|---:|---:|"]
    for row in content["figures"]:
        one = f"{row['median']:.3g} {row['unit']}".strip()
        lines.append(f"| {row['what']} | {one} | {spread([row['low'], row['high']])} | {row['goal'] or '–'} |")
    if content["agreement"]:
        lines += ["", "Same numbers: " + "; ".join(
            f"{name} within {found['largest_difference']:.1e} of values up to {found['largest_value']:.2f}"
            for name, found in content["agreement"].items()
        ) + "."]  # fmt: skip
    lines += [line for note in content["notes"] for line in ("", note)]
    return [*lines, ""]


def spread(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"
