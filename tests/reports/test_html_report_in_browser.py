"""report.html in a real browser: it draws, zooms, filters, tells, prints, runs nothing planted, and axe is content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simcoll.reports.html_report import html_report
from simcoll.verifier.findings.finding import Finding, Report, Severity, Side, Verdict
from simcoll.verifier.views.requested import charted
from tests.reports.browser import AXE, Opened, opened, started
from tests.reports.pages import HOSTILE, crossed, hostile, large, mismatched, page_of, waiting_circle
from tests.support.seeds import nightly

pytestmark = pytest.mark.slow

SIZES = {4: 60, 512: 500, 4096: 60}
"""Calls of each rank, by ranks."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture(
    scope="module", params=[pytest.param(n, id=f"{n}-ranks", marks=nightly(n != max(SIZES))) for n in SIZES]
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, browser: Any) -> tuple[int, Path]:
    """A page of so many ranks, the 1-st of which reduces otherwise than the others."""
    ranks = request.param
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(mismatched(ranks, SIZES[ranks])), encoding="utf-8")
    return ranks, path


@pytest.fixture
def page(job: tuple[int, Path], browser: Any) -> Iterator[Opened]:
    with opened(browser, job[1]) as found:
        yield found
        assert found.complaints == []
        assert found.requests == [job[1].as_uri()]


def test_it_is_small(job: tuple[int, Path]) -> None:
    assert job[1].stat().st_size < 10_000_000


def test_the_finding_is_seen(page: Opened) -> None:
    card = page.page.locator("article.finding")
    assert "SC104" in card.inner_text()
    assert card.is_visible()
    assert card.bounding_box()["y"] < 900
    marked = [text.split() for text in page.page.locator("mark").all_inner_texts()]
    assert marked == [["≠", "differs:", "sum"], ["≠", "differs:", "max"]]


def test_the_timeline_is_drawn_whole(page: Opened, job: tuple[int, Path]) -> None:
    ranks, calls = job[0], SIZES[job[0]]
    assert page.pixels() > 2
    x0, x1, y0, y1 = page.view
    assert (x0, y0) == (0, 0)
    assert x1 >= calls
    assert y1 >= ranks


def test_pointing_tells_of_the_call(page: Opened) -> None:
    box = page.box()
    page.page.mouse.move(box["x"] + 3, box["y"] + 14)
    tip = page.page.locator(".tip")
    assert tip.is_visible()
    assert re.match(r"rank \d+: all_(reduce|gather) #\d of ", tip.inner_text())
    page.page.mouse.move(box["x"] + 3, box["y"] - 200)
    assert not tip.is_visible()


def test_the_wheel_zooms_where_it_points_and_dragging_pans(page: Opened) -> None:
    box = page.box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = page.view
    page.page.mouse.move(*middle)
    for _ in range(4):
        page.page.mouse.wheel(0, -300)
        page.settled()
    near = page.view
    assert near[1] - near[0] < (before[1] - before[0]) * 0.9
    assert near[0] > before[0]
    page.page.mouse.down()
    page.page.mouse.move(middle[0] - 120, middle[1], steps=4)
    page.page.mouse.up()
    page.settled()
    assert page.view[0] > near[0]
    page.page.click("[data-do=whole]")
    page.settled()
    assert page.view == before


def test_keys_move_zoom_and_speak(page: Opened) -> None:
    before = page.view
    page.page.focus("canvas")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "+", "+", "+", "+"):
        page.page.keyboard.press(key)
    page.settled()
    assert page.view[1] - page.view[0] < before[1] - before[0]
    assert page.page.inner_text(".live").startswith("rank 1: all_reduce #2 of default_pg")
    page.page.keyboard.press("End")
    page.settled()
    assert page.view[1] == pytest.approx(before[1], abs=0.1)
    page.page.keyboard.press("0")
    page.settled()
    assert page.view == before


