"""The side of assay: edge scores, or the curve of given scores, as a user would call them."""

from __future__ import annotations

from typing import Any

import numpy as np
from serve import Run, Values, serve

import assay
from assay.circuits import circuit_curve, edge_scores, read_mib
from assay.circuits.first_order import eap, eap_ig_activations, eap_ig_inputs


def prepare(job: dict[str, Any]) -> Run:
    model = assay.load(job["folder"])
    pairs = assay.PromptPairs(
        tuple(assay.PromptPair(**pair) for pair in job["pairs"]), task=job["task"], metric="logit-diff"
    )
    options: dict[str, Any] = {"ungrouped": True, "memory": job["memory"], "force": True}
    methods = {
        "eap": eap,
        "eap-ig-inputs": lambda: eap_ig_inputs("left", job["steps"]),
        "eap-ig-activations": lambda: eap_ig_activations("right", job["steps"], pooled=True),
    }

    def scores() -> tuple[Values, float]:
        method = methods[job["method"]]()
        return {f"edges/{job['method']}": edge_scores(model, pairs, method, **options).mean[:, None]}, 0.0

    def curve() -> tuple[Values, float]:
        given = read_mib(job["scores"], model)
        options.pop("ungrouped", None)
        found = circuit_curve(model, pairs, given, absolute=True, **options)
        faithfulness = np.array([estimate.value for estimate in found.curve.faithfulness])
        areas = np.array([found.curve.cpr.value, found.curve.cmd.value])
        return {"curve/faithfulness": faithfulness[:, None], "curve/areas": areas[:, None]}, 0.0

    return {"scores": scores, "curve": curve}[job["work"]]


if __name__ == "__main__":
    serve(prepare)
