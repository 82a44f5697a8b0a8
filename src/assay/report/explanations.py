"""Token attributions: coloured text, tables, and a page. Numbers stand beside every colour."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.style import Style
from rich.table import Table
from rich.text import Text

from assay.report import words
from assay.report.faithfulness import (
    FEW_TEXTS,
    faithfulness_caution,
    faithfulness_meaning,
    faithfulness_tables,
    print_faithfulness,
)
from assay.report.html import render, write
from assay.report.places import print_folder
from assay.tokens import Explanation, Explanations
from assay.tokens.faithfulness import RANDOM
from assay.tokens.methods import METHODS
from assay.tokens.result import visible

TEXTS_IN_TERMINAL = 8
TOKENS_IN_TABLE = 40
TOP = 5
POSITIVE, NEGATIVE = (178, 24, 43), (33, 102, 172)
COLOURS = (
    "Colours are scaled by each method's own largest score in a text: compare them within a line, not between lines."
)
MOST_OF_TOKEN, TITLE_WIDTH, OPEN_SCORES = 24, 13, 8
LARGE_GAP = 0.1
"""Share of the difference between text and baseline that a complete method may miss without a word."""


def title(found: Explanations) -> str:
    model = found.provenance["model"]["name"]
    if len(found) == 1:
        return f"Which tokens make {model} say {_quoted(found[0].target)}?"
    return f"Which tokens drive what {model} says next? ({len(found)} texts)"


KINDS = (
    ("measured", "what {unit} lose when the token alone is replaced"),
    ("complete", "meant to sum to the difference between text and baseline, in {unit}"),
    ("first order", "a first-order estimate of what replacing the token alone costs, in {unit}"),
    ("ranking", "only ranks tokens; sizes mean nothing by themselves"),
    ("control", "random numbers, the yardstick"),
)
"""What a method's scores are."""


def kind_of(method: str) -> str:
    """One of KINDS."""
    known = METHODS[method]
    if method == RANDOM:
        return "control"
    if not known.uses_gradients:
        return "measured"
    if known.is_complete:
        return "complete"
    return "first order" if known.rules == "plain" else "ranking"


def meaning(found: Explanations) -> str:
    """What scores are, method by method."""
    units = {item.unit for item in found}
    unit = units.pop() if len(units) == 1 else "the unit of what is explained"
    text = "Tokens are compared with their baseline: red (+) speaks for the target, blue (-) against it."
    for kind, what in KINDS:
        names = [name for name in found.methods if kind_of(name) == kind]
        if names:
            text += f" {', '.join(names)}: {what.format(unit=unit)}."
    if any(any(item.fixed) for item in found):
        text += " Special tokens stay in the baseline and score 0."
    return text


def listed(found: Explanations) -> str | None:
    """Which tokens the terminal's tables leave out, where they do."""
    long = max(len(item.tokens) for item in found)
    if len(found) == 1 and long <= TOKENS_IN_TABLE:
        return None
    which = "Of each text" if len(found) > 1 else f"Of {long} tokens"
    return f"{which} the {TOP} tokens that {found.methods[0]} ranks first are listed; all are on the page."


def answer(found: Explanations) -> str:
    """What the first method ranks first, and what all tokens together carry; of several texts the latter alone."""
    method = found.methods[0]
    if len(found) == 1:
        item = found[0]
        best = item.top(method, 3)
        told = ", ".join(f"{_quoted(row.token)} ({row.score:+.3g})" for row in best.itertuples())
        return (
            f"{method} ranks first: {told}. With every token replaced by {visible(item.baseline)} {item.metric} of "
            f"{_quoted(item.target)} goes from {item.value:+.4g} to {item.baseline_value:+.4g} {item.unit}."
        )
    differences = np.array([item.value - item.baseline_value for item in found])
    error = differences.std(ddof=1) / len(differences) ** 0.5
    return (
        f"Over {len(found)} texts, replacing every token costs {differences.mean():+.3g} ± {error:.2g} on average (in "
        f"each text's own unit); below, each token by what {method} gives it."
    )


