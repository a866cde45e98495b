"""Pages of prices in a real browser: the timeline over time draws, zooms and tells; axe is content; nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simcoll.core.record import Group
from simcoll.reports.page_shell import PageTable
from simcoll.reports.price_page import (
    COLLECTIVE,
    COMPUTE,
    EXPOSED,
    WAITING,
    Bar,
    Bars,
    Fact,
    Sheet,
    Span,
    Spans,
    sheet_page,
)
from tests.reports.browser import AXE, Opened, opened, started
from tests.reports.pages import HOSTILE
from tests.reports.test_price_page import TOPOLOGY, operation, renamed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


def spans(name: str = "all_reduce", ranks: int = 4, calls: int = 50) -> Spans:
    """Ranks that compute for 60 us, wait for 10, and are held up for 30; the collective takes 50.

    Every fifth one is an all_gather of another group.
    """
    found = []
    for row in range(ranks):
        for call in range(calls):
            at, own = call * 100_000, call % 5 == 4
            for kind, begin, end in ((COMPUTE, 0, 60), (WAITING, 60, 70), (EXPOSED, 70, 100)):
                op = "" if kind == COMPUTE else "all_gather" if own else name
                times = at + begin * 1000, at + end * 1000
                found.append(Span(row, 0, kind, op, call + 1 if op else 0, "", *times, group=int(bool(op) and own)))
        for call in range(calls):
            at, own = call * 100_000, call % 5 == 4
            op, times = "all_gather" if own else name, (at + 50_000, at + 100_000)
            found.append(Span(row, 1, COLLECTIVE, op, call + 1, f"8 B of {op}", *times, group=int(own)))
    groups = (Group("0", name, tuple(range(ranks))), 1), (Group("1", "mesh_tp", (0, 1)), 2)
    end, step = calls * 100_000, (200_000, 300_000)
    return Spans(tuple(range(ranks)), (name, "all_gather"), tuple(found), end, step, "of some ranks", groups)


def job(name: str = "all_reduce", ranks: int = 4, calls: int = 50) -> Sheet:
    bars = Bars("Where time goes", ("compute", "exposed", "waiting"), (Bar(name, (0.6, 0.3, 0.1), f"{name} in words"),))
    table = PageTable(name, (name, "time"), ((name, "1 us"),) * 20, note=name, folded=True)
    fact = Fact(name, name, name, marked=True)
    shown = operation(TOPOLOGY if name == "all_reduce" else renamed(TOPOLOGY))
    return Sheet(
        name,
        name,
        name,
        (fact, fact),
        (name,),
        (name,),
        bars,
        shown.curve,
        spans(name, ranks, calls),
        (table,),
        (replace(table, title=f"more of {name}"),),
        shown.figures,
    )


def written(tmp_path: Path, sheet: Sheet) -> Path:
    path = tmp_path / "page.html"
    path.write_text(sheet_page(sheet), encoding="utf-8", errors="backslashreplace")
    return path


@pytest.fixture
def page(tmp_path: Path, browser: Any) -> Iterator[Opened]:
    with opened(browser, written(tmp_path, job())) as found:
        yield found
        assert found.complaints == []
        assert not [url for url in found.requests if not url.startswith(("file:", "data:image/svg+xml"))]


def middle(page: Opened) -> tuple[float, float]:
    box = page.box()
    return box["x"] + box["width"] / 2, box["y"] + 12


def test_it_is_drawn_whole_and_tells_of_what_is_pointed_at(page: Opened) -> None:
    assert page.view == pytest.approx((0, 5000))
    assert page.pixels() > 5
    box = page.box()
    page.page.mouse.move(box["x"] + box["width"] * 0.005, box["y"] + 10)
    assert page.page.inner_text(".tip").splitlines() == ["rank 0: computes", "60 us, from 0 us to 60 us"]
    page.page.mouse.move(box["x"] + box["width"] * 0.0055 + box["width"] * 0.01, box["y"] + 29)
    assert page.page.inner_text(".tip").startswith("rank 0: all_reduce #")
    assert "8 B of all_reduce" in page.page.inner_text(".tip")
    page.page.mouse.move(box["x"] + 5, box["y"] - 100)
    assert not page.page.locator(".tip").is_visible()


def test_wheel_drag_and_buttons(page: Opened) -> None:
    page.page.mouse.move(*middle(page))
    for _ in range(4):
        page.page.mouse.wheel(0, -300)
        page.settled()
    near = page.view
    assert near[1] - near[0] < 4000
    page.page.mouse.down()
    page.page.mouse.move(middle(page)[0] - 120, middle(page)[1], steps=4)
    page.page.mouse.up()
    page.settled()
    assert page.view[0] > near[0]
    page.page.click("[data-do=step]")
    page.settled()
    assert page.view == pytest.approx((198, 302))
    page.page.click("[data-do=whole]")
    page.settled()
    assert page.view == pytest.approx((0, 5000))


def test_keys_go_from_bar_to_bar_and_speak(page: Opened) -> None:
    page.page.focus("canvas")
    said = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.page.keyboard.press(key)
        said.append(page.page.inner_text(".live").partition(";")[0])
    assert said == [
        "rank 0: computes",
        "rank 0: waits for other ranks",
        "rank 0: held up by all_reduce #1",
        "rank 0: all_reduce #1",
        "rank 1: computes",
    ]
    for key in ("+", "+", "End"):
        page.page.keyboard.press(key)
    page.settled()
    assert page.view[1] == 5000
    assert page.view[0] > 0
    page.page.keyboard.press("0")
    page.settled()
    assert page.view == pytest.approx((0, 5000))


def test_filters_by_group_op_and_rank_and_keeps_the_time(page: Opened) -> None:
    count = page.page.locator(".count")
    page.page.click("[data-do=in]")
    page.settled()
    seen = page.view
    page.page.select_option("[name=op]", label="all_gather")
    page.settled()
    # Ten of fifty calls of each of four ranks: a wait, what it holds up, and the call itself.
    assert count.inner_text().startswith("4 of 4 ranks, 120 of 800 bars; ")
    assert page.view == seen
    page.page.fill("[name=ranks]", "1, 3")
    page.settled()
    assert count.inner_text().startswith("2 of 4 ranks, 60 of 800 bars; ")
    page.page.focus("canvas")
    page.page.keyboard.press("Home")
    page.page.keyboard.press("ArrowRight")
    assert page.page.inner_text(".live").startswith("rank 1: waits for other ranks")
    assert page.page.inner_text(".live").endswith("to come to all_gather #5 of mesh_tp")
    page.page.select_option("[name=group]", index=1)
    page.settled()
    assert count.inner_text().startswith("2 of 4 ranks, 0 of 800 bars; ")
    page.page.fill("[name=ranks]", "few")
    assert "Expected ranks" in page.page.inner_text(".wrong")
    page.page.click("[type=reset]")
    page.page.locator(".wrong:empty").wait_for(state="attached")
    page.page.click("[data-do=whole]")
    page.settled()
    assert count.inner_text() == "5.00 ms, all of it"


def test_a_phone_shows_it_and_pinches(browser: Any, tmp_path: Path) -> None:
    path = written(tmp_path, job())
    with opened(browser, path, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as found:
        assert found.page.evaluate("document.documentElement.scrollWidth") <= 360
        found.page.tap("canvas", position={"x": 20, "y": 10})
        assert found.page.locator(".tip").is_visible()
        pinch(found)
        assert found.view[1] - found.view[0] < 4000
        assert found.complaints == []


def pinch(found: Opened) -> None:
    """Two fingers that move apart on the canvas."""
    box = found.box()
    devtools = found.page.context.new_cdp_session(found.page)
    centre, y = box["x"] + box["width"] / 2, box["y"] + 10
    for kind, distances in (("touchStart", [20]), ("touchMove", range(25, 80, 5)), ("touchEnd", [0])):
        for distance in distances:
            ends = [(centre - distance, 0), (centre + distance, 1)]
            points = [] if kind == "touchEnd" else [{"x": x, "y": y, "id": number} for x, number in ends]
            devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    found.settled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, tmp_path: Path, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not there: npm ci in reports/page/vendor brings it")
    with opened(browser, written(tmp_path, job()), color_scheme=scheme, bypass_csp=True) as found:
        found.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        found.page.evaluate(AXE.read_text(encoding="utf-8"))
        violations = found.page.evaluate("axe.run().then(found => found.violations)")
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in violations] == []


def test_nothing_that_names_say_runs(browser: Any, tmp_path: Path) -> None:
    path = written(tmp_path, job(HOSTILE))
    for bypass in (False, True):
        with opened(browser, path, bypass_csp=bypass) as found:
            found.page.focus("canvas")
            for key in ("ArrowRight", "ArrowDown"):
                found.page.keyboard.press(key)
            found.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            found.settled()
            assert found.complaints == []
            assert HOSTILE[:30] in found.page.inner_text(".tip")


def test_it_prints_and_needs_no_scripts_for_its_tables(browser: Any, tmp_path: Path) -> None:
    path = written(tmp_path, job())
    with opened(browser, path, color_scheme="dark") as found:
        found.page.emulate_media(media="print", color_scheme="dark")
        assert found.page.evaluate("getComputedStyle(document.body).colorScheme") == "light"
        assert len(found.page.pdf()) > 10_000
    context = browser.new_context(java_script_enabled=False)
    bare = context.new_page()
    bare.goto(path.as_uri())
    assert bare.locator("img").is_visible()
    assert "bottleneck" in bare.locator("img").get_attribute("alt")
    context.close()


def test_a_long_job_is_small_and_drawn(browser: Any, tmp_path: Path) -> None:
    path = written(tmp_path, job(ranks=24, calls=1500))
    assert path.stat().st_size < 10_000_000
    with opened(browser, path) as found:
        assert found.view == pytest.approx((0, 150_000))
        found.page.focus("canvas")
        for key in ("+", "+", "End", "ArrowRight"):
            found.page.keyboard.press(key)
        found.settled()
        assert found.view[0] > 0
        assert found.complaints == []
