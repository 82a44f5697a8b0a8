"""How often is the country among the two tokens that drive its capital? Written to docs/results/capitals.md.

Run: python benchmarks/capitals.py [--model smollm2-135m[=FOLDER] ...] [--out FILE.md]

For each of 30 countries "The capital of France is" -> " Paris", by every method, alone and against the capital of the
next country in the list, with each baseline.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import assay
from assay.data.tasks.facts import RELATIONS
from assay.tokens import METHODS, Explanation, Question

TEMPLATE = "The capital of {} is"
COUNT, TOP = 30, 2
BASELINES = ("space", "mean")
HEADER = f"""# Thirty capitals

Of {COUNT} prompts such as "The capital of France is", the share in which a token of the country is among the {TOP}
tokens of highest score. *Paris*: the logit of the capital is explained; *Paris − Rome*: its difference to the logit of
another country's capital. A space, or the mean of all embeddings, stands in the place of a token. Written by
`benchmarks/capitals.py`. Why some numbers look odd: [token attribution](../token-attribution.md#thirty-capitals).
Prompts are five or six tokens long, so random scores find the country in about {TOP} of 5.
"""


def questions(contrast: bool) -> tuple[list[Question], list[str]]:
    pairs = list(RELATIONS["country-capital"].items())[: COUNT + 1]
    made = [
        Question(TEMPLATE.format(country), f" {capital}", f" {pairs[number + 1][1]}" if contrast else None, country)
        for number, (country, capital) in enumerate(pairs[:COUNT])
    ]
    return made, [country for country, _ in pairs[:COUNT]]


def found(item: Explanation, method: str, country: str) -> bool:
    """Whether one of the highest tokens lies inside the country's name."""
    first = item.text.index(country)
    starts = np.cumsum([0, *(0 if fixed else len(token) for token, fixed in zip(item.tokens, item.fixed, strict=True))])
    scores = np.where(item.fixed, -np.inf, item.scores[method])
    best = np.argsort(-scores, kind="stable")[:TOP]
    return any(starts[at] < first + len(country) and starts[at + 1] > first for at in best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="NAME or NAME=FOLDER; may be given several times")
    parser.add_argument("--out", type=Path, default=Path("docs/results/capitals.md"))
    options = parser.parse_args()
    methods = [name for name, method in METHODS.items() if not method.needs_ungated]
    columns: list[str] = []
    shares: dict[str, list[str]] = {name: [] for name in methods}
    for given in options.model or ["smollm2-135m", "gemma-3-270m"]:
        name, _, folder = given.partition("=")
        model = assay.load(folder or name)
        for contrast in (False, True):
            for baseline in BASELINES:
                began = time.monotonic()
                asked, countries = questions(contrast)
                items = assay.explain_all(model, asked, methods, baseline=baseline)
                columns.append(f"{name}, {'Paris − Rome' if contrast else 'Paris'}, {baseline}")
                for method in methods:
                    hits = [found(item, method, country) for item, country in zip(items, countries, strict=True)]
                    shares[method].append(f"{np.mean(hits):.0%}")
                print(
                    columns[-1], {m: s[-1] for m, s in shares.items()}, f"{time.monotonic() - began:.0f} s", flush=True
                )
        del model
    lines = [f"| method | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    lines += [f"| `{method}` | {' | '.join(cells)} |" for method, cells in shares.items()]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(HEADER + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
