"""The report as a page: self-contained, and nothing of a trace runs."""

from __future__ import annotations

from html.parser import HTMLParser

from simcoll.call import Call
from simcoll.record import Group, Source
from simcoll.reports.html_report import html_report
from simcoll.verifier.finding import Finding, RankSource, Report, Severity, Side, Verdict

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]


def test_hostile_text_is_text() -> None:
    side = Side((0,), Call(HOSTILE, HOSTILE), (RankSource(0, Source(HOSTILE, 1, HOSTILE, HOSTILE)),), HOSTILE)
    finding = Finding("SC101", Severity.ERROR, HOSTILE, Group(HOSTILE, HOSTILE, (0,)), 1, sides=(side,))
    page = html_report(Report(Verdict.FINDINGS, 1, "detail", (finding,), (), notes=(HOSTILE,)))
    tags = Tags()
    tags.feed(page)
    assert tags.seen <= {"html", "head", "meta", "title", "style", "body", "main", "pre", "code", "span"}
    assert tags.links == []
    assert "&lt;script&gt;" in page


def test_a_clean_run_is_a_page_too() -> None:
    page = html_report(Report(Verdict.OK, 2, "detail", (), (), 7))
    assert "7 collectives on 2 ranks agree" in page
    assert page.startswith("<!DOCTYPE html>")
