"""The report as a page: self-contained, and nothing of a trace runs."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest

from simcoll.core.record import Group
from simcoll.reports.html_report import Figure, html_report
from simcoll.verifier.findings.finding import DRY_RUN, Progress, Report, Severity, Summary, Verdict
from simcoll.verifier.findings.rules import RULES
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.requested import charted
from tests.reports.pages import HOSTILE, hostile, mismatched, page_of, waiting_circle
from tests.reports.tags import Tags


def test_hostile_text_is_text() -> None:
    report, traces = hostile()
    tags = Tags(html_report(report, charted(report, traces)))
    assert "img" not in tags.seen
    assert tags.handlers == []
    assert all(link.startswith("#") for link in tags.links)
    # The data and the page's own script: what a trace says has not opened a third.
    assert len(tags.text["script"]) == 2
    assert any("<img src=x" in text for texts in tags.text.values() for text in texts)


def test_data_of_a_chart_is_json_that_ends_no_element() -> None:
    report, traces = hostile()
    data = Tags(html_report(report, charted(report, traces))).text["script"][0]
    assert not set("<>&\u2028\u2029") & set(data)
    assert json.loads(data)["ops"][1].startswith(HOSTILE[:20])


def test_the_policy_names_the_page_s_own_style_and_script_alone() -> None:
    page = page_of(mismatched(4, 12))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    style, script = (re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("style", "script"))
    assert len(style) == len(script) == 1
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (*style, *script)]
    said = policy[1].replace("&#39;", "'")
    assert said == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_nothing_is_loaded_from_anywhere() -> None:
    tags = Tags(page_of(mismatched(4, 12)))
    assert all(link.startswith("#") for link in tags.links)
    assert {link[1:] for link in tags.links} <= set(tags.ids)
    assert not {"link", "iframe", "object", "embed", "img", "base"} & tags.seen


def test_both_sides_their_lines_and_the_field_in_which_they_differ() -> None:
    page = page_of(mismatched(4, 12))
    assert "SC104" in page
    assert "train.py:41 in step" in page
    assert "dist.all_reduce(loss)" in page
    tags = Tags(page)
    marked = [text for text in tags.text["mark"] + tags.text["span"] if text in ("sum", "max")]
    assert sorted(marked) == ["max", "sum"]


def test_rules_of_the_findings_are_in_the_page() -> None:
    page = page_of(mismatched(4, 12))
    assert 'id="rule-SC104"' in page
    assert 'href="#rule-SC104"' in page
    assert RULES["SC104"].means.split("\n\n")[0][:40] in page
    assert 'id="rule-SC101"' not in page


def test_a_circle_of_waits_is_drawn_and_said() -> None:
    page = html_report(waiting_circle())
    assert page.count('class="arrow"') == 3
    assert "rank 0 waits for rank 1; rank 1 waits for rank 2; rank 2 waits for rank 0" in page
    assert "rank 2 (culprit)" in page


def test_a_job_that_only_warns_has_not_failed() -> None:
    report = judge(mismatched(4, 12))
    warned = replace(report, findings=tuple(replace(one, severity=Severity.WARNING) for one in report.findings))
    assert 'class="verdict warned"' in html_report(warned)
    assert 'class="verdict findings"' in html_report(report)


def test_ranks_that_share_no_clock_have_no_times() -> None:
    traces = mismatched(4, 12)
    report = replace(judge(traces), mode=DRY_RUN)
    chart = charted(report, traces)
    assert chart is not None
    assert {column.time_ns for column in chart.columns} == {0}
    assert "placed by order" in html_report(report, chart)
    assert 'name="colour"' not in html_report(report, chart)


def test_a_clean_run_is_a_page_too() -> None:
    page = html_report(Report(Verdict.OK, 2, "detail", (), (), 7))
    assert "7 collectives on 2 ranks agree" in page
    assert "Nothing wrong" in page
    assert page.startswith("<!DOCTYPE html>")
    assert "chart-data" not in page.partition("<script>")[0]


def test_a_figure_is_an_image_of_its_own() -> None:
    page = html_report(Report(Verdict.OK, 2, "detail", (), ()), figures=[Figure("Topology", "<svg></svg>", "a & b")])
    assert f'src="data:image/svg+xml;base64,{b64encode(b"<svg></svg>").decode()}" alt="a &amp; b"' in page
    assert "img-src data:" in page


@pytest.mark.slow
def test_a_large_job_stays_below_ten_megabytes() -> None:
    assert len(page_of(mismatched(512, 300)).encode()) < 2_000_000


def test_of_many_groups_some_are_listed_and_the_others_counted() -> None:
    groups = [Group(f"g{number}", f"part_{number}", (0, 1)) for number in range(130)]
    progress = tuple(Progress(group.description, 2, (group,), (0, 1)) for group in groups)
    report = Report(Verdict.OK, 2, "record", (), (), 0, summary=Summary(2, 2, ("record",), 0, 0, progress, ()))
    text = html_report(report)
    assert "part_99 " in text
    assert "part_100 " not in text
    assert "and 30 more groups, which report.json has" in text
