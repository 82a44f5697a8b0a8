"""All pairs of a small model's components against a loop of full forward passes; those of a real one by second order.

``pairs``: the 190 pairs of the 20 heads and MLPs of sequence-sort, zero ablation, exact match. The loop runs every
pair by hooks and full forward passes, as many prompts at once as assay takes; both give the same numbers.

``heads``: all pairs of a real model's heads on IOI by second derivatives, one product with the Hessian for each head
and block of prompts; the largest pairs, and as many random ones, are checked by runs of their own. Blocks are kept in
``--work`` as they are finished, so that an interrupted run goes on where it was; a work folder is of one model, site
phrase and number of prompts.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

import assay
from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.engine.batches import make_batches
from assay.interactions.joint_ablation import ablated_runs, group_ablation

HERE = Path(__file__).parent
BLOCK = 4
"""Prompts that are finished together: all that is lost by an interruption."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=("pairs", "heads"))
    options.add_argument("--model", default="smollm2-135m", help="of heads")
    options.add_argument("--prompts", type=int, help="default: 1000 of pairs, 16 of heads")
    options.add_argument("--sites", default="heads", help="of heads, such as heads[0:2] for a trial")
    options.add_argument("--ablation", choices=("zero", "mean", "resample"), default="zero", help="of heads")
    options.add_argument("--exact", type=int, default=500, help="of heads: the largest pairs to run (default 500)")
    options.add_argument("--repeats", type=int, default=3, help="of pairs (default 3)")
    options.add_argument("--memory", default="2G")
    options.add_argument("--work", type=Path, default=Path("interactions-work"), help="of heads: what is kept")
    options.add_argument("--out", type=Path, help="file of results (default benchmarks/results/interactions-PART.json)")
    given = options.parse_args()
    torch.set_num_threads(1)
    found = pairs_of_a_small_model(given) if given.part == "pairs" else heads_of_a_real_model(given)
    found |= {"torch": torch.__version__, "machine": platform.machine(), "threads": 1}
    out = given.out or HERE / "results" / f"interactions-{given.part}.json"
    out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


def pairs_of_a_small_model(given: argparse.Namespace) -> dict[str, Any]:
    model = assay.load("sequence-sort")
    pairs = assay.tasks.sort(model, n=given.prompts or 1000, length=7)
    ours, theirs = [], []
    for _ in range(given.repeats):
        began = time.perf_counter()
        found = assay.measure_interactions(
            model, pairs, ablation="zero", metric="exact-match", memory=given.memory
        )  # fmt: skip
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        expected = loop_over_pairs(model, pairs, given.memory)
        theirs.append(time.perf_counter() - began)
    assert len(found.couples) == 190, "a pair is missing"
    return {
        "prompts": len(pairs),
        "pairs": len(found.couples),
        "assay_seconds": ours,
        "loop_seconds": theirs,
        "loop_over_assay": [other / mine for mine, other in zip(ours, theirs, strict=True)],
        "goal": "at least 3",
        "values_that_differ": int((found.joint != expected).sum()),
        "values": int(found.joint.size),
        "forward_equivalents": found.cost["forward_equivalents"],
    }


