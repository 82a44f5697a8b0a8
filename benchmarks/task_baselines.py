"""How well two small models do each task unpatched, written to docs/tasks.md.

Run: python benchmarks/task_baselines.py [--model smollm2-135m[=FOLDER] ...] [--n 64] [--seed 0] [--out FILE.md]

A model is a name that assay.load takes; NAME=FOLDER loads the folder and calls it NAME in the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import assay
from assay.data.pairs import Answer, PromptPair
from assay.data.tasks import TASKS, make_pairs
from assay.report.words import shown

NOT_LANGUAGE = ("sort", "reverse")
VARIANTS: dict[str, tuple[dict[str, str], ...]] = {
    "sentiment": ({"kind": "reviews"}, {"kind": "words"}),
    "arithmetic": ({"operation": "plus"}, {"operation": "minus"}),
}
HEADER = """# Tasks

Each task makes pairs for the model's own tokenizer: equal token lengths, single-token answers or sets of such.
`assay score MODEL --task NAME`, or `assay.tasks.NAME(model, n=16, seed=0)` with `_` for `-`.
"""
EXPLANATION = """
Written by `benchmarks/task_baselines.py` with n = {n} and seed {seed}. *Clean* and *corrupted* are the means of the
task's metric: of the logit difference, answer minus wrong answer, and for greater-than of the difference of summed
probabilities, which lies between -1 and 1. *Difference* is clean minus corrupted, ± its standard error over prompts.
*Preferred*: share of clean prompts whose answer (or all its members together) is likelier than the wrong answer.
*Greedy*: share of clean prompts after which the answer (or one of its members) is the likeliest of all tokens; where
other continuations are right too (sentences), it may be low for a model that does the task. *Runs*: whether a run
would go on, which needs a difference of more than two standard errors. That alone does not mean that the model can do
the task: where *preferred* is near one half, it cannot.

In greater-than read digit by digit, the answers are the tens digits above the first year's, the wrong answers those
below. The first year's own tens digit is in neither set, since years that begin with it may be later or earlier. A
model that decodes it is not wrong, yet counts as such: *greedy* may be 0% where *preferred* is 100%.
"""


def label(task: str, options: dict[str, str]) -> str:
    return " ".join([task, *(f"({value})" for value in options.values())])


def listed(answer: Answer | None) -> str:
    return repr(answer) if isinstance(answer, str) else shown(answer)


def example(pair: PromptPair) -> str:
    lines = (
        f"clean:     {pair.clean!r}",
        f"corrupted: {pair.corrupted!r}",
        f"answer:    {listed(pair.answer)}, wrong answer: {listed(pair.wrong_answer)}",
    )
    return "```text\n" + "\n".join(lines) + "\n```\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="NAME or NAME=FOLDER; may be given several times")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/tasks.md"))
    options = parser.parse_args()
    chosen = [
        (name, options_of) for name in TASKS if name not in NOT_LANGUAGE for options_of in VARIANTS.get(name, ({},))
    ]

    examples: dict[str, PromptPair] = {}
    rows = []
    for given in options.model or ["smollm2-135m", "gemma-3-270m"]:
        name, _, folder = given.partition("=")
        model = assay.load(folder or name)
        for task, extra in chosen:
            pairs = make_pairs(model, task, n=options.n, seed=options.seed, **extra)
            examples.setdefault(task, pairs[0])
            baseline = assay.random_scores(model, pairs, force=True).baseline
            cells = (
                label(task, extra),
                name,
                f"{baseline.clean.mean():.2f}",
                f"{baseline.corrupted.mean():.2f}",
                f"{baseline.difference:.2f} ± {baseline.difference_stderr:.2f}",
                f"{(baseline.clean > 0).mean():.0%}",
                f"{baseline.clean_right.mean():.0%}",
                "yes" if baseline.tells_apart else "no",
            )
            rows.append(f"| {' | '.join(cells)} |")
            print(rows[-1], flush=True)
        del model

    parts = [HEADER]
    for task, pair in examples.items():
        takes = ", ".join(f"`{name}` ({value})" for name, value in TASKS[task].defaults.items())
        parts.append(
            f"## {task}\n\n{TASKS[task].description}.{f' Options: {takes}.' if takes else ''}\n\n{example(pair)}"
        )
    parts.append("## How well the models do them\n" + EXPLANATION.format(n=options.n, seed=options.seed))
    parts.append(
        "| task | model | clean | corrupted | difference | preferred | greedy | runs |\n"
        "|---|---|--:|--:|--:|--:|--:|---|"
    )
    order = [label(task, extra) for task, extra in chosen]
    rows.sort(key=lambda row: order.index(row.split(" | ")[0].removeprefix("| ")))
    options.out.write_text("\n".join(parts) + "\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
