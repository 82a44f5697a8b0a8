"""Pages in a real browser: nothing is fetched, nothing fails, prompts stay text, all answers to mouse and keys."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import assay
from assay.circuits import find_circuit
from assay.data import PromptPair, PromptPairs
from assay.report import write_page
from assay.report.audit import write_audit_page
from assay.report.circuit_page import write_circuit_page
from assay.report.comparison import setting_of
from assay.report.comparison_page import comparison_page
from assay.report.explanations import write_explanations
from assay.report.interactions import write_interactions_page
from assay.report.response_page import response_page
from assay.report.self_repair_page import write_self_repair_page
from assay.report.tables import Figure, Table, write_tables_page
from assay.studies.dynamics_audit import CLASSES
from assay.studies.dynamics_page import write_dynamics_page
from report.test_page import EVIL

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.xdist_group("browser")

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL_LABEL = "<b onclick=alert(3)>bold</b><a href='https://example.org'>link</a>" + EVIL


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if EXECUTABLE is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=EXECUTABLE)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and all that should not have happened on it."""

    page: Any
    trouble: list[str] = field(default_factory=list)

    def __call__(self, selector: str) -> Any:
        return self.page.locator(selector)

    @property
    def fits(self) -> bool:
        """Nothing makes the page itself scroll sideways."""
        width: bool = self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        return width


Open = Callable[..., Opened]


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Open a page; at the end of the test, no error, request or dialog may have come from it."""
    opened = []

    def open_page(path: Path, width: int = 1280, scheme: str = "light") -> Opened:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        found = Opened(page)
        page.on("console", lambda said: found.trouble.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: found.trouble.append(str(error)))
        page.on("dialog", lambda dialog: (found.trouble.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: _note(found, request.url))
        page.goto(path.as_uri())
        opened.append(found)
        return found

    yield open_page
    for each in opened:
        each.page.close()
        assert each.trouble == []


def _note(found: Opened, url: str) -> None:
    if not url.startswith(("file:", "data:")):
        found.trouble.append(f"request {url}")


@pytest.fixture(scope="session")
def screened(sorter: assay.Model) -> assay.ScreenedScores:
    return assay.screen(sorter, assay.tasks.sort(sorter, n=4), sites="neurons[0:1],heads", top=4, probes=4)


@pytest.fixture(scope="session")
def screening_report(screened: assay.ScreenedScores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every text that comes from outside tries to be markup."""
    pairs = PromptPairs(tuple(PromptPair(EVIL, EVIL, EVIL, EVIL) for _ in range(4)), task=EVIL, metric="log-prob-diff")
    provenance = {**screened.provenance, "command": f"assay screen {EVIL!r} --task sort --n 4"}
    provenance["model"] = {**provenance["model"], "name": EVIL}
    path = tmp_path_factory.mktemp("screening") / "report.html"
    write_page(replace(screened, pairs=pairs, notes=(EVIL,), provenance=provenance), path)
    return path