def next_step(found: Explanations) -> str | None:
    """What to do about scores that nothing has checked."""
    if not any(kind_of(name) == "measured" for name in found.methods):
        return "Next: --methods ...,leave-one-out measures what each token does alone; --faithfulness checks orders."
    if found.faithfulness is None:
        return "Next: --faithfulness replaces tokens in each method's order, and holds that against random orders."
    if len(found) < FEW_TEXTS:
        return f"Next: --file with {FEW_TEXTS} texts or more, to see whether the order of methods holds."
    return None


def sentence(item: Explanation) -> str:
    """What is explained of a text, and its value."""
    whose = " (the model's own most probable next token)" if item.target_is_models_own else ""
    contrast = f" against {_quoted(item.against)}" if item.against is not None else ""
    return (
        f"Explained: {item.metric} of {_quoted(item.target)}{contrast}{whose}: {item.value:+.4g} {item.unit}, "
        f"{item.baseline_value:+.4g} with every token replaced by {visible(item.baseline)}; probability"
        f"{' difference' if item.against is not None else ''} {item.probability:.3g}."
    )


def gap_note(item: Explanation, method: str) -> str | None:
    """How much of the difference a complete method's scores miss."""
    if method not in item.gaps:
        return None
    difference = item.value - item.baseline_value
    return f"Scores sum to {difference - item.gaps[method]:+.3g} of {difference:+.3g}: gap {item.gaps[method]:+.2g}."


def cautions(found: Explanations) -> list[str]:
    """What a reader must know before using the numbers."""
    warnings = []
    for method in found.methods:
        wide = [
            item
            for item in found
            if abs(item.gaps.get(method, 0.0)) > LARGE_GAP * abs(item.value - item.baseline_value)
        ]
        if wide:
            steps = 4 * found.configuration["steps"]
            step = f" Try --steps {steps}." if method == "integrated-gradients" else ""
            warnings.append(
                f"{method} misses more than {LARGE_GAP:.0%} of the difference between text and baseline on {len(wide)} "
                f"of {len(found)} texts, so its scores are not to be trusted there.{step}"
            )
    return warnings


def print_explanations(console: Console, found: Explanations, folder: Path | None = None) -> None:
    """Each text coloured by each method, with numbers; then faithfulness, cost and where it is kept."""
    console.print(f"\n[bold]{escape(title(found))}[/bold]")
    console.print(escape(answer(found)), highlight=False)
    for note in filter(None, (meaning(found), COLOURS, listed(found))):
        console.print(escape(note), style="dim", highlight=False)
    for item in found.items[:TEXTS_IN_TERMINAL]:
        console.print(f"\n[bold]{escape(visible(item.id))}[/bold]  {escape(sentence(item))}", highlight=False)
        width = max(map(len, found.methods))
        for method in found.methods:
            line = Text(method.ljust(width + 2), style="dim")
            console.print(line.append_text(_coloured(item, method)), soft_wrap=len(found) > 1)
            if (gap := gap_note(item, method)) is not None:
                console.print(" " * (width + 2) + gap, style="dim", highlight=False)
        for table in _tables(item, found.methods, len(found) > 1, console.width):
            console.print(table)
    if len(found) > TEXTS_IN_TERMINAL:
        console.print(f"\n... and {len(found) - TEXTS_IN_TERMINAL} more texts, on the page.", style="dim")
    for warning in cautions(found):
        console.print(escape(warning), style="yellow")
    if found.faithfulness is not None:
        print_faithfulness(console, found, found.faithfulness)
    if (step := next_step(found)) is not None:
        console.print(escape(step), style="yellow", highlight=False)
    console.print(f"Cost: {spent(found)}", style="dim")
    if folder is not None:
        print_folder(console, folder)


def spent(found: Explanations) -> str:
    """What it took."""
    return f"{found.cost['forward_equivalents']:.1f} forward-equivalents, {words.time(found.cost)}"


def _coloured(item: Explanation, method: str) -> Text:
    line = Text()
    for token, strength, fixed in zip(item.tokens, _strengths(item, method), item.fixed, strict=True):
        colour = POSITIVE if strength > 0 else NEGATIVE
        mixed = [round(255 + abs(strength) * (part - 255)) for part in colour]
        ink = "white" if abs(strength) > 0.55 else "black"
        line.append(
            visible(token), Style(dim=True) if fixed else Style(color=ink, bgcolor="#{:02x}{:02x}{:02x}".format(*mixed))
        )
    return line


