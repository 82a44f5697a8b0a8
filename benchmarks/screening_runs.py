"""What does assay screen save, and is it right? One run each, as from the command line, against exhaustive patching.

    python benchmarks/screening_runs.py smollm2-135m ioi facts
    python benchmarks/screening_runs.py smollm2-135m ioi --n 4 --sites neurons --top 50 --against neurons[0],neurons[22]

A row gives exact runs, forward-equivalents (baseline included) of the screening and of patching everything, how many
of the true top were found, and of how many of the unverified components the interval holds the exact effect. With
``--against``, truth is known of those sites alone: *found* then says how many components of theirs that belong to the
top, by their exact effects, were missed.
"""

from __future__ import annotations

import argparse

import numpy as np

import assay
from assay.data.tasks import make_pairs
from assay.screening import ScreenedScores


def row(found: ScreenedScores, truth: assay.Scores, top: int, whole: bool) -> str:
    """A row of the table: the screening held against exact effects of all of its components, or of some."""
    place = {component: i for i, component in enumerate(found.components)}
    where = np.array([place[component] for component in truth.components])
    exact = truth.values.mean(1)
    unverified = np.array([found.verdicts[i] != "verified" for i in where])
    inside = ((exact >= found.lower[where]) & (exact <= found.upper[where]))[unverified]
    if whole:
        largest = where[np.argsort(-np.abs(exact), kind="stable")[:top]]
        right = f"{len(np.intersect1d(largest, found.leaders))} of {top}"
        spent = f"{truth.cost['forward_equivalents']:.1f}"
    else:
        last = np.abs(found.importance[found.leaders[-1]])
        missed = np.setdiff1d(where[np.abs(exact) > last], found.leaders)
        right, spent = f"{len(missed)} missed", "not run"
    held = f"{inside.sum()} of {len(inside)}"
    return (
        f"{found.probes} | {found.runs} of {len(found.components)} | {found.cost['forward_equivalents']:.1f} | {spent} "
        f"| {right} | {held} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--sites", default="heads")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--probes", type=int, nargs="+", default=[8, 0])
    parser.add_argument("--against", help="sites that are patched exhaustively; default: all")
    given = parser.parse_args()
    model = assay.load(given.model)
    print("| setting | probes asked | used | exact runs | fe | fe, exhaustive | true top found | inside |")
    print("|---|---|---|---|---|---|---|---|")
    for task in given.tasks:
        for n in given.n:
            pairs = make_pairs(model, task, n)
            truth = assay.activation_patching(model, pairs, sites=given.against or given.sites)
            for probes in given.probes:
                found = assay.screen(model, pairs, sites=given.sites, top=given.top, probes=probes)
                cells = row(found, truth, given.top, given.against is None)
                print(f"| {given.model} {task} {n} | {probes} | {cells}", flush=True)


if __name__ == "__main__":
    main()