def test_filters_by_group_op_and_rank(page: Opened, job: tuple[int, Path]) -> None:
    ranks, calls = job[0], SIZES[job[0]]
    count = page.page.locator(".count")
    page.page.select_option("[name=op]", label="all_gather")
    assert count.inner_text() == f"{ranks:,} of {ranks:,} ranks, {calls // 3:,} of {calls:,} columns"
    page.page.select_option("[name=group]", index=1)
    assert f" 0 of {calls:,} columns" in count.inner_text()
    page.page.fill("[name=ranks]", "0-1, 3")
    assert count.inner_text().startswith(f"3 of {ranks:,} ranks")
    page.page.fill("[name=ranks]", "few")
    assert "Expected ranks" in page.page.inner_text(".wrong")
    page.page.click("[type=reset]")
    page.page.locator(".wrong:empty").wait_for(state="attached")
    assert count.inner_text() == f"{ranks:,} of {ranks:,} ranks, {calls:,} of {calls:,} columns"


def test_a_finding_leads_to_its_place(page: Opened, job: tuple[int, Path]) -> None:
    calls = SIZES[job[0]]
    page.page.click("[data-finding='0']")
    page.settled()
    place = calls // 2 + (calls // 2 % 3 == 0) - 1
    assert page.view[0] <= place <= page.view[1]
    said = page.page.inner_text(".live")
    assert said.startswith("rank 1: all_reduce")
    assert "finding SC104 names this rank here" in said
    assert "at train.py:41 in step" in said


def test_a_finding_that_is_at_several_calls_leads_to_all_of_them(browser: Any, tmp_path: Path) -> None:
    report, traces = crossed()
    path = tmp_path / "report.html"
    path.write_text(html_report(report, charted(report, traces)), encoding="utf-8")
    with opened(browser, path) as found:
        found.page.click("[data-finding='0']")
        found.settled()
        # The third and the twelfth call of the halves are the 9th and the 36th of all.
        assert found.view[0] <= 8
        assert found.view[1] >= 36
        assert found.page.inner_text(".live").startswith("rank 0: all_gather #3 of mesh_dp")
        assert "finding SC204 names this rank here" in found.page.inner_text(".live")


def test_a_straggler_leads_to_how_late_it_came(browser: Any, tmp_path: Path) -> None:
    traces = mismatched(4, 60)
    slow = Finding(
        "SC801", Severity.WARNING, "rank 3 came last", traces[0].groups[0], ranks=(0, 1, 2, 3), culprits=(3,)
    )
    report = Report(Verdict.FINDINGS, 4, "record", (slow,), ())
    path = tmp_path / "report.html"
    path.write_text(html_report(report, charted(report, traces)), encoding="utf-8")
    with opened(browser, path) as found:
        found.page.click("[data-finding='0']")
        found.settled()
        assert found.page.input_value("[name=colour]") == "late"
        assert found.page.inner_text(".live").startswith("rank 3: ")
        assert "after the first rank of its group" in found.page.inner_text(".live")


_COUNTED = """
window.counted = () => { const was = window.drawn; window.drawn = {calls: 0, pixels: 0, frames: 0}; return was; };
counted();
for (const name of ["fillRect", "strokeRect", "fillText", "drawImage", "stroke", "fill"]) {
  const plain = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...args) { drawn.calls += 1; return plain.apply(this, args); };
}
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (image, ...args) {
  drawn.frames += 1;
  drawn.pixels += image.width * image.height;
  return put.call(this, image, ...args);
};
"""


