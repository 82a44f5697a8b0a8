"""How each method's cost grows with layers, heads, neurons, positions and examples; and what it is at 9B and 70B.

``measured``: random Llama models around a base size, one axis varied at a time; the slope of log cost over log size.
``extrapolated``: `assay.planning.plan` on the configurations of Gemma 2 9B, Llama 3.1 8B and 70B, for a stated machine.
Tables are printed as they stand in ``docs/scaling.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import assay
from assay.planning import plan
from assay.planning.made_up import WORDS, made_up, word_tokenizer

HERE = Path(__file__).parent
METHODS = ("activation-patching", "attribution-patching", "gim", "hvp-sampled", "hvp", "integrated-gradients")
HEAD_WIDTH = 32


@dataclass(frozen=True)
class Size:
    layers: int = 6
    heads: int = 8
    """Of 32 numbers each; the residual stream is as wide as all of them."""
    neurons: int = 1024
    positions: int = 24
    """Of which clean and corrupted begin with half alike."""
    examples: int = 4


AXES = {
    "layers": (3, 6, 12, 18),
    "heads": (2, 4, 8, 16),
    "neurons": (512, 1024, 2048, 4096),
    "positions": (12, 24, 48, 72),
    "examples": (2, 4, 8, 16),
}
PROMPTS = {"n": 16, "tokens": (17, 9)}
"""As IOI's."""
GEMMA_9B = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
    "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "vocab_size": 256000, "query_pre_attn_scalar": 256,
}  # fmt: skip
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
LARGE = {"Llama 3.1 8B": LLAMA_8B, "Gemma 2 9B": GEMMA_9B, "Llama 3.1 70B": LLAMA_70B}
RATES = {"bfloat16": 989e12, "float32": 67e12}
"""Operations a second of one H100 SXM in dense matrix products, by its maker; of which 60 % are assumed."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=("measured", "extrapolated"))
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--out", type=Path, help="default benchmarks/results/scaling-PART.json")
    given = options.parse_args()
    torch.set_num_threads(1)
    found = measured(given.repeats) if given.part == "measured" else extrapolated()
    (given.out or HERE / "results" / f"scaling-{given.part}.json").write_text(json.dumps(found, indent=2) + "\n")


def measured(repeats: int) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    for axis, values in AXES.items():
        for value in values:
            size = replace(Size(), **{axis: value})
            for method, cost in costs_of(size, repeats):
                runs.append({"axis": axis, "method": method, **asdict(size), **cost})
                print(axis, value, method, cost, file=sys.stderr, flush=True)
    print("| method | " + " | ".join(AXES) + " |\n|---|" + "---:|" * len(AXES))
    slopes = {}
    for method in METHODS:
        cells = []
        for axis in AXES:
            mine = [run for run in runs if run["axis"] == axis and run["method"] == method]
            at = np.log([run[axis] for run in mine])
            both = [float(np.polyfit(at, np.log([run[of] for run in mine]), 1)[0]) for of in ("passes", "seconds")]
            slopes[f"{method}, {axis}"] = both
            cells.append(f"{both[0]:.2f} / {both[1]:.2f}")
        print(f"| `{method}` | " + " | ".join(cells) + " |", flush=True)
    return {"base": asdict(Size()), "slopes": slopes, "runs": runs}


def costs_of(size: Size, repeats: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Layer tokens (token positions times layers, backward twice) and seconds, without the baseline."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HEAD_WIDTH * size.heads, num_attention_heads=size.heads, num_hidden_layers=size.layers,
        intermediate_size=size.neurons, vocab_size=len(WORDS), max_position_embeddings=256,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = assay.load(LlamaForCausalLM(config).eval(), word_tokenizer())
    pairs = made_up([(size.positions, size.positions // 2)] * size.examples)
    of_baseline = assay.measure("random", model, pairs, sites="heads", force=True).cost["layer_tokens_forward"]
    for method in METHODS:
        seconds = []
        for _ in range(repeats + 1):
            cost = assay.measure(method, model, pairs, sites="heads,mlps", force=True).cost
            seconds.append(sum(cost["seconds"].values()) - cost["seconds"]["baseline"])
        passes = cost["layer_tokens_forward"] + 2 * cost["layer_tokens_backward"] - of_baseline
        yield method, {"passes": passes, "seconds": statistics.median(seconds[1:])}


def extrapolated() -> dict[str, Any]:
    found: dict[str, Any] = {"rates": RATES, "prompts": PROMPTS}
    for name, configuration in LARGE.items():
        lines = {}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(configuration))
            for dtype, rate in RATES.items():
                second_order = dtype == "float32"
                foreseen = plan(
                    folder, **PROMPTS, sites="heads,mlps", dtype=getattr(torch, dtype), operations_per_second=rate,
                    methods=[m for m in METHODS if (m in ("hvp", "hvp-sampled")) == second_order],
                )  # fmt: skip
                for line in foreseen.lines:
                    key = f"{line.method}{' with curvature' if line.method == 'screen' and second_order else ''}"
                    lines[key] = {"dtype": dtype, **asdict(line)}
        found[name] = {"parameters": foreseen.parameters, "components": foreseen.components, "lines": lines}
        print(f"\n{name}: {foreseen.parameters / 1e9:.1f} billion parameters, {foreseen.components} heads and MLPs\n")
        print("| method | forward-equivalents | weights | time, as assumed | memory |\n|---|---:|---|---:|---:|")
        for key, line in lines.items():
            print(
                f"| {key} | {line['forward_equivalents']:,.0f} | {line['dtype']} | {line['seconds'] / 60:.2g} min | "
                f"{line['bytes'] / 1e9:.0f} GB |",
                flush=True,
            )
    return found


if __name__ == "__main__":
    main()
