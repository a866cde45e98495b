"""The tables of a page: ranks by where they ended, and the calls that matter."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.reports.html_report import call_rows, crowds
from simcoll.verifier.findings.finding import RankState, RankStatus, Report, Verdict
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.requested import charted
from tests.reports.pages import mismatched


def ended(states: Sequence[RankState]) -> Report:
    return Report(Verdict.FAILED, len(states), "detail", (), tuple(states))


def test_ranks_that_ended_alike_share_a_row() -> None:
    states = [RankState(rank, RankStatus.FINISHED, 0) for rank in range(4096) if rank != 7]
    states.insert(7, RankState(7, RankStatus.FAILED, -9))
    found, left_out = crowds(ended(states))
    assert [(crowd.ranks, crowd.count, crowd.state) for crowd in found] == [
        ("ranks 0-6 and 8-4095", 4095, "finished"),
        ("rank 7", 1, "failed (SIGKILL)"),
    ]
    assert left_out == 0


def test_what_is_left_out_is_counted() -> None:
    found, left_out = crowds(ended([RankState(rank, RankStatus.FAILED, rank + 1) for rank in range(300)]))
    assert len(found) + left_out == 300
    assert left_out == 100


def test_the_calls_that_matter_are_those_of_findings_open_ones_and_the_last() -> None:
    traces = mismatched(4, 300)
    report = judge(traces)
    chart = charted(report, traces)
    assert chart is not None
    rows = call_rows(chart)
    assert len(rows) <= 60
    named = chart.spots[0].column + 1
    assert named in [row.place for row in rows]
    assert rows[-1].place == 300
    assert "open: rank 1" in rows[-1].others
