"""Exact patching of every head of SmolLM2-135M: replay against a plain hook loop, in one run.

Run: python benchmarks/replay.py [--pairs 16] [--repeats 3] [--out FILE.json]

Both sides patch the same heads on the same prompts with one thread in float32. The plain loop is the
shortest honest one: a pre-hook on the output projection, one forward pass of all prompts of one length
per head, answers read at the last position.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import assay
from assay.data.encoding import Row, encode
from assay.data.metrics import METRICS


def plain_hook_loop(model: assay.Model, rows: list[Row]) -> np.ndarray:
    """(heads, examples) effects of denoising."""
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[len(row.clean)].append(row)
    effects = np.zeros((model.n_layers * model.n_heads, len(rows)))
    for members in groups.values():
        clean, corrupted = (torch.tensor([getattr(row, side) for row in members]) for side in ("clean", "corrupted"))
        answer, wrong = torch.tensor([[row.tokens[0], row.wrong] for row in members]).T

        def metric(ids: torch.Tensor, answer: torch.Tensor = answer, wrong: torch.Tensor = wrong) -> torch.Tensor:
            logits = model.hf(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]
            each = torch.arange(len(ids))
            return logits[each, answer] - logits[each, wrong]

        kept: dict[int, torch.Tensor] = {}
        handles = [
            layer.output_projection.register_forward_pre_hook(
                lambda _, args, i=layer.index, kept=kept: kept.update({i: args[0]})
            )
            for layer in model.layers
        ]
        metric(clean)
        for handle in handles:
            handle.remove()
        base = metric(corrupted)
        examples = [row.example for row in members]
        for layer in model.layers:
            for head in range(model.n_heads):
                mine = slice(head * model.d_head, (head + 1) * model.d_head)

                def patch(
                    _: object, args: tuple[torch.Tensor], mine: slice = mine, source: torch.Tensor = kept[layer.index]
                ) -> tuple[torch.Tensor]:
                    z = args[0].clone()
                    z[..., mine] = source[..., mine]
                    return (z,)

                handle = layer.output_projection.register_forward_pre_hook(patch)
                effects[layer.index * model.n_heads + head, examples] = (metric(corrupted) - base).numpy()
                handle.remove()
    return effects


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = assay.load(options.model)
    pairs = assay.tasks.ioi(model, n=options.pairs)
    rows = encode(model, pairs, METRICS["logit-diff"])
    seconds: dict[str, list[float]] = {"plain hook loop": [], "assay": []}
    for _ in range(options.repeats):
        began = time.perf_counter()
        scores = assay.activation_patching(model, pairs, sites="heads")
        seconds["assay"].append(time.perf_counter() - began)
        began = time.perf_counter()
        with torch.no_grad():
            plain = plain_hook_loop(model, rows)
        seconds["plain hook loop"].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(seconds["plain hook loop"], seconds["assay"], strict=True)]
    result = {
        "model": options.model,
        "pairs": options.pairs,
        "heads": len(scores.components),
        "seconds": seconds,
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "largest_difference": float(np.abs(scores.values - plain).max()),
        "largest_effect": float(np.abs(plain).max()),
        "machine": f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} thread",
    }
    print(f"{options.model}, {len(scores.components)} heads, {options.pairs} IOI pairs, one thread, float32")
    for name, times in seconds.items():
        print(f"  {name:16s} median {statistics.median(times):7.1f} s   ({min(times):.1f} to {max(times):.1f})")
    print(f"  ratio            median {result['ratio_median']:7.2f}     ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"  largest difference {result['largest_difference']:.1e} of effects up to {result['largest_effect']:.2f}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
