"""A response in a sentence, and its page."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape

import numpy as np
import pytest

import assay
from assay.data import PromptPair, PromptPairs
from assay.report.response import rows, verdict
from assay.report.response_page import response_page
from assay.screening import ResponseCurve
from report.test_page import EVIL


@pytest.fixture(scope="module")
def curve() -> ResponseCurve:
    model = assay.load("sequence-sort")
    return assay.response_curve(model, assay.tasks.sort(model, n=2), "L0 MLP", points=3, segments=2)


def planted(curve: ResponseCurve, ends: list[float], slopes: list[list[float]], bends: list[float]) -> ResponseCurve:
    """Two prompts whose responses end at ``ends``, with slopes at 0 and 1/2 and second derivatives at 0 (else 0)."""
    values = np.array([[0, end / 2, end] for end in ends])
    curvatures = np.array([[bend, 0.0] for bend in bends])
    return replace(curve, values=values, slopes=np.array(slopes), curvatures=curvatures)


def test_the_verdict_says_how_far_each_estimate_ends_from_the_exact_effect(curve: ResponseCurve) -> None:
    effect = "The whole patch of L0 MLP changes log-prob-diff by +10 nats."
    # Tangent 6, parabola 6 + 6/2 = 9, two steps 6/2 + 6/8 + 14/2 = 10.75.
    bent = planted(curve, [10, 10], [[6, 14], [6, 14]], [6, 6])
    assert verdict(bent) == (
        f"{effect} First order cannot be believed here; the tangent (attribution patching) ends 40% too small, hvp "
        "10% too small, ms-hvp in 2 segments 7.5% too large."
    )
    assert [row[1:] for row in rows(bent)] == [
        ("+10", "", ""), ("+6", "-4", "-40.0%"), ("+9", "-1", "-10.0%"), ("+10.75", "+0.75", "+7.5%"),
    ]  # fmt: skip
    straight = planted(curve, [10, 10], [[10.5, 9.5], [10.5, 9.5]], [0, 0])
    assert verdict(straight) == (
        f"{effect} First order can be believed here (within 10%); the tangent (attribution patching) ends 5.0% too "
        "large, hvp 5.0% too large, ms-hvp in 2 segments within 0.1%."
    )
    turned = planted(curve, [10, 10], [[-2, 10], [-2, 10]], [0, 0])
    assert "First order cannot be believed here" in verdict(turned)
    assert "ends at -2, with the wrong sign" in verdict(turned)


def test_errors_that_cancel_over_prompts_are_said(curve: ResponseCurve) -> None:
    said = verdict(planted(curve, [10, 10], [[14, 10], [6, 10]], [0, 0]))
    assert "in the mean, but not prompt by prompt, where it misses 40% of the summed effect" in said


def test_without_an_effect_or_derivatives_no_share_is_given(curve: ResponseCurve) -> None:
    nothing = planted(curve, [1, -1], [[1, 1], [1, 1]], [0, 0])
    assert "by +0 nats. Estimates make of it: attribution patching +1, hvp +1" in verdict(nothing)
    assert [row[3] for row in rows(nothing)] == ["", "n/a", "n/a", "n/a"]
    bare = replace(curve, slopes=np.zeros((2, 0)), curvatures=np.zeros((2, 0)))
    assert verdict(bare).endswith("No derivative was taken, so nothing is said of estimates.")


def test_the_page_answers_first_is_offline_and_escapes(curve: ResponseCurve) -> None:
    pairs = PromptPairs(tuple(PromptPair(EVIL, EVIL, EVIL, EVIL) for _ in range(2)), task=EVIL, metric="log-prob-diff")
    provenance = {**curve.provenance, "command": f"assay response {EVIL}"}
    provenance["model"] = {**provenance["model"], "name": EVIL}
    changed = replace(curve, model=EVIL, task=EVIL, notes=(EVIL,), provenance=provenance)
    page = response_page(changed, pairs)
    body = page[page.index("<body") :]
    order = [
        "<h1>How does log-prob-diff respond to L0 MLP",
        escape(verdict(changed)),
        f'<p class="caution">{escape(EVIL)}',
        "cost <b>",
        'id="figure-response"',
        'id="figure-prompts"',
        "Exact effect and estimates",
        f"<td>{curve.effect:+.4g}</td>",
        "Can the model do the task?",
        "Prompts",
        "Reproduce and cite",
        "arXiv 2606.09899",
        f"<pre>assay response {escape(EVIL)}</pre>",
    ]
    places = [body.index(part) for part in order]
    assert places == sorted(places)
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert page.count("* plotly.js v") == 1
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", outside)
