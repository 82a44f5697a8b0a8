"""Token attributions: coloured text, tables, and a page. Numbers stand beside every colour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.style import Style
from rich.table import Table
from rich.text import Text

from assay.reliability.sign_flips import FEWEST
from assay.report.html import make_environment
from assay.tokens import Explanation, Explanations, Faithfulness
from assay.tokens.faithfulness import NOISES, RANDOM
from assay.tokens.result import visible

TEXTS_IN_TERMINAL = 8
TOKENS_IN_TABLE = 40
TOP = 5
POSITIVE, NEGATIVE = (178, 24, 43), (33, 102, 172)
LARGE_GAP = 0.1
"""Share of the difference between text and baseline that a complete method may miss without a word."""


def title(found: Explanations) -> str:
    model = found.provenance["model"]["name"]
    if len(found) == 1:
        return f"Which tokens make {model} say {_quoted(found[0].target)}?"
    return f"Which tokens drive what {model} says next? ({len(found)} texts)"


def meaning(found: Explanations) -> str:
    """What a score is, in a sentence or two."""
    kept = any(any(item.fixed) for item in found)
    return (
        "A token's score is what it adds to what is explained, in that unit, compared with its baseline: red (+) "
        "speaks for the target, blue (-) against it. Leave-one-out is measured; the others are estimates."
        + (" Special tokens stay in the baseline and score 0." if kept else "")
    )


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
            step = " More --steps may close it." if method == "integrated-gradients" else ""
            warnings.append(
                f"{method} misses more than {LARGE_GAP:.0%} of the difference between text and baseline on {len(wide)} "
                f"of {len(found)} texts, so its scores are not to be trusted there.{step}"
            )
    return warnings


def print_explanations(console: Console, found: Explanations, folder: Path | None = None) -> None:
    """Each text coloured by each method, with numbers; then faithfulness, cost and where it is kept."""
    console.print(f"\n[bold]{escape(title(found))}[/bold]")
    console.print(escape(meaning(found)), style="dim")
    for item in found.items[:TEXTS_IN_TERMINAL]:
        console.print(f"\n[bold]{escape(visible(item.id))}[/bold]  {escape(sentence(item))}", highlight=False)
        width = max(map(len, found.methods))
        for method in found.methods:
            line = Text(method.ljust(width + 2), style="dim")
            console.print(line.append_text(_coloured(item, method)), soft_wrap=len(found) > 1)
            if (note := gap_note(item, method)) is not None:
                console.print(" " * (width + 2) + note, style="dim", highlight=False)
        console.print(_table(item, found.methods, len(found) > 1))
    if len(found) > TEXTS_IN_TERMINAL:
        console.print(f"\n... and {len(found) - TEXTS_IN_TERMINAL} more texts, on the page.", style="dim")
    for warning in cautions(found):
        console.print(escape(warning), style="yellow")
    if found.faithfulness is not None:
        print_faithfulness(console, found.faithfulness, found.configuration["seed"])
    console.print(f"Cost: {found.cost['forward_equivalents']:.1f} forward-equivalents", style="dim")
    if folder is not None:
        console.print(f"Run folder: {escape(str(folder))}", style="dim", soft_wrap=True)
        if (page := folder / "report.html").is_file():
            console.print(f"Page: {escape(str(page.resolve()))}", style="dim", soft_wrap=True)


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


def _table(item: Explanation, methods: tuple[str, ...], brief: bool) -> Table:
    """Every token's scores; of long texts, and of several, those of the highest."""
    table = Table(box=None, pad_edge=False)
    for name in ("#", "token", *methods):
        table.add_column(name, justify="left" if name == "token" else "right", overflow="fold")
    shown = list(range(len(item.tokens)))
    if brief or len(shown) > TOKENS_IN_TABLE:
        shown = item.top(methods[0], TOP).index.tolist()
    for position in shown:
        cells = ["" if item.fixed[position] else f"{item.scores[method][position]:+.3g}" for method in methods]
        table.add_row(str(position), escape(_quoted(item.tokens[position])), *cells)
    return table


