"""A plan in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.planning import Plan


def print_plan(console: Console, plan: Plan) -> None:
    """The choice first, then what each method would cost, and what that rests on."""
    console.print(
        f"[bold]What would it take to find which {escape(plan.sites)} of {escape(plan.model)} drive the task?[/bold]"
    )
    chosen = "assay screen" if plan.choice == "screen" else f"assay score --method {plan.choice}"
    console.print(escape(f"Choose {chosen}: {plan.why}."), highlight=False)
    console.print(
        escape(
            f"{plan.family}, {plan.layers} layers, {_count(plan.parameters)} parameters, {_bytes(plan.weight_bytes)} "
            f"of weights in {plan.dtype}; {plan.components} components; {plan.prompts}, {plan.positions} tokens at "
            f"most, of which clean and corrupted begin with at least {plan.shared} alike."
        ),
        style="dim",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("method")
    for name in ("forward-equivalents", "time", "memory", "backward passes per component"):
        table.add_column(name, justify="right")
    for line in plan.lines:
        passes = "" if line.backward_passes is None else f"{line.backward_passes:.3g}"
        table.add_row(line.method, f"{line.forward_equivalents:.4g}", _time(line.seconds), _bytes(line.bytes), passes)
    console.print(table)
    for line in plan.lines:
        if line.note:
            console.print(escape(f"{line.method}: {line.note}."), style="dim", highlight=False)
    if plan.placements:
        where = ", ".join(f"{one.device}: {one.layers} layers, {_bytes(one.weight_bytes)}" for one in plan.placements)
        console.print(escape(f"Weights: {where}."), highlight=False)
    console.print(
        escape(
            f"Time rests on {plan.speed}, and leaves loading out. Memory is of the whole process, with --memory as "
            "given for what runs at once."
        ),
        style="dim",
        highlight=False,
    )


def _count(number: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def _bytes(number: float) -> str:
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"


def _time(seconds: float) -> str:
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:.3g} days"
    if seconds >= 3600:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds / 60:.3g} min" if seconds >= 120 else f"{seconds:.2g} s"