@pytest.fixture(scope="session")
def scores_report(sorter: assay.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scores") / "report.html"
    write_page(assay.activation_patching(sorter, assay.tasks.sort(sorter, n=3)), path)
    return path


@pytest.fixture(scope="session")
def plotly_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a figure of plotly whose labels try to be markup."""
    import plotly.graph_objects as go

    from assay.report.html import plain

    figure = go.Figure(go.Scatter(x=np.array([0.0, 1.0]), y=[1.0, np.nan], name=plain(EVIL_LABEL), showlegend=True))
    figure.update_xaxes(title_text=plain(EVIL_LABEL))
    path = tmp_path_factory.mktemp("plotly") / "report.html"
    write_tables_page(
        path,
        title=EVIL,
        answer=[EVIL],
        tables=[Table(EVIL, ["name", "value"], [[EVIL, str(i)] for i in range(12)], note=EVIL)],
        figures=[Figure("plain", EVIL, figure)],
        provenance={"model": {"name": EVIL}, "method_source": EVIL, "versions": {"assay": "0"}, "command": EVIL},
        details={EVIL: EVIL},
    )
    return path


def nothing_came_alive(page: Opened) -> None:
    assert page("main img").count() == 0
    assert page("main script:not([type='application/json'])").count() == 0
    assert page("main b[onclick], main a[href*='example.org']").count() == 0


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_prompts_stay_text(
    visit: Open, screening_report: Path, scores_report: Path, plotly_report: Path, width: int, scheme: str
) -> None:
    for path in (screening_report, scores_report, plotly_report):
        page = visit(path, width, scheme)
        assert page.fits
        nothing_came_alive(page)
        light = page.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light == (scheme == "light")
    assert EVIL in visit(screening_report)("h1").inner_text()
    assert visit(screening_report)("td.prompt").first.inner_text() == EVIL


def test_the_first_screen_holds_question_model_answer_and_map(visit: Open, scores_report: Path) -> None:
    page = visit(scores_report)
    said = page(".answer").inner_text()
    assert re.search(r"10 largest of 20 components carry \d+%", said)
    assert "sequence-sort" in page(".kicker").inner_text()
    for selector in ("h1", ".kicker", ".answer", "#figure-map svg[role=group]"):
        box = page(selector).bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 800


def test_hovering_tells_and_clicking_shows(visit: Open, screening_report: Path, screened: assay.ScreenedScores) -> None:
    page = visit(screening_report)
    first = screened.components[int(screened.leaders[0])].name
    assert page("#panel h3").inner_text() == first
    head = next(i for i, c in enumerate(screened.components) if c.site == "heads" and c.layer == 2)
    cell = page(f".cell[data-c='{head}']")
    assert page("#tip").is_hidden()
    cell.hover()
    told = page("#tip").inner_text()
    assert told.startswith(screened.components[head].name)
    assert f"{screened.importance[head]:+.4g}" in told
    assert all(word in told for word in ("interval", "R", f"verdict: ● {screened.verdicts[head]}"))
    assert page("#panel h3").inner_text() == first
    cell.click()
    assert page("#panel h3").inner_text() == screened.components[head].name
    assert cell.get_attribute("aria-pressed") == "true"
    assert page("#panel svg.curve[role=img]").count() == 1


def test_the_curve_shows_what_is_known(visit: Open, screening_report: Path, screened: assay.ScreenedScores) -> None:
    page = visit(screening_report)
    by_size = [i for i in np.argsort(-np.abs(screened.importance)) if np.isfinite(screened.first_order[i]).all()]
    known = next(int(i) for i in by_size if screened.verdicts[i] == "verified")
    bounded = next(int(i) for i in by_size if screened.verdicts[i] == "bounded")
    page(f"button.link[data-c='{known}']").click()
    assert page("#panel h3").inner_text() == screened.components[known].name
    drawn = page("#panel svg.curve[role=img]")
    assert [drawn.locator(f".{kind}").count() for kind in ("tangent", "parabola", "interval")] == [1, 1, 0]
    assert drawn.locator(".end.open").count() == 0
    slope = screened.sign * screened.first_order[known].mean()
    assert f"tangent at 0: {slope:+.3g}" in page("#panel").inner_text()
    assert "Nothing was measured between" in page("#panel").inner_text()
    assert page("#panel svg").last.locator("circle").count() == 4
    page(f"button.link[data-c='{bounded}']").click()
    assert [drawn.locator(f".{kind}").count() for kind in ("tangent", "interval")] == [1, 1]
    assert drawn.locator(".end.open").count() == 1


def test_the_map_answers_to_keys(visit: Open, scores_report: Path) -> None:
    page = visit(scores_report)
    assert page(".cell[tabindex='0']").count() == 1
    page(".cell[data-x='0'][data-y='0']").focus()

    def place() -> tuple[str, str]:
        x, y = page.page.evaluate("[document.activeElement.dataset.x, document.activeElement.dataset.y]")
        return x, y

    for key, at in (("ArrowRight", ("1", "0")), ("ArrowDown", ("1", "1")), ("ArrowLeft", ("0", "1"))):
        page.page.keyboard.press(key)
        assert place() == at
    for _ in range(9):
        page.page.keyboard.press("ArrowDown")
    assert place() == ("0", "4")
    assert page("#tip").is_visible()
    page.page.keyboard.press("Enter")
    assert page("#panel h3").inner_text() == "L0 MLP"
    assert page("rect.ring.focus").count() == 1
    page.page.keyboard.press("Escape")
    assert page("#tip").is_hidden()


def test_tables_sort_and_filter(visit: Open, scores_report: Path) -> None:
    page = visit(scores_report)
    table = page("table").filter(has=page("button.link")).first

    def column(i: int) -> list[str]:
        texts: list[str] = table.locator(f"tbody tr:visible td:nth-child({i})").all_inner_texts()
        return texts

    ranked = column(2)
    importance = table.locator("th").nth(2)
    importance.click()
    values = [float(text) for text in column(3)]
    assert values == sorted(values, reverse=True)
    assert importance.get_attribute("aria-sort") == "descending"
    importance.locator("button").focus()
    page.page.keyboard.press("Enter")
    assert [float(text) for text in column(3)] == values[::-1]
    assert importance.get_attribute("aria-sort") == "ascending"
    page.page.keyboard.press("Enter")
    assert importance.get_attribute("aria-sort") is None
    assert column(2) == ranked
    table.locator("th").nth(1).click()
    assert column(2) == sorted(ranked)
    box = page("input[type=search]").first
    box.fill("l3")
    assert set(column(2)) == {"L3H0", "L3H1", "L3H2", "L3H3", "L3 MLP"}
    assert page(".filter output").first.inner_text() == "5 of 20 rows"
    box.fill("")
    assert len(column(2)) == 20


def test_commands_are_copied(browser: Any, screening_report: Path) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(screening_report.as_uri())
    block = page.locator(".copied").first
    block.locator("button").click()
    block.get_by_text("Copied", exact=True).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == block.locator("pre").inner_text()
    context.close()


def test_print_is_black_on_white_without_what_only_a_screen_can_do(visit: Open, screening_report: Path) -> None:
    page = visit(screening_report, scheme="dark")
    page.page.emulate_media(media="print")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page("nav").is_hidden()
    assert page(".filter").first.is_hidden()
    assert page("#figure-map svg[role=group]").is_visible()
    assert len(page.page.pdf(format="A4")) > 10_000


def test_a_policy_stops_what_escaping_might_let_through(browser: Any, scores_report: Path, tmp_path: Path) -> None:
    """A hole made on purpose: neither the element's handler nor the script runs, and nothing is fetched."""
    whole = scores_report.read_text("utf-8")
    picture = '<img src="https://example.org/x.png" onerror="document.title = \'run\'">'
    hole = f'<script>document.title = "run"</script>{picture}'
    (tmp_path / "report.html").write_text(whole.replace("<h1>", f"{hole}<h1>", 1), "utf-8")
    page, sent = browser.new_page(), []
    page.on("requestfinished", lambda request: sent.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    assert page.locator("main img").count() == 1
    assert page.title() != "run"
    assert page.locator("#panel h3").count() == 1
    assert [url for url in sent if not url.startswith(("file:", "data:"))] == []
    page.close()


def test_a_figure_of_plotly_is_drawn_and_its_labels_stay_text(visit: Open, plotly_report: Path) -> None:
    page = visit(plotly_report)
    page("#figure-plain .main-svg").first.wait_for()
    assert page("#figure-plain .legendtext").text_content().replace("\xa0", " ") == EVIL_LABEL
    nothing_came_alive(page)
    assert plotly_report.stat().st_size < 6_000_000


def test_reports_of_a_real_model(visit: Open, smollm2: assay.Model, tmp_path: Path) -> None:
    """270 heads and 30 MLPs, screened; and all 46 080 neurons, aggregated."""
    pairs = assay.tasks.ioi(smollm2, n=2)
    scores = assay.screen(smollm2, pairs, sites="heads,mlps", top=5, probes=2)
    write_page(scores, tmp_path / "screening.html")
    assert (tmp_path / "screening.html").stat().st_size < 1_000_000
    page = visit(tmp_path / "screening.html")
    assert page.fits
    assert page(".cell[data-c]").count() == 300
    assert page("[role=group] .mark.dot").count() == scores.verdicts.count("verified")
    page(".cell[data-x='23'][data-y='3']").click()
    assert page("#panel h3").inner_text() == "L23H3"
    assert visit(tmp_path / "screening.html", 400).fits

    neurons = assay.attribution_patching(smollm2, pairs, sites="neurons")
    assert len(neurons.components) == 46_080
    write_page(neurons, tmp_path / "neurons.html")
    assert (tmp_path / "neurons.html").stat().st_size < 2_000_000
    page = visit(tmp_path / "neurons.html")
    assert page.fits
    assert page(".cell[data-c]").count() == 30 * 32
    first = neurons.top(1)["component"].item()
    assert page("#panel h3").inner_text() == first
    assert page("td button.link").first.inner_text() == first
    cell = page(".cell[data-x='3'][data-y='0']")
    cell.hover()
    bin_of = neurons.importance.reshape(30, 1536)[3, :48]
    assert page("#tip b").inner_text() == f"L3N{np.abs(bin_of).argmax()}"
    assert "largest of 48" in cell.get_attribute("aria-label")


def evil(result: Any) -> Any:
    """The same run of a model and prompts whose every text tries to be markup."""
    provenance = {**result.provenance, "command": f"assay {EVIL}", "method_source": EVIL}
    provenance["model"] = {**provenance["model"], "name": EVIL}
    return replace(result, provenance=provenance)


def evil_pairs(pairs: PromptPairs) -> PromptPairs:
    return replace(pairs, pairs=tuple(PromptPair(EVIL, EVIL, EVIL, EVIL) for _ in pairs), task=EVIL)


@pytest.fixture(scope="session")
def reports(sorter: assay.Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every kind besides scores and screening, by command; texts from outside try to be markup."""
    folder = tmp_path_factory.mktemp("kinds")
    paths = {name: folder / f"{name}.html" for name in KINDS}
    pairs, more = assay.tasks.sort(sorter, n=4), assay.tasks.sort(sorter, n=4, seed=1)

    found = find_circuit(sorter, pairs, more, size=0.1)
    write_circuit_page(replace(evil(found), evaluated=evil_pairs(more)), paths["circuit"])

    measured: list[assay.Scores] = []
    exact, rows = assay.compare(sorter, pairs, "attribution-patching,hvp", on_scores=measured.append)
    run = {"request": {"k": 10}, **setting_of(exact), "configuration": {"task": {"name": EVIL}}}
    run["provenance"] = evil(exact).provenance
    page = comparison_page(rows, run, replace(evil(exact), pairs=evil_pairs(pairs)), measured[1:])
    paths["compare"].write_text(page, "utf-8")

    explained = evil(assay.explain_all(sorter, [assay.Question("3 1 2"), assay.Question("2 1")], baseline="mean"))
    items = tuple(replace(item, id=EVIL, tokens=(EVIL, *item.tokens[1:])) for item in explained)
    write_explanations(replace(explained, items=items), paths["explain"])

    repaired = evil(assay.self_repair(sorter, pairs))
    write_self_repair_page(replace(repaired, pairs=evil_pairs(pairs)), paths["self-repair"])

    curve = assay.response_curve(sorter, pairs, "L1H2", points=3, segments=2)
    paths["response"].write_text(response_page(evil(curve), evil_pairs(pairs)), "utf-8")

    audited = evil(assay.audit_gradients(sorter, assay.tasks.sort(sorter, n=32), rivals=(), pruning=True))
    sets = tuple(replace(of, pairs=evil_pairs(of.pairs)) for of in audited.sets)
    write_audit_page(replace(audited, sets=sets), paths["audit"])

    together = evil(assay.measure_interactions(sorter, assay.tasks.sort(sorter, n=32), sites="heads[0:1],mlps"))
    write_interactions_page(replace(together, pairs=evil_pairs(together.pairs)), paths["interactions"])

    numbers = {name: [0.1, 0.5, 0.7] for name in DYNAMICS}
    table = pd.DataFrame({"seed": [0, 0, 0], "step": [1, 10, 20], **numbers})
    setting = {"task": EVIL, "layers": 4, "heads": 4}
    about = {"training": {"setting": setting}, "measured": {"n": 32, "ablation": EVIL}, "command": EVIL}
    write_dynamics_page(table, about, paths["dynamics"])
    return paths


KINDS = ("circuit", "compare", "explain", "self-repair", "response", "audit", "interactions", "dynamics")
DYNAMICS = ("accuracy", *(f"{name}_{place}" for place in ("in", "out") for name in ("metric", *CLASSES)),
            "rho_in_G", "rho_out_G", "rho_out_|grad.delta|")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_each_kind(visit: Open, reports: dict[str, Path], kind: str) -> None:
    """Question, model, answer and a figure are on the first screen; nothing scrolls sideways; texts stay text."""
    page = visit(reports[kind])
    assert page.fits
    nothing_came_alive(page)
    figure = ".figures .card, div.text"
    for selector in (".kicker", "h1", ".answer"):
        box = page(selector).first.bounding_box()
        assert box["y"] + box["height"] <= 800, selector
    assert page(figure).first.bounding_box()["y"] < 650
    assert page(".answer").count() == 1
    assert re.search(r"\d", page(".answer").inner_text())
    assert EVIL in page("pre").first.inner_text()
    sections = page("#contents a").all_inner_texts()
    assert sections[-1] == "Reproduce"
    assert all(len(name) <= 24 for name in sections if name != EVIL)
    if kind not in ("explain", "dynamics"):
        assert EVIL in page("td.prompt").all_inner_texts()
    own = "[...document.querySelectorAll('main [id]')].filter((each) => !each.closest('.js-plotly-plot > *'))"
    identities = page.page.evaluate(f"{own}.map((each) => each.id)")
    assert len(set(identities)) == len(identities)
    assert all(re.fullmatch(r"[\w-]+", each) for each in identities)
    table = page("main table").filter(has=page("th button")).first
    header = table.locator("th:has(button)").last
    header.locator("button").evaluate("(button) => button.click()")
    assert header.get_attribute("aria-sort") in ("ascending", "descending")
    page.page.emulate_media(media="print")
    assert page("nav").is_hidden()
    assert page.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    narrow = visit(reports[kind], 400, "dark")
    assert narrow.fits


def test_a_circuit_answers_to_mouse_and_keys(visit: Open, reports: dict[str, Path]) -> None:
    page = visit(reports["circuit"])
    node = page("svg.graph .node[data-node=m0]")
    touching = page("svg.graph .edge[data-source=m0], svg.graph .edge[data-target=m0]")
    node.hover()
    assert page("#tip b").inner_text() == "m0"
    assert "into it" in page("#tip").inner_text()
    assert page("svg.graph .edge.lit").count() == touching.count() > 1
    page("h1").hover()
    assert page("svg.graph.lighting").count() == 0
    assert page("#tip").is_hidden()
    assert page("svg.graph [tabindex='0']").count() == 1
    node.focus()
    page.page.keyboard.press("ArrowUp")
    assert re.fullmatch(r".*m0.*", page("#tip b").inner_text())
    assert re.fullmatch(r"[+-][\d.e+-]+", page("#tip div").inner_text())
    assert page("svg.graph .edge.lit").count() == 1
    assert page("svg.graph .node.lit").count() == 2
    page.page.keyboard.press("ArrowDown")
    assert page.page.evaluate("document.activeElement.dataset.node") == "m0"
    page.page.keyboard.press("ArrowRight")
    assert page.page.evaluate("document.activeElement.dataset.node") != "m0"


def test_tokens_tell_their_scores(visit: Open, reports: dict[str, Path]) -> None:
    page = visit(reports["explain"])
    page("div.text span").nth(1).hover()
    assert re.search(r"gim: [+-][\d.]+", page("#tip").inner_text())
    page("div.text span").first.focus()
    assert EVIL in page("#tip").inner_text()
