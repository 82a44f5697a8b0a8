"""What half-precision weights change: scores in bfloat16 and float16 beside those in float32, on real models.

Weights are rounded when they are loaded; softmax, norms, logits, metrics and products with deltas are in float32 in
either case. Differences are of means over prompts, relative to the largest effect in float32. What assay refuses is
written down.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import assay
from assay.errors import AssayError

HERE = Path(__file__).parent
METHODS = ("activation-patching", "attribution-patching")
TOP = 10


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", action="append", help="default: both real ones")
    options.add_argument("--pairs", type=int, default=16)
    options.add_argument("--sites", default="heads,mlps")
    options.add_argument("--out", type=Path, default=HERE / "results" / "half_precision.json")
    given = options.parse_args()
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    for name in given.model or ("smollm2-135m", "gemma-3-270m"):
        full = scores_in("float32", name, given)
        for dtype in ("bfloat16", "float16"):
            try:
                half = scores_in(dtype, name, given)
            except AssayError as error:
                lines.append({"model": name, "dtype": dtype, "refused": str(error)})
                continue
            for method in METHODS:
                lines.append({"model": name, "dtype": dtype, "method": method, **compared(full[method], half[method])})
                print(json.dumps(lines[-1]), flush=True)
    given.out.write_text(json.dumps({"pairs": given.pairs, "sites": given.sites, "lines": lines}, indent=2) + "\n")


def scores_in(dtype: str, name: str, given: argparse.Namespace) -> dict[str, assay.Scores]:
    model = assay.load(name, dtype=dtype)
    pairs = assay.tasks.ioi(model, n=given.pairs)
    return {method: assay.measure(method, model, pairs, sites=given.sites, force=True) for method in METHODS}


def compared(full: assay.Scores, half: assay.Scores) -> dict[str, float]:
    one, other = full.values.mean(1), half.values.mean(1)
    top = [set(np.argsort(-np.abs(values))[:TOP].tolist()) for values in (one, other)]
    gaps = [scores.baseline.clean.mean() - scores.baseline.corrupted.mean() for scores in (full, half)]
    return {
        "clean_minus_corrupted": float(gaps[0]),
        "clean_minus_corrupted_in_half": float(gaps[1]),
        "largest_effect": float(np.abs(one).max()),
        "largest_difference": float(np.abs(one - other).max()),
        "relative": float(np.abs(one - other).max() / np.abs(one).max()),
        "pearson": float(np.corrcoef(one, other)[0, 1]),
        "spearman": float(spearmanr(one, other).statistic),
        "top_10_in_common": len(top[0] & top[1]),
    }


if __name__ == "__main__":
    main()
