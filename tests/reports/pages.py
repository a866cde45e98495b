"""Pages for the tests of report.html: jobs of any size with a planted bug, and hostile ones."""

from __future__ import annotations

import numpy as np

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.reports.html_report import html_report
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import (
    CallPlace,
    Finding,
    Mark,
    RankSource,
    RankState,
    RankStatus,
    Report,
    Severity,
    Side,
    Verdict,
)
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.chart import Chart, ChartColumn, ChartKind, Spot
from simcoll.verifier.views.requested import charted
from tests.support.traces import trace_of

SECOND = 10**9
BEGIN = 1_800_000_000 * SECOND
TENSORS = (Buffer((4,), "float32", "cuda"),)
HOSTILE = (
    "</script><script>planted('script')</script>\"'><img src=x onerror=planted('image')>"
    "<svg onload=planted('svg')><!--<script>{{7*7}}\u2028\u2029\u202e`${planted('template')}`"
)
"""Text that runs something wherever it is taken for markup; ``planted`` is what a test listens for."""


def call(op: str = "all_reduce", reduce_op: str | None = "sum") -> Call:
    return Call(op, op, TENSORS, TENSORS, reduce_op=reduce_op)


def mismatched(ranks: int, records: int, *, odd: int = 1) -> list[MemoryTrace]:
    """Ranks that alternate between two groups; one of them takes the maximum where the others sum."""
    world = Group("0", "default_pg", tuple(range(ranks)))
    step = max(ranks // 2, 1)
    halves = [Group(f"h{half}", "mesh_dp", tuple(range(half * step, (half + 1) * step))) for half in range(2)]
    # Every third call is one of the halves.
    position = records // 2 + (records // 2 % 3 == 0)
    sums, odd_call, gather = call(), call(reduce_op="max"), call("all_gather", None)
    line, other = Source("train.py", 41, "step", "dist.all_reduce(loss)"), Source("model.py", 7, "forward", "gather(x)")
    traces = []
    for rank in range(ranks):
        half = halves[min(rank // step, 1)]
        made, counts = [], {"0": 0, half.name: 0}
        for number in range(1, records + 1):
            name = half.name if number % 3 == 0 else "0"
            counts[name] += 1
            said = odd_call if (rank, number) == (odd, position) else gather if number % 3 == 0 else sums
            when = BEGIN + number * SECOND // 1000 + rank * 1000
            source = other if number % 3 == 0 else line
            open_end = number == records and rank == odd
            state = State.STARTED if open_end else State.COMPLETED
            made.append(Record(name, counts[name], said, source, state, scheduled_ns=when, finished_ns=when + 50_000))
        traces.append(trace_of(rank, ranks, (world, half), made, mode="record"))
    return traces


def page_of(traces: list[MemoryTrace]) -> str:
    report = judge(traces)
    return html_report(report, charted(report, traces))


def waiting_circle() -> Report:
    """Three ranks that wait for each other, the last of them a culprit."""
    sides = tuple(
        Side(
            (rank,),
            call("send", None),
            (RankSource(rank, Source("ring.py", 9, "f", "send(x)")),),
            f"waits for rank {(rank + 1) % 3}",
        )
        for rank in range(3)
    )
    finding = Finding("SC204", Severity.ERROR, "none of them can go on", ranks=(0, 1, 2), culprits=(2,), sides=sides)
    return Report(Verdict.FINDINGS, 3, "detail", (finding,), ())


def crossed() -> tuple[Report, list[MemoryTrace]]:
    """Two ranks that wait for each other in calls of two groups, three hundred calls apart in the timeline."""
    traces = mismatched(4, 60)
    groups = [trace.groups[1] for trace in (traces[0], traces[2])]
    sides = tuple(
        Side((rank,), call(), (), f"waits for rank {2 - rank}", CallPlace(group, number))
        for rank, group, number in zip((0, 2), groups, (3, 12), strict=True)
    )
    finding = Finding("SC204", Severity.ERROR, "none of them can go on", ranks=(0, 2), sides=sides)
    return Report(Verdict.FINDINGS, 4, "detail", (finding,), ()), traces


def large(ranks: int, calls: int) -> str:
    """The page of a job of any size, whose chart is written down as it is: ranks of 64 kinds, one of which stands."""
    world = Group("0", "default_pg", tuple(range(ranks)))
    kinds = (ChartKind(Mark.OUTSIDE), ChartKind(Mark.DONE, "all_reduce"), ChartKind(Mark.DONE, "all_gather"))
    cells = np.random.default_rng(7).integers(1, 3, (min(ranks, 64), calls)).astype(np.uint16)
    cells[1, -5:] = len(kinds)
    rows = (np.arange(ranks) % len(cells)).astype(np.uint32)
    columns = tuple(ChartColumn(0, number, False, 1, BEGIN + number * 1000) for number in range(1, calls + 1))
    finding = Finding("SC201", Severity.ERROR, "late", world, calls - 4, world.ranks, (1,))
    chart = Chart(
        world.ranks,
        columns,
        ((world, 1),),
        (*kinds, ChartKind(Mark.OPEN, "all_reduce")),
        cells,
        rows,
        (Spot(0, calls - 5, (1,)),),
        total=calls,
    )
    return html_report(Report(Verdict.FINDINGS, ranks, "detail", (finding,), ()), chart)


def hostile() -> tuple[Report, list[MemoryTrace]]:
    """Everything that a trace can say, said by somebody who wants scripts to run."""
    group = Group(HOSTILE, HOSTILE, (0, 1))
    source = Source(HOSTILE, 1, HOSTILE, HOSTILE)
    asked = Call(HOSTILE, HOSTILE, (Buffer((4,), HOSTILE, HOSTILE),), reduce_op=HOSTILE)
    record = Record(HOSTILE, 1, asked, source, State.FAILED, scheduled_ns=BEGIN)
    side = Side((0,), asked, (RankSource(0, source),), HOSTILE)
    found = [
        Finding(code, Severity.ERROR, HOSTILE, group, 1, (0, 1), (0,), (side, side)) for code in ("SC104", "SC204")
    ]
    states = tuple(RankState(rank, RankStatus.FAILED, 1) for rank in range(2))
    traces = [trace_of(rank, 2, (group,), [record], mode=HOSTILE) for rank in range(2)]
    return Report(
        Verdict.FINDINGS, 2, HOSTILE, tuple(found), states, notes=(HOSTILE,), last={0: record, 1: record}
    ), traces