@torch.no_grad()
def loop_over_pairs(model: assay.Model, pairs: Any, memory: str) -> np.ndarray:
    """(P, n) losses by hooks on a plain model: the module that a head or MLP ends in, a full forward pass per pair."""
    hf, metric = model.hf, METRICS["exact-match"]
    places = [("head", layer, head) for layer in range(4) for head in range(4)] + [("mlp", i, 0) for i in range(4)]
    (batch,) = make_batches(model, encode(model, pairs, metric), "ablation", 1 << 40, by_start=False)
    at_once = max(1, sum(b.rows for b in make_batches(model, encode(model, pairs, metric), "ablation", 1 << 31)[:1]))

    def hooked(place: tuple[str, int, int]) -> Any:
        kind, layer, head = place
        block = hf.gpt_neox.layers[layer]
        if kind == "mlp":
            return block.mlp.register_forward_hook(lambda _, __, output: torch.zeros_like(output))

        def without(_: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            z = args[0].clone()
            z[..., 32 * head : 32 * (head + 1)] = 0
            return (z,)

        return block.attention.dense.register_forward_pre_hook(without)

    def right() -> np.ndarray:
        parts = []
        for first in range(0, batch.rows, at_once):
            part = batch.part(slice(first, first + at_once))
            count = part.targets.positions.shape[1]
            logits = hf(input_ids=part.base, use_cache=False, logits_to_keep=count).logits
            parts.append(metric.row_values(logits, part.targets))
        found: np.ndarray = torch.cat(parts).double().numpy()
        return found

    clean, losses = right(), []
    for couple in combinations(places, 2):
        hooks = [hooked(place) for place in couple]
        losses.append(clean - right())
        for hook in hooks:
            hook.remove()
    return np.array(losses)


def heads_of_a_real_model(given: argparse.Namespace) -> dict[str, Any]:
    model = assay.load(given.model)
    pairs = assay.tasks.ioi(model, n=given.prompts or 16)
    given.work.mkdir(parents=True, exist_ok=True)
    began, sums, products = time.perf_counter(), None, 0
    method = group_ablation(given.ablation, "benchmark", second_order=True)
    for number in range(0, len(pairs), BLOCK):
        path = given.work / f"second-{number}.npy"
        if not path.exists():
            with ablated_runs(
                method, model, pairs[number : number + BLOCK], sites=given.sites, memory=given.memory, force=True,
                progress=True, **references(given, pairs),
            ) as runs:  # fmt: skip
                second = runs.derivatives()[1].sum(2)
            np.save(path.with_suffix(".part.npy"), second)
            path.with_suffix(".part.npy").rename(path)
        second = np.load(path)
        products = len(second)
        sums = second if sums is None else sums + second
    assert sums is not None
    mean = sums / len(pairs)
    seconds = time.perf_counter() - began
    couples = np.array(list(combinations(range(len(mean)), 2)))
    predicted = mean[couples[:, 0], couples[:, 1]]
    largest = couples[np.argsort(-np.abs(predicted), kind="stable")[: given.exact]]
    drawn = couples[np.random.default_rng(0).choice(len(couples), min(given.exact, len(couples)), replace=False)]
    began = time.perf_counter()
    exact = {"largest": exact_of(model, pairs, given, "largest", largest)}
    exact["random"] = exact_of(model, pairs, given, "random", drawn)
    found: dict[str, Any] = {
        "model": given.model,
        "ablation": given.ablation,
        "prompts": len(pairs),
        "components": len(mean),
        "pairs": len(couples),
        "products_per_block": products,
        "seconds_second_order": seconds,
        "seconds_exact": time.perf_counter() - began,
    }
    for name, (of, chosen) in {"largest": (exact["largest"], largest), "random": (exact["random"], drawn)}.items():
        by_second = mean[chosen[:, 0], chosen[:, 1]]
        ranks = [values.argsort().argsort() for values in (of, by_second)]
        found[name] = {
            "pairs": len(chosen),
            "pearson": float(np.corrcoef(of, by_second)[0, 1]),
            "spearman": float(np.corrcoef(*ranks)[0, 1]),
            "same_sign": float((np.sign(of) == np.sign(by_second)).mean()),
        }
    return found


def references(given: argparse.Namespace, pairs: Any) -> dict[str, Any]:
    """Where blocks of prompts take their means from: all prompts and positions."""
    return {"reference": pairs, "mean": "all-positions"} if given.ablation == "mean" else {}


def exact_of(model: assay.Model, pairs: Any, given: argparse.Namespace, name: str, couples: np.ndarray) -> np.ndarray:
    """(P,) mean interactions, each run; kept prompt by prompt."""
    total = np.zeros(len(couples))
    for number in range(0, len(pairs), BLOCK):
        path = given.work / f"exact-{name}-{len(couples)}-{number}.npy"
        if not path.exists():
            with ablated_runs(
                group_ablation(given.ablation), model, pairs[number : number + BLOCK], sites=given.sites,
                memory=given.memory, force=True, progress=True, **references(given, pairs),
            ) as runs:  # fmt: skip
                singles = [(i,) for i in range(len(runs.components))]
                losses = runs.losses([*singles, *map(tuple, couples.tolist())]).sum(1)
            alone, joint = losses[: len(singles)], losses[len(singles) :]
            np.save(path.with_suffix(".part.npy"), joint - alone[couples[:, 0]] - alone[couples[:, 1]])
            path.with_suffix(".part.npy").rename(path)
        total += np.load(path)
    return total / len(pairs)


if __name__ == "__main__":
    main()
