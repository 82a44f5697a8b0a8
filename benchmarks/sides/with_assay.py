"""The side of assay: measure what the job says, as a user would call it; all of it, or one measure a run in turn."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from serve import Run, Values, serve

import assay


def prepare(job: dict[str, Any]) -> Run:
    model = assay.load(job["folder"])
    pairs = assay.PromptPairs(
        tuple(assay.PromptPair(**pair) for pair in job["pairs"]), task=job["task"], metric="logit-diff"
    )

    in_turn = cycle(job["measures"])

    def run() -> tuple[Values, float]:
        values: Values = {}
        for measure in [next(in_turn)] if job.get("in_turn") else job["measures"]:
            scores = assay.measure(
                measure["method"], model, pairs, sites=measure["sites"], memory=job["memory"], force=True
            )
            for site in {component.site: None for component in scores.components}:
                mine = [i for i, component in enumerate(scores.components) if component.site == site]
                keys = [(scores.components[i].layer, scores.components[i].unit or 0) for i in mine]
                positions = [scores.components[i].position for i in mine]
                order = sorted(range(len(mine)), key=lambda i: (keys[i][0], positions[i] or 0, keys[i][1]))
                values[f"{measure['method']}/{site}"] = scores.values[np.array(mine)[order]]
            values["baseline/clean"], values["baseline/corrupted"] = scores.baseline.clean, scores.baseline.corrupted
        return values, 0.0

    return run


if __name__ == "__main__":
    serve(prepare)
