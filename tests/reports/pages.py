"""Pages for the tests of report.html: jobs of any size with a planted bug, and hostile ones."""

from __future__ import annotations

from simcoll.call import Buffer, Call
from simcoll.record import Group, Record, Source, State
from simcoll.reports.html_report import html_report
from simcoll.verifier.finding import Finding, RankSource, RankState, RankStatus, Report, Severity, Side, Verdict
from simcoll.verifier.postmortem import judge
from simcoll.verifier.trace import MemoryTrace, trace_of
from simcoll.verifier.view import charted

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
    states = tuple(RankState(rank, RankStatus.FAILED, 1, record) for rank in range(2))
    traces = [trace_of(rank, 2, (group,), [record], mode=HOSTILE) for rank in range(2)]
    return Report(Verdict.FINDINGS, 2, HOSTILE, tuple(found), states, notes=(HOSTILE,)), traces