def faithfulness_rows(found: Faithfulness, seed: int) -> list[list[str]]:
    """A header, and one row for each method, measure and kind of steps."""
    summary, differences = found.summary(seed), found.differences(seed)
    rows = [["method", "measure", "k over", found.metric_unit, "probability"]]
    for method in found.methods:
        for measure, steps in dict.fromkeys((measure, steps) for measure, steps, _ in found.keys):
            row = [method, measure, steps]
            for unit in (found.metric_unit, "probability"):
                at = {"measure": measure, "steps": steps, "unit": unit}
                (mean,) = _rows(summary, method=method, **at)
                cell = f"{mean['mean']:+.3g}"
                if method == RANDOM:
                    cell += f" ± {mean['spread']:.2g}"
                else:
                    (less,) = _rows(differences, first=method, second=RANDOM, **at)
                    if less["lower"] == less["lower"]:
                        cell += f" [{less['lower']:+.2g}, {less['upper']:+.2g}]"
                row.append(cell)
            rows.append(row)
    return rows


def _rows(frame: Any, **values: str) -> list[dict[str, Any]]:
    for name, value in values.items():
        frame = frame[frame[name] == value]
    records: list[dict[str, Any]] = frame.to_dict("records")
    return records


def faithfulness_meaning(found: Faithfulness) -> str:
    """How to read the table."""
    n = found.full.shape[-1]
    usable = (~np.isnan(found.shares[0])).sum(1)
    few = "" if usable.min() == n else (
        f" Shares of the text's own value (in Python) are given for {usable.min()} to {usable.max()} of {n} texts: "
        f"elsewhere that value is negative, or within {NOISES:g} standard deviations of random orders from 0."
    )  # fmt: skip
    brackets = (
        f" In brackets: 95 % interval of the difference to random orders, paired over {n} texts."
        if n >= FEWEST
        else f" Fewer than {FEWEST} texts have no 95 % interval."
    )
    return (
        "Comprehensiveness: the mean drop when the first k tokens are replaced (higher is better). "
        "Sufficiency: the mean drop when all but the first k are (lower is better). k over counts, 1 to 50, or over "
        f"shares of the tokens.{brackets} ±: standard deviation between random orders of one text.{few}"
    )


def print_faithfulness(console: Console, found: Faithfulness, seed: int) -> None:
    """One line for each method, measure and kind of steps."""
    header, *rows = faithfulness_rows(found, seed)
    table = Table(title="Faithfulness", title_justify="left", box=None, pad_edge=False)
    for name in header:
        table.add_column(
            name, justify="left" if name in ("method", "measure", "k over") else "right", no_wrap=name == "method"
        )
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(escape(faithfulness_meaning(found)), style="dim")


def write_explanations(found: Explanations, path: Path) -> None:
    """Write the page: one file that opens offline."""
    measured, model = found.faithfulness, found.provenance["model"]
    kept = {name: getattr(found, name) for name in ("configuration", "cost", "provenance")}
    page = (
        make_environment()
        .get_template("explanations.html")
        .render(
            title=title(found),
            meaning=meaning(found),
            cautions=cautions(found),
            summary=faithfulness_rows(measured, found.configuration["seed"]) if measured else None,
            faithfulness_meaning=faithfulness_meaning(measured) if measured else None,
            texts=[_for_page(item, found.methods) for item in found],
            origin=(
                f"Model: {model['name']}, weights {model['weights_sha256'][:16]}. Methods: "
                + "; ".join(f"{name} ({source})" for name, source in found.provenance["sources"].items())
                + f"; as implemented in assay {found.provenance['versions']['assay']}."
            ),
            command=found.provenance.get("command"),
            details=json.dumps(kept, indent=2, ensure_ascii=False),
        )
    )
    path.write_text(page, encoding="utf-8")


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