def test_what_is_drawn_is_bounded_by_the_canvas_and_not_by_the_job(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(large(4096, 2000), encoding="utf-8")
    with opened(browser, path, init=_COUNTED) as found:
        box = found.box()
        # Below nine pixels cells have neither gap nor mark; a cell that has both takes at most six calls.
        most = box["width"] * box["height"] / 9**2 * 6
        found.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        steps = [lambda: found.page.mouse.wheel(0, -400)] * 12
        steps += [lambda: found.page.select_option("[name=op]", label="all_gather")]
        steps += [lambda: found.page.fill("[name=ranks]", "0-4000"), lambda: found.page.click("[data-finding='0']")]
        frames = 0
        for step in steps:
            step()
            found.settled()
            drawn = found.page.evaluate("counted()")
            frames += drawn["frames"]
            assert drawn["calls"] <= most * drawn["frames"]
            assert drawn["pixels"] <= 4 * box["width"] * box["height"] * drawn["frames"]
        assert frames >= 10
        assert found.view[1] == 2000
        assert found.page.inner_text(".live").startswith("rank 1: all_reduce #1996 of default_pg")


def test_long_names_are_folded_and_print_whole(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    end = "the very end"
    finding = Finding("SC701", Severity.ERROR, "x" * 1500 + end, ranks=(0,), sides=(Side((0,), None, (), "y " * 900),))
    path.write_text(html_report(Report(Verdict.FINDINGS, 2, "detail", (finding,) * 60, ())), encoding="utf-8")
    with opened(browser, path) as found:
        card = found.page.locator("article.finding").first
        assert card.bounding_box()["height"] < 450
        rest = card.locator(".message details > div")
        assert end in rest.text_content()
        assert not rest.is_visible()
        card.locator(".message summary").click()
        assert rest.is_visible()
        found.page.emulate_media(media="print")
        assert found.page.locator(".message details > div").last.bounding_box()["height"] > 0


def test_a_link_opens_the_rule(page: Opened) -> None:
    page.page.click("text=What SC104 means")
    assert page.page.locator("#rule-SC104").get_attribute("open") is not None


def test_the_theme_is_switched_and_redrawn(page: Opened) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for _ in range(3):
        page.page.click("#theme")
        page.settled()
        seen.append((page.page.inner_text("#theme"), page.page.evaluate(colour)))
    assert [text for text, _ in seen] == ["Theme: light", "Theme: dark", "Theme: auto"]
    assert seen[0][1] == seen[2][1] != seen[1][1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["job", "circle"])
def test_axe_finds_nothing_serious(browser: Any, tmp_path: Path, scheme: str, kind: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not there: npm ci in reports/page/vendor brings it")
    path = tmp_path / "report.html"
    text = page_of(mismatched(4, 60)) if kind == "job" else html_report(waiting_circle())
    path.write_text(text, encoding="utf-8")
    with opened(browser, path, color_scheme=scheme, bypass_csp=True) as found:
        found.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        found.page.evaluate(AXE.read_text(encoding="utf-8"))
        violations = found.page.evaluate("axe.run().then(found => found.violations)")
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in violations] == []


def test_nothing_that_a_trace_says_runs(browser: Any, tmp_path: Path) -> None:
    report, traces = hostile()
    path = tmp_path / "report.html"
    path.write_text(html_report(report, charted(report, traces)), encoding="utf-8", errors="backslashreplace")
    # Without the policy too: it is the second line of defence.
    for bypass in (False, True):
        with opened(browser, path, bypass_csp=bypass) as found:
            found.page.focus("canvas")
            found.page.keyboard.press("ArrowRight")
            found.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            found.page.click("[data-finding='0']")
            found.settled()
            assert found.complaints == []
            assert HOSTILE[:30] in found.page.inner_text(".tip")


def test_the_policy_stops_what_would_slip_through(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    text = html_report(waiting_circle()).replace(
        "<main>", "<main><script>planted('script')</script><img src=x onerror=planted(1)>"
    )
    path.write_text(text, encoding="utf-8")
    with opened(browser, path) as found:
        found.settled()
        assert not any(complaint.startswith("planted") for complaint in found.complaints)
        assert len([complaint for complaint in found.complaints if "Content Security Policy" in complaint]) >= 2


def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(mismatched(4, 60)), encoding="utf-8")
    with opened(browser, path, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as found:
        assert found.page.evaluate("document.documentElement.scrollWidth") <= 360
        found.page.tap("canvas", position={"x": 20, "y": 20})
        assert found.page.locator(".tip").is_visible()


def test_it_prints_light_with_the_timeline(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(mismatched(4, 60)), encoding="utf-8")
    with opened(browser, path, color_scheme="dark") as found:
        found.page.emulate_media(media="print", color_scheme="dark")
        assert found.page.evaluate("getComputedStyle(document.body).colorScheme") == "light"
        assert not found.page.locator("form.filters").is_visible()
        assert found.page.locator("canvas").is_visible()
        assert len(found.page.pdf()) > 10_000


def test_without_scripts_the_findings_and_the_table_are_there(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(mismatched(4, 60)), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "SC104" in page.inner_text("article.finding")
    page.click("summary:has-text('as a table')")
    assert "all_reduce #" in page.inner_text("details.plain table")
    context.close()
