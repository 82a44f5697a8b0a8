"""The page: complete, offline, and safe against what prompts contain."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.data import PromptPair, PromptPairs
from assay.report import words, write_page
from assay.report.explored import explored, response_command
from assay.report.figures import figures
from assay.report.html import data, plain
from assay.report.layer_map import blocks, largest_of
from assay.report.screening import headline
from assay.report.words import shown
from assay.sites import Component

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = assay.load("sequence-sort")
    scores = assay.activation_patching(model, assay.tasks.sort(model, n=3))
    pairs = PromptPairs(tuple(PromptPair(EVIL, EVIL, EVIL, EVIL) for _ in range(3)), task=EVIL, metric="log-prob-diff")
    scores = assay.Scores(**{**vars(scores), "pairs": pairs})
    scores.provenance["model"]["name"] = EVIL
    scores.provenance["command"] = f"assay score {EVIL}"
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(scores, path)
    return path.read_text("utf-8")


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (None, "32.0 s"),
        ((40.0, 1, False), "32.0 s"),
        ((18.0, 2, False), "32.0 s of computing over 2 processes, 18.0 s by the clock"),
        ((5.0, 1, True), "32.0 s of computing in all sittings, 5.0 s by the clock in the last"),
        ((5.0, 4, True), "32.0 s of computing over 4 processes in all sittings, 5.0 s by the clock in the last"),
    ],
)
def test_seconds_of_computing_and_by_the_clock(clock: tuple[float, int, bool] | None, said: str) -> None:
    cost: dict[str, object] = {"seconds": {"baseline": 2.0, "activation-patching": 30.0}}
    if clock is not None:
        cost["clock"] = dict(zip(("seconds", "processes", "went_on"), clock, strict=True))
    assert words.time(cost) == said


def test_nothing_from_outside_is_markup(page: str) -> None:
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_the_page_asks_for_nothing(page: str) -> None:
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", outside)
    assert "cdn" not in outside


def test_the_page_answers_first(page: str) -> None:
    body = page[page.index("<body") :]
    order = [
        "<h1>",
        "largest of 20 components",
        'id="figure-map"',
        "baseline difference",
        'id="figure-intervals"',
        "Largest components",
        "Prompts",
    ]
    places = [body.index(part) for part in order]
    assert places == sorted(places)
    assert body.count('class="cell positive"') + body.count('class="cell negative"') == 20
    assert len(page) < 100_000


def test_sets_of_answers_are_shown_briefly(tmp_path: Path) -> None:
    assert (shown(" a"), shown(None)) == (" a", "")
    assert shown((" a", " b")) == "' a' or ' b'"
    assert shown(tuple("123456")) == "'1' or '2' or ... '5' or '6' (6 in all)"
    model = assay.load("sequence-sort")
    scores = assay.attribution_patching(model, assay.tasks.sort(model, n=1), sites="mlps")
    pairs = PromptPairs((PromptPair("a", "b", [EVIL, "1", "2", "3", "4", "5", "6"]),), metric="log-prob")
    write_page(assay.Scores(**{**vars(scores), "pairs": pairs}), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "(7 in all)" in text
    assert "<script>alert" not in text


def test_one_kind_of_site_makes_one_figure(tmp_path: Path) -> None:
    model = assay.load("sequence-sort")
    scores = assay.attribution_patching(model, assay.tasks.sort(model, n=1), sites="mlps")
    write_page(scores, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert text.count('class="cell ') == 4
    assert "none checked by intervention" in text


def test_every_kind_of_site_gets_its_figure(tmp_path: Path) -> None:
    model = assay.load("sequence-sort")
    pairs = assay.tasks.sort(model, n=2)
    sites = "q[1:3],k,residual-pre[1:4]@each,residual-post,attention@last,embeddings,neurons[0]"
    scores = assay.attribution_patching(model, pairs, sites=sites)
    drawn = {name: figure for name, _, figure in figures(scores)}
    assert list(drawn) == ["q", "k", "residual-pre", "residual-post", "attention", "embeddings"]
    assert drawn["q"].data[0].z.shape == (2, 4)
    assert list(drawn["q"].data[0].y) == [1, 2]
    assert drawn["residual-pre"].data[0].z.shape == (3, 7)
    first = scores.to_pandas()["importance"][0]
    assert drawn["q"].data[0].z[0, 0] == first
    write_page(scores, tmp_path / "report.html")
    assert "L0N" in (tmp_path / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def screening_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = assay.load("sequence-sort")
    scores = assay.screen(model, assay.tasks.sort(model, n=3), sites="neurons[0:1],heads", top=4, probes=2)
    pairs = PromptPairs(tuple(PromptPair(EVIL, EVIL, EVIL, EVIL) for _ in range(3)), task=EVIL, metric="log-prob-diff")
    scores = assay.ScreenedScores(**{**vars(scores), "pairs": pairs, "notes": (EVIL,)})
    scores.provenance["model"]["name"] = EVIL
    scores.provenance["command"] = f"assay screen {EVIL}"
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(scores, path)
    return path.read_text("utf-8")


def test_a_screening_has_its_own_page(screening_page: str) -> None:
    body = screening_page[screening_page.index("<body") :]
    order = [
        "<h1>",
        "4 of 528 components carry",
        "top 4 verified with",
        'id="figure-map"',
        "exact runs <b>",
        "Screened top 4 at level 95%",
        "components were patched exactly",
        'id="figure-estimates"',
        'id="figure-intervals"',
        "Largest components",
        "What it cost",
        "calibration sample",
        "Can the model do the task?",
        "Reproduce and cite",
    ]
    places = [body.index(text) for text in order]
    assert places == sorted(places)
    assert 'class="mark dot' in body


def test_a_screening_page_is_offline_and_escapes(screening_page: str) -> None:
    assert "<script>alert" not in screening_page
    assert "<img src=x" not in screening_page
    outside = re.sub(r"<script>.*?</script>", "", screening_page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", outside)


def columns_of(page: str) -> tuple[list[str], set[int]]:
    """What the table of the largest components is headed by, and how many cells its rows have."""
    table = page[page.index("Largest components</h2>") :].partition("</table>")[0]
    head, _, rows = table.partition("</thead>")
    return re.findall(r"<th(?: [^>]*)?>(.*?)</th>", head), {row.count("<td") for row in rows.split("<tr>")[1:]}


def test_the_page_leaves_out_columns_that_would_say_nothing(screening_page: str, tmp_path: Path) -> None:
    """Where every component was patched, there are neither intervals nor curvatures."""
    model = assay.load("sequence-sort")
    scores = assay.screen(model, assay.tasks.sort(model, n=3), sites="heads", top=3)
    assert scores.certified
    assert scores.exhausted
    write_page(scores, tmp_path / "report.html")
    exhausted = (tmp_path / "report.html").read_text("utf-8")
    always = ["#", "component", "importance", "verdict", "other prompts (95 %)"]
    assert columns_of(exhausted) == (always, {5})
    assert columns_of(screening_page) == ([*always[:3], "interval", "R", *always[3:]], {7})
    for name in ("interval", "R"):
        assert f"<dt><b>{name}</b></dt>" in screening_page
        assert f"<dt><b>{name}</b></dt>" not in exhausted


def test_scores_under_backward_rules_are_ranked_not_sized(tmp_path: Path) -> None:
    model = assay.load("sequence-sort")
    pairs = assay.tasks.sort(model, n=3)
    for scores in (assay.gim(model, pairs), assay.attribution_patching(model, pairs, rules="attn-lrp")):
        first = scores.top(1)["component"].item()
        said = words.answer(scores)
        assert said.startswith(f"Ranked first of {len(scores.components)} components: {first} (")
        assert not re.search(r"%|nats|largest|\d\.\d", said)
        assert "first-order estimate of all effects from one backward pass." not in words.method(scores)
        assert "ranks" in words.method(scores)
        assert "assay screen" in str(words.next_step(scores))
        maps = [row for _, _, figure in figures(scores) for row in figure.data if row.type == "heatmap"]
        assert {row.colorbar.title.text for row in maps} == {"score"}
        write_page(scores, tmp_path / "page.html")
        assert "none: no estimate" in (tmp_path / "page.html").read_text("utf-8")
    plain = assay.attribution_patching(model, pairs)
    assert "first-order estimate of all effects" in words.method(plain)
    assert words.verdicts(plain).startswith("unresolved")
    assert "nats" in words.answer(plain)


def test_rows_of_a_map_are_units_or_bins_of_them_and_positions() -> None:
    def component(layer: int, site: str, unit: int | None = None, position: int | None = None) -> Component:
        return Component(layer, site, unit, position)

    heads = [component(layer, "heads", unit) for layer in range(2) for unit in range(3)]
    mlps = [component(layer, "mlps") for layer in range(2)]
    found = blocks([*heads, *mlps])
    assert [(block.name, list(block.rows)) for block in found] == [("heads", ["0", "1", "2"]), ("MLP", [""])]
    assert found[0].rows["1"] == {0: [1], 1: [4]}
    assert found[1].rows[""] == {0: [6], 1: [7]}
    (neurons,) = blocks([component(0, "neurons", unit) for unit in range(100)])
    assert list(neurons.rows)[:2] == ["0–3", "4–7"]
    assert neurons.rows["4–7"] == {0: [4, 5, 6, 7]}
    assert sum(len(row[0]) for row in neurons.rows.values()) == 100
    (positions,) = blocks([component(0, "residual-post", None, position) for position in range(3)])
    assert (positions.name, list(positions.rows)) == ("residual-post by position", ["0", "1", "2"])
    assert largest_of(np.array([1.0, -3.0, 2.0]), [0, 2]) == 2
    assert largest_of(np.array([1.0, -3.0, 2.0]), [0, 1, 2]) == 1


def test_the_command_of_a_response_keeps_what_says_which_prompts() -> None:
    given = "assay screen m --task ioi --n 8 --sites heads,mlps --top 5 --chat --template '{a} b' --out x"
    assert response_command(given) == "assay response m --task ioi --n 8 --chat --template '{a} b' --component NAME"
    assert response_command("") is None
    assert response_command("python study.py") is None
    assert response_command("assay screen 'unclosed") is None


def test_what_a_click_shows_is_what_the_run_recorded() -> None:
    model = assay.load("sequence-sort")
    pairs = assay.tasks.sort(model, n=3)
    scores = assay.screen(model, pairs, sites="neurons[0:1],heads", top=4, probes=2, direction="noise")
    told = explored(scores, range(len(scores.components)))
    assert told["first"] == scores.leaders[0]
    for i, item in ((int(index), item) for index, item in told["items"].items()):
        curve = item["curve"]
        assert curve["end"] == pytest.approx(scores.importance[i], rel=1e-3)
        assert curve["exact"] == (scores.verdicts[i] == "verified")
        assert item["prompts"] == pytest.approx(-scores.values[i], rel=1e-3)
        if np.isfinite(scores.first_order[i]).all():
            assert curve["slope"] == pytest.approx(-scores.first_order[i].mean(), rel=1e-3)
            assert curve["bend"] == pytest.approx(-scores.quadratic[i].mean(), rel=1e-3)
            assert ("first order, source run", f"{-scores.far_end[i].mean():+.3g}") in item["lines"]
        if scores.verdicts[i] == "bounded":
            assert (curve["low"], curve["high"]) == pytest.approx((-scores.upper[i], -scores.lower[i]), rel=1e-3)
            assert curve["low"] <= curve["end"] <= curve["high"]


def test_the_headline_counts(tmp_path: Path) -> None:
    model = assay.load("sequence-sort")
    pairs = assay.tasks.sort(model, n=3)
    scores = assay.screen(model, pairs, sites="neurons[0:1]", top=4, probes=2)
    size = np.abs(scores.importance)
    share = np.sort(size)[::-1][:4].sum() / size.sum()
    assert headline(scores) == (
        f"4 of 512 components carry {share:.0%} of the summed absolute effect on log-prob-diff; top 4 verified with "
        f"{scores.runs} exact runs; at most {scores.outside_bound} of the {512 - scores.verdicts.count('verified')} "
        "unverified may lie outside their interval (95% confidence)."
    )
    certified = assay.screen(model, pairs, sites="heads", top=3)
    assert headline(certified).endswith("; all 16 were measured exactly.")
    nothing = replace(certified, values=certified.values * 0, leaders=np.array([], dtype=int))
    assert headline(nothing).startswith("No patch of any")
    write_page(nothing, tmp_path / "report.html")
    assert "No patch of any" in (tmp_path / "report.html").read_text("utf-8")
    stopped = assay.screen(model, pairs, sites="neurons[0:1]", top=4, probes=2, budget=22)
    assert f"{len(stopped.unsettled)} that were not patched may still belong to the top 4" in headline(stopped)


def test_json_in_scripts_and_labels_of_plotly_cannot_be_markup() -> None:
    written = data({"text": EVIL, "missing": float("nan"), "far": [np.float64("inf"), np.int64(3)]})
    assert "<" not in written
    assert json.loads(written) == {"text": EVIL, "missing": None, "far": [None, 3]}
    assert plain("a < b & <i>") == "a &lt; b &amp; &lt;i&gt;"
