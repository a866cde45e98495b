"""What notebooks show: tables, every character of which is escaped."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import simcoll
from simcoll.core.notebook import html_table
from tests.reports.test_causes import REPORT
from tests.reports.test_sarif import a_report, mismatch


def rows(html: str) -> list[list[str | None]]:
    table = ElementTree.fromstring(html)
    return [[cell.text for cell in row] for row in table.iter("tr")]


def test_texts_are_escaped() -> None:
    assert rows(html_table("<t>", [("<a>", "&b")], ("'c'", "d"))) == [["'c'", "d"], ["<a>", "&b"]]


def test_an_estimate() -> None:
    flat = simcoll.flat(ranks=8, bandwidth=50e9, latency=1e-6)
    shown = rows(simcoll.estimate("all_reduce", 1 << 30, flat, algorithm="ring", engine="flow")._repr_html_())
    assert [row[0] for row in shown] == ["time", "algorithm", "bus bandwidth", "bottleneck"]
    assert shown[1][1] is not None
    assert shown[1][1].startswith("ring")


def test_a_report_with_findings_and_advice() -> None:
    shown = rows(REPORT._repr_html_())
    assert [row[0] for row in shown] == ["finding", "SC104", "cause", "restart"]
    assert shown[1][3] == "rank 2"
    assert shown[3][2] == "without hosts node-1"


def test_a_report_with_hostile_texts() -> None:
    hostile = "<script>alert(1)</script>"
    shown = a_report(replace(mismatch(), message=hostile))._repr_html_()
    assert "<script" not in shown
    assert rows(shown)[1][2] == hostile


def test_a_report_without_findings() -> None:
    assert rows(a_report()._repr_html_()) == []
