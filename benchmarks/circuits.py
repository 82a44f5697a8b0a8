"""Edge scores and faithfulness curves: assay, and the EAP-IG package with MIB's evaluation.

``--tiny`` takes a random GPT-2 of three layers instead of a language model: no figures of speed, only whether EAP,
EAP-IG and circuit runs give the package's numbers. Without ``--python`` and ``--eap-ig`` assay runs alone.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import Side, make_job, parser, take_turns
from results import Result, figure, ratios, require_equal, require_same_every_time

METHODS = ("eap", "eap-ig-inputs")
VALUES: dict[str, tuple[str, ...]] = {name: (f"edges/{name}",) for name in (*METHODS, "eap-ig-activations")}
VALUES["curve"] = ("curve/faithfulness", "curve/areas")


def main() -> None:
    options = parser(__doc__, "circuits", repeats=1)
    options.add_argument("--python", type=Path, help="python of an environment with transformer-lens 3 (README.md)")
    options.add_argument("--eap-ig", type=Path, help="checkout of github.com/hannamw/EAP-IG")
    options.add_argument("--mib", type=Path, help="checkout of github.com/hannamw/MIB-circuit-track")
    options.add_argument("--steps", type=int, default=5, help="of EAP-IG (default 5)")
    options.add_argument("--tiny", action="store_true", help="a random GPT-2 instead of --model")
    given = options.parse_args()
    if given.python is not None and (given.eap_ig is None or given.mib is None):
        raise SystemExit("--python needs --eap-ig and --mib.")
    with tempfile.TemporaryDirectory(prefix="assay-circuits-") as folder:
        compare(given, Path(folder))


def compare(given: argparse.Namespace, folder: Path) -> None:
    model = tiny_gpt2(folder / "tiny") if given.tiny else given.model
    job = tiny_job(model, given.pairs, given.memory) if given.tiny else make_job(model, given.pairs, given.memory)
    job |= {"steps": given.steps, **scores_of(job, folder)}
    if given.python is not None:
        job |= {"eap_ig": str(given.eap_ig.resolve()), "mib": str(given.mib.resolve())}
    works = [{"work": "scores", "method": name} for name in METHODS]
    works += [{"work": "scores", "method": "eap-ig-activations"}] if given.tiny else []
    works += [{"work": "curve"}]
    sides, figures, agreement = [], [], {}
    for work in works:
        name = work.get("method", "curve")
        ours = Side(f"{name}, assay", "with_assay_circuits.py", {**job, **work})
        pair = [ours]
        if given.python is not None:
            pair.append(Side(f"{name}, EAP-IG", "with_eap_ig.py", {**job, **work}, given.python))
        take_turns(pair, given.repeats)
        for side in pair:
            require_same_every_time(side)
        for theirs in pair[1:]:
            for what in VALUES[name]:
                agreement[what] = require_equal(what, ours.answers[0].values[what], theirs.answers[0].values[what])
            if not given.tiny:
                least = 5 if name == "curve" else 10
                figures.append(figure(f"{name}: EAP-IG / assay", ratios(theirs, ours), "times", f"at least {least}"))
                memory = ours.peak_bytes / theirs.peak_bytes
                figures.append(figure(f"{name}: peak memory, assay / EAP-IG", [memory], "", "at most 0.5"))
        sides += pair
    what = "a random GPT-2 of 3 layers" if given.tiny else given.model
    Result(
        "circuits",
        "Circuits",
        f"{what}, {len(job['edges'])} edges, {given.pairs} pairs, one thread, float32, keys and values per query head, "
        f"EAP-IG with {given.steps} steps; the curve: MIB's ten sizes by absolute EAP score.",
        sides,
        figures,
        agreement,
        ["EAP-IG on inputs: the package's left rule; on activations: its right rule, averaged over all blocks' runs."],
    ).finish(given.out)


def scores_of(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Names of the edges, and a file of EAP scores on other prompts, for the curve."""
    import assay
    from assay.circuits import edge_scores, write_mib
    from assay.circuits.first_order import eap

    model = assay.load(job["folder"])
    swapped = assay.PromptPairs(tuple(assay.PromptPair(**pair) for pair in job["pairs"]), metric="logit-diff").swapped()
    scores = edge_scores(model, swapped, eap(), ungrouped=True, force=True, memory=job["memory"])
    # The curve is timed, not believed: the file does not say that its prompts are those of the job, swapped.
    write_mib(replace(scores, pairs=None), folder / "scores.json")
    return {"scores": str(folder / "scores.json"), "edges": scores.graph.edge_names}


def tiny_gpt2(folder: Path) -> str:
    """A random GPT-2 with a tokenizer of words w0, w1, ...; norms and biases are random too."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=48, n_positions=64, n_embd=32, n_layer=3, n_head=4, bos_token_id=None, eos_token_id=None,
        pad_token_id=None,
    )  # fmt: skip
    hf = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    hf.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(48)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return str(folder)


def tiny_job(model: str, n: int, memory: str) -> dict[str, Any]:
    """Random prompts of six tokens that the model tells apart, as `common.make_job` describes them."""
    import random

    import torch
    from transformers import AutoModelForCausalLM

    hf, draw, pairs, rows = AutoModelForCausalLM.from_pretrained(model).eval(), random.Random(0), [], []
    while len(pairs) < n:
        clean, (first, other, answer, wrong) = draw.choices(range(48), k=6), draw.sample(range(48), 4)
        corrupted = [clean[0], first, clean[2], other, *clean[4:]]
        with torch.no_grad():
            logits = hf(torch.tensor([clean, corrupted])).logits[:, -1]
        if (logits[0, answer] - logits[0, wrong]) - (logits[1, answer] - logits[1, wrong]) < 0.5:
            continue
        texts = [" ".join(f"w{i}" for i in ids) for ids in (clean, corrupted)]
        pairs.append({"clean": texts[0], "corrupted": texts[1], "answer": f" w{answer}", "wrong_answer": f" w{wrong}"})
        rows.append({"clean": clean, "corrupted": corrupted, "answer": answer, "wrong": wrong})
    return {
        "folder": model,
        "task": "custom",
        "pairs": pairs,
        "rows": rows,
        "memory": memory,
        "n_layers": 3,
        "n_heads": 4,
    }


if __name__ == "__main__":
    main()
