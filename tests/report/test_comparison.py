"""A comparison in a sentence, and its page."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape

import pytest

import assay
from assay.comparison import Comparison
from assay.data import PromptPair, PromptPairs
from assay.report.comparison import headline, setting_of
from assay.report.comparison_page import comparison_page, error_against_cost
from report.test_page import EVIL

EXACT = Comparison("activation-patching", 1, 0.0, 0.0, 1.0, 1.0, {5: 1.0, 10: 1.0}, 0.0, 100.0, 0, 9.0)
NEAR = replace(EXACT, method="integrated-gradients", top_error=0.01, l1_error=0.3, forward_equivalents=900.0)
CHEAP = replace(EXACT, method="attribution-patching", top_error=0.4, l1_error=0.2, forward_equivalents=4.0)
OTHER = replace(EXACT, method="hvp-sampled", top_error=0.35, l1_error=0.25, forward_equivalents=20.0)
RANKS = replace(EXACT, method="gim", scale=0.7, top_error=0.001, l1_error=0.001, forward_equivalents=4.0)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            [EXACT, CHEAP, OTHER, RANKS],
            "Of 2 estimates hvp-sampled comes closest to exact patching: top-5 error 0.350 at 20.0 "
            "forward-equivalents; exact patching costs 100.0.",
        ),
        (
            [EXACT, CHEAP, NEAR, OTHER],
            "Of 3 estimates integrated-gradients comes closest to exact patching: top-5 error 0.010 at 900.0 "
            "forward-equivalents; exact patching costs 100.0. Of the 2 that cost less than exact patching "
            "hvp-sampled comes closest: 0.350 at 20.0.",
        ),
        (
            [EXACT, CHEAP, NEAR],
            "Of 2 estimates integrated-gradients comes closest to exact patching: top-5 error 0.010 at 900.0 "
            "forward-equivalents; exact patching costs 100.0. The only one that costs less than exact patching is "
            "attribution-patching: 0.400 at 4.0.",
        ),
        (
            [EXACT, NEAR],
            "integrated-gradients against exact patching: top-5 error 0.010 at 900.0 forward-equivalents; exact "
            "patching costs 100.0. No estimate costs less.",
        ),
        (
            [EXACT, replace(CHEAP, top_error=None), OTHER],
            "Of 2 estimates attribution-patching comes closest to exact patching: L1 error 0.200 at 4.0 "
            "forward-equivalents; exact patching costs 100.0.",
        ),
        (
            [EXACT, RANKS],
            "There is no estimate to hold against exact patching: none of the 1 methods estimates the effect itself; "
            "exact patching costs 100.0 forward-equivalents.",
        ),
        (
            [EXACT],
            "There is no estimate to hold against exact patching: nothing else ran; exact patching costs 100.0 "
            "forward-equivalents.",
        ),
    ],
)
def test_the_headline_names_the_closest_and_what_is_cheaper(found: list[Comparison], said: str) -> None:
    assert headline(found) == said


@pytest.fixture(scope="module")
def page() -> str:
    model = assay.load("sequence-sort")
    exact, found = assay.compare(model, assay.tasks.sort(model, n=2), "attribution-patching,gim,hvp-sampled:probes=2")
    exact.provenance["model"]["name"] = EVIL
    exact.provenance["command"] = f"assay compare {EVIL}"
    pairs = PromptPairs(tuple(PromptPair(EVIL, EVIL, EVIL, EVIL) for _ in range(2)), task=EVIL, metric="log-prob-diff")
    exact = replace(exact, pairs=pairs)
    found[1] = replace(found[1], method=EVIL)
    run = {
        **setting_of(exact), "request": {"k": 10}, "provenance": exact.provenance,
        "configuration": {"task": {"name": EVIL}},
    }  # fmt: skip
    return comparison_page(found, run, exact)


def test_the_page_answers_first_and_has_all_of_it(page: str) -> None:
    body = page[page.index("<body") :]
    order = [
        "<h1>Which estimates",
        "Of 2 estimates",
        "prompt pairs, direction denoise, effects on log-prob-diff in nats",
        'id="figure-cost"',
        "Every method against exact patching",
        "<td>0.000</td>",
        "All against exhaustive activation patching",
        "gim is no estimate of the effect",
        "Can the model do the task?",
        "log-prob-diff (nats), mean over 2 pairs",
        "Prompts",
        "Reproduce and cite",
        "arXiv 2505.17630",
        f"<pre>assay compare {escape(EVIL)}</pre>",
    ]
    places = [body.index(part) for part in order]
    assert places == sorted(places)
    table = body[body.index("Every method against") :].partition("</table>")[0]
    assert {row.count("<td") for row in table.split("<tr>")[2:]} == {11}


def test_the_page_is_offline_has_one_script_of_plotly_and_escapes(page: str) -> None:
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert page.count("* plotly.js v") == 1
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", outside)


def test_the_figure_shows_both_errors_of_every_method_with_its_number() -> None:
    figure = error_against_cost([EXACT, replace(CHEAP, top_error=None), OTHER])
    assert [list(trace.y) for trace in figure.data] == [[0, 0], [0.2], [0.35, 0.25]]
    assert [trace.x[0] for trace in figure.data] == [100, 4, 20]
    assert [trace.name for trace in figure.data] == ["1 activation-patching", "2 attribution-patching", "3 hvp-sampled"]
    assert list(figure.data[2].text) == ["3", ""]
    ticks = figure.layout.xaxis.tickvals
    assert min(ticks) < 4 < 100 < max(ticks)
