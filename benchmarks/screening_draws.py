"""Do the intervals of assay screen hold, and what do they save? Against exhaustive truth, over many calibration draws.

Arrays, once a setting:  python benchmarks/screening_draws.py make MODEL TASK FILE.npz [--n 4] [--sites heads]
Draws:                   python benchmarks/screening_draws.py draws FILE.npz ... [--top 10] [--level 0.95] [--draws 500]

A file holds kinds (C,), first_order, quadratic, quadratic_stderr and exact (C, n). Components whose patch changes
nothing are left out, as `assay screen` leaves them out. A line gives, over the draws: coverage of calibrated intervals
by members outside the sample; their median half-width, and how many times smaller it is than with one width for all;
how many times smaller it could be; the share of the true top that is in the screened top; exact runs; how often the
bound on wrong intervals was broken. *Could be*: if errors were normal around a scale that is known perfectly, for each
component by itself. Wherever errors of most components are not much smaller than the largest, no scale does much.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.stats import norm

import assay
from assay.data.tasks import make_pairs
from assay.engine.cost import CostMeter
from assay.methods import METHODS
from assay.methods.plan import make_plan
from assay.methods.preparation import prepared
from assay.methods.sharded import Computer
from assay.reliability import Estimates
from assay.screening.estimates import FAR_END, FIRST_ORDER, MOVES, QUADRATIC, VARIANCE, estimates_with
from assay.studies.draws import Draws, draw


def make(model_name: str, task: str, path: Path, n: int, sites: str, probes: int, seed: int) -> None:
    """Estimates and exact effects of every component, written as arrays."""
    model = assay.load(model_name)
    pairs = make_pairs(model, task, n, seed)
    exact = assay.activation_patching(model, pairs, sites=sites, progress=True)
    kinds = np.array([component.site for component in exact.components])
    method = estimates_with(probes)
    tables = np.zeros((method.outputs, *exact.values.shape))
    with prepared(METHODS["activation-patching"], model, pairs, sites=sites, seed=seed) as run:
        _, measured = run.measure_baseline(CostMeter(), by_start=True, force=True)
        computer = Computer(run, measured, CostMeter(), by_start=True, show=True)
        for kind in dict.fromkeys(kinds):
            members = np.flatnonzero(kinds == kind)
            batches = [batch for batch, _ in measured]
            shards = make_plan(model, exact.components, batches, by_component=False, members=members.tolist())
            tables[:, members] = computer.values(method, shards)
    live = tables[MOVES].any(1)
    np.savez(
        path,
        kinds=kinds[live],
        first_order=tables[FIRST_ORDER][live],
        far_end=tables[FAR_END][live],
        quadratic=tables[QUADRATIC][live],
        quadratic_stderr=np.sqrt(tables[VARIANCE])[live],
        exact=exact.values[live],
    )


def draw_from(path: Path, top: int, level: float, draws: int) -> tuple[int, Draws]:
    """Screen the components of a file with many seeds; also their number."""
    arrays = np.load(path)
    tables = [arrays[name] for name in ("first_order", "quadratic", "quadratic_stderr")]
    exact = arrays["exact"]
    kinds = arrays["kinds"].tolist() if "kinds" in arrays else ["all"] * len(exact)
    return len(exact), draw(Estimates(kinds, *tables, far_end=arrays["far_end"]), exact, top, level, range(draws))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("model")
    making.add_argument("task")
    making.add_argument("file", type=Path)
    making.add_argument("--n", type=int, default=4)
    making.add_argument("--sites", default="heads")
    making.add_argument("--probes", type=int, default=8)
    making.add_argument("--seed", type=int, default=0)
    drawing = commands.add_parser("draws")
    drawing.add_argument("files", type=Path, nargs="+")
    drawing.add_argument("--top", type=int, default=10)
    drawing.add_argument("--level", type=float, default=0.95)
    drawing.add_argument("--draws", type=int, default=500)
    given = parser.parse_args()
    if given.command == "make":
        make(given.model, given.task, given.file, given.n, given.sites, given.probes, given.seed)
        return
    print("| setting | coverage | half-width | constant / this | could be | recall | exact runs | bound broken |")
    print("|---|---|---|---|---|---|---|---|")
    of_normal = norm.ppf((1 + given.level) / 2) / norm.ppf(0.75)
    for path in given.files:
        count, found = draw_from(path, given.top, given.level, given.draws)
        width, constant = np.median(found.width), np.median(found.constant)
        runs = np.mean(found.runs)
        print(
            f"| {path.stem} | {np.mean(found.coverage):.4f} | {width:.4g} | {constant / width:.1f} | "
            f"{np.median(found.spread) / of_normal:.1f} | {np.mean(found.recall):.4f} | {runs:.1f} of {count} | "
            f"{np.mean(found.broken):.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