def _quoted(token: str) -> str:
    """In quotes, so that spaces at its ends are seen."""
    return f"'{visible(token)}'"


def _strengths(item: Explanation, method: str) -> np.ndarray:
    """Scores over the largest of the text."""
    scores = item.scores[method]
    largest = float(np.abs(scores).max())
    return scores / largest if largest else scores


def _tables(item: Explanation, methods: tuple[str, ...], brief: bool, width: int) -> list[Table]:
    """Every token's scores; of long texts, and of several, those of the highest. As many tables as the methods need."""
    shown = list(range(len(item.tokens)))
    if brief or len(shown) > TOKENS_IN_TABLE:
        shown = item.top(methods[0], TOP).index.tolist()
    tokens = [_quoted(item.tokens[position]) for position in shown]
    room = max(width - 6 - min(MOST_OF_TOKEN, max(map(len, tokens))), 12)
    found: list[tuple[list[str], list[list[str]]]] = []
    used = width
    for method in methods:
        title = "\n".join(textwrap.wrap(method, TITLE_WIDTH))
        cells = ["" if item.fixed[position] else f"{item.scores[method][position]:+.3g}" for position in shown]
        needed = 2 + max(map(len, [*title.split("\n"), *cells]))
        if used + needed > room:
            found.append(([], []))
            used = 0
        used += needed
        titles, columns = found[-1]
        titles.append(title)
        columns.append(cells)
    return [_table_of(shown, tokens, *group) for group in found]


def _table_of(shown: list[int], tokens: list[str], titles: list[str], columns: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("token", overflow="fold", max_width=MOST_OF_TOKEN)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for number, (position, token) in enumerate(zip(shown, tokens, strict=True)):
        table.add_row(str(position), escape(token), *(cells[number] for cells in columns))
    return table


def write_explanations(found: Explanations, path: Path) -> None:
    """Write the page: one file that opens offline."""
    measured, model = found.faithfulness, found.provenance["model"]
    kept = {name: getattr(found, name) for name in ("configuration", "cost", "provenance")}
    page = render(
        "explanations.html",
        kicker=f"{model['name']} · {len(found)} text{'s' if len(found) > 1 else ''} · {', '.join(found.methods)}",
        title=title(found),
        answer=answer(found),
        meaning=meaning(found),
        colours=COLOURS,
        cautions=cautions(found),
        next_step=next_step(found),
        stages=words.stages(found.cost),
        tables=faithfulness_tables(measured, found.configuration["seed"]) if measured else [],
        faithfulness_meaning=faithfulness_meaning(found, measured) if measured else None,
        faithfulness_caution=faithfulness_caution(measured) if measured else None,
        open_scores=len(found) <= OPEN_SCORES,
        texts=[_for_page(item, found.methods) for item in found],
        origin=(
            f"Model: {model['name']}, weights {model['weights_sha256'][:16]}. Methods: "
            + "; ".join(f"{name} ({source})" for name, source in found.provenance["sources"].items())
            + f"; as implemented in assay {found.provenance['versions']['assay']}."
        ),
        details=kept,
    )
    write(page, path)


def _for_page(item: Explanation, methods: tuple[str, ...]) -> dict[str, Any]:
    shown = [visible(token) for token in item.tokens]

    def tokens(method: str) -> list[dict[str, Any]]:
        return [
            {
                "shown": token,
                "fixed": fixed,
                "score": f"{score:+.4g}",
                "colour": "rgba({}, {}, {}, {:.3f})".format(
                    *(POSITIVE if score > 0 else NEGATIVE), 0.75 * abs(strength)
                ),
            }
            for token, fixed, score, strength in zip(
                shown, item.fixed, item.scores[method], _strengths(item, method), strict=True
            )
        ]

    return {
        "title": visible(item.id),
        "sentence": sentence(item),
        "methods": [(method, tokens(method), gap_note(item, method)) for method in methods],
        "rows": [
            [position, f"'{token}'", *(f"{item.scores[method][position]:+.4g}" for method in methods)]
            for position, token in enumerate(shown)
        ],
    }
