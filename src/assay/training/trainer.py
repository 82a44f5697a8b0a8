"""Train a sequence model and write it as a Hugging Face folder.

``python -m assay.training.trainer sort --out sequence-sort`` made the models that the package carries.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPTNeoXForCausalLM

from assay.data.tasks.sequences import END, LARGEST, SEP, START, TRAINED_LENGTHS, TRANSFORMATIONS
from assay.training.sequence_model import TOKEN_IDS, build_model, build_tokenizer

FIRST_NUMBER = TOKEN_IDS["1"]


def sample_batch(kind: str, length: int, size: int, generator: torch.Generator, pool: int = LARGEST) -> Tensor:
    """Token ids (size, 2 * length + 3) of random lines, all of one length.

    Each line draws its numbers from ``pool`` numbers of its own; a small pool makes repeats common.
    """
    pools = torch.rand(size, LARGEST, generator=generator).argsort(1)[:, :pool] + 1
    numbers = pools.gather(1, torch.randint(pool, (size, length), generator=generator))
    targets = torch.tensor([TRANSFORMATIONS[kind](row) for row in numbers.tolist()])
    column = torch.ones(size, 1, dtype=torch.long)
    offset = FIRST_NUMBER - 1
    parts = [
        column * TOKEN_IDS[START],
        numbers + offset,
        column * TOKEN_IDS[SEP],
        targets + offset,
        column * TOKEN_IDS[END],
    ]
    return torch.cat(parts, dim=1)


def exact_match(model: GPTNeoXForCausalLM, lines: Tensor) -> Tensor:
    """Whether greedy decoding gives the whole answer, per line (teacher-forced, which is the same)."""
    answer_length = lines.shape[1] // 2
    with torch.no_grad():
        logits: Tensor = model(lines).logits[:, -answer_length - 1 : -1]
    return (logits.argmax(-1) == lines[:, -answer_length:]).all(-1)


def accuracy(model: GPTNeoXForCausalLM, kind: str, lengths: range, per_length: int, seed: int) -> dict[int, float]:
    """Exact match on fresh lines of each length."""
    generator = torch.Generator().manual_seed(seed)
    return {
        length: exact_match(model, sample_batch(kind, length, per_length, generator)).double().mean().item()
        for length in lengths
    }


def train(
    kind: str, seed: int, max_steps: int, wanted: float, repeats: float = 0.0, batch_size: int = 64
) -> GPTNeoXForCausalLM:
    """Adam at 1e-3, loss on the answer only; stop once every trained length reaches ``wanted``.

    The learning rate falls to zero along a half cosine over ``max_steps``. A share ``repeats`` of the
    batches draws from twice as many numbers as the line is long: among uniform draws repeats are too
    rare for sorting them to be learned in this many steps.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = build_model()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max_steps)
    lengths = list(TRAINED_LENGTHS)
    for step in range(1, max_steps + 1):
        length = lengths[int(torch.randint(len(lengths), (1,), generator=generator))]
        often = torch.rand((), generator=generator).item() < repeats
        lines = sample_batch(kind, length, batch_size, generator, pool=2 * length if often else LARGEST)
        logits = model(lines).logits[:, length + 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), lines[:, length + 2 :].flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if step % 500 == 0:
            reached = accuracy(model, kind, TRAINED_LENGTHS, 200, seed=10_000_000 + seed)
            print(f"{kind} seed {seed} step {step} loss {loss.item():.4f} exact match {reached}", flush=True)
            if min(reached.values()) >= wanted:
                break
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(TRANSFORMATIONS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--repeats", type=float, default=0.0, help="share of batches in which repeats are common")
    parser.add_argument("--wanted", type=float, default=0.995, help="stop at this exact match on every length")
    options = parser.parse_args()
    model = train(options.kind, options.seed, options.steps, options.wanted, options.repeats)
    model.save_pretrained(options.out)
    build_tokenizer().save_pretrained(options.out)
    figures = {
        "task": options.kind,
        "seed": options.seed,
        "repeats": options.repeats,
        "exact_match": accuracy(model, options.kind, range(3, 12), 1000, seed=20_000_000 + options.seed),
    }
    (options.out / "training.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
