"""A timeline of what ranks recorded, by the wall clocks of their hosts: each rank a process, each group a thread.

Calls of a group that overlap on a rank (asynchronous ones) stand on as many threads as that needs. Findings are
instants on the ranks that they name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from simcoll.core.ranges import ranks_text
from simcoll.core.record import State
from simcoll.core.trace import Trace, record_at
from simcoll.pricing.job import Matched, match_traces
from simcoll.pricing.views.slice_plan import SlicePlan, flow_ends, plan_slices
from simcoll.reports.trace_event import LIMIT, Instant, Slice, TraceEvents
from simcoll.verifier.findings.describe import culprits_text, group_name, group_text, source_text
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import RULES

_LANES = 64
"""Threads of one group on a rank; calls that would need more share the last one's end."""

_NAMED = 64
"""Ranks of a finding that have an instant each; its text has them all."""

_LATEST = (1 << 62) - 1

Times = npt.NDArray[np.int64]


def recorded(traces: Sequence[Trace], limit: int = LIMIT, findings: Sequence[Finding] = ()) -> TraceEvents:
    """The timeline of a job with what was found in it, of as many ranks as fit into ``limit`` slices."""
    matched = match_traces(traces)
    ranks = [trace.rank for trace in traces]
    ends = [int(_ends(trace).max(initial=0)) for trace in traces]
    slowest = int(np.argmax(ends)) if ends else 0
    named = {rank for finding in findings for rank in finding.culprits[:_NAMED]}
    wanted = [column for column, rank in enumerate(ranks) if rank in named]
    plan = plan_slices(ranks, [len(trace.slots) for trace in traces], 1, slowest, limit, wanted)
    begins = [_begins(traces[column]) for column in plan.columns]
    start = min((int(one[one > 0].min()) for one in begins if (one > 0).any()), default=0)
    shown = _Recorded(traces, matched, plan, start)
    return TraceEvents(
        {ranks[column]: f"rank {ranks[column]}" for column in plan.columns},
        shown.threads(),
        shown.all(),
        begin_ns=start,
        note=plan.note,
        about={"simcoll": "recorded"},
        instants=[one for finding in findings for one in shown.instants(finding)],
    )


def _begins(trace: Trace) -> Times:
    """The begin of each call: as the backend was given it, or as it was made."""
    made, started = (_times(trace, name) for name in ("scheduled_ns", "started_ns"))
    begins: Times = np.where(started > 0, started, made)
    return begins


def _times(trace: Trace, name: str) -> Times:
    """A column of times; what no clock shows is taken to be the last moment that one could."""
    times: Times = np.minimum(trace.slots[name], _LATEST).astype(np.int64)
    return times


def _ends(trace: Trace) -> Times:
    """Returns when each call ended; for one that had not, the last moment that the record covers."""
    ended, begins = _times(trace, "finished_ns"), _begins(trace)
    last = max(min(trace.seen_ns, _LATEST), int(begins.max(initial=0)), int(ended.max(initial=0)))
    return np.maximum(np.where(ended > 0, ended, last), begins)


class _Recorded:
    def __init__(self, traces: Sequence[Trace], matched: Matched, plan: SlicePlan, start: int) -> None:
        self._traces, self._matched, self._plan, self._start = traces, matched, plan, start
        self._lanes = {column: self._laned(column) for column in plan.columns}
        parts = []
        for column in plan.columns:
            own = matched.instances[column][: plan.operations]
            begins, ends = (times(traces[column])[: plan.operations] for times in (_begins, _ends))
            # An arrow begins and ends at what takes time.
            joined = (own >= 0) & (ends > begins)
            parts.append((column, own[joined], begins[joined]))
        self._flows = flow_ends(len(matched.collectives), parts)

    def _laned(self, column: int) -> npt.NDArray[np.int32]:
        """For each call the thread of its group that is free when it begins: the first such."""
        trace = self._traces[column]
        begins, ends = _begins(trace)[: self._plan.operations], _ends(trace)[: self._plan.operations]
        groups = trace.slots["group"][: self._plan.operations]
        lanes = np.zeros(len(begins), np.int32)
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            rows = rows[np.argsort(begins[rows], kind="stable")]
            if (begins[rows][1:] < ends[rows][:-1]).any():
                lanes[rows] = _lanes(begins[rows].tolist(), ends[rows].tolist())
        return lanes

    def _thread(self, group: int, lane: int) -> int:
        return group * _LANES + lane

    def threads(self) -> dict[tuple[int, int], str]:
        """The threads of all ranks that are shown, by name."""
        found = {}
        for column in self._plan.columns:
            trace, lanes = self._traces[column], self._lanes[column]
            groups = trace.slots["group"][: len(lanes)].astype(np.int64)
            for thread in np.unique(groups * _LANES + lanes).tolist():
                group, lane = divmod(thread, _LANES)
                found[trace.rank, thread] = _group_label(trace, group) + (f" ({lane + 1})" if lane else "")
        return found

    def all(self) -> Iterator[Slice]:
        """Rank after rank; each thread's slices in order of time."""
        for column in self._plan.columns:
            trace, lanes = self._traces[column], self._lanes[column]
            begins, ends = _begins(trace), _ends(trace)
            free: dict[int, int] = {}
            for row in np.argsort(begins[: len(lanes)], kind="stable").tolist():
                thread = self._thread(int(trace.slots["group"][row]), int(lanes[row]))
                begin = max(int(begins[row]) - self._start, free.get(thread, 0), 0)
                end = free[thread] = max(int(ends[row]) - self._start, begin)
                yield self._slice(column, row, thread, begin, end)

    def instants(self, finding: Finding) -> Iterator[Instant]:
        """A finding on each of its culprits, or if there are none on each of its ranks: at the call, or at the end."""
        concerned = set(finding.culprits or finding.ranks)
        columns = [column for column in self._plan.columns if self._traces[column].rank in concerned]
        name = f"{finding.code} {RULES[finding.code].name}"
        for column in columns[:_NAMED]:
            rank, row = self._traces[column].rank, self._row(column, finding)
            if row is None:
                yield Instant(rank, None, name, max(self._last(column) - self._start, 0), _told(finding))
            else:
                time = max(int(_begins(self._traces[column])[row]) - self._start, 0)
                group = int(self._traces[column].slots["group"][row])
                yield Instant(rank, self._thread(group, int(self._lanes[column][row])), name, time, _told(finding))

    def _row(self, column: int, finding: Finding) -> int | None:
        """A rank's record of the collective that a finding is about; None where it has none, or it is not shown."""
        trace = self._traces[column]
        slots = trace.slots[: len(self._lanes[column])]
        indices = [index for index, group in enumerate(trace.groups) if group == finding.group]
        if finding.sequence is None or not indices:
            return None
        at = (slots["group"] == indices[0]) & (slots["sequence"] == finding.sequence) & (slots["p2p_sequence"] == 0)
        rows = np.flatnonzero(at)
        return int(rows[0]) if len(rows) else None

    def _last(self, column: int) -> int:
        return int(_ends(self._traces[column]).max(initial=0))

    def _slice(self, column: int, row: int, thread: int, begin: int, end: int) -> Slice:
        trace, number = self._traces[column], int(self._matched.instances[column][row])
        record = record_at(trace, row)
        if record is None:
            return Slice(trace.rank, thread, "unreadable call", begin, end, {})
        args: dict[str, object] = {
            "group": record.group,
            "sequence": record.p2p_sequence or record.sequence,
            "bytes": self._matched.size(column, row),
            "state": State(record.state).name.lower(),
            "source": source_text(record.source),
        }
        phase = self._flows.phase(number, column) if number >= 0 else ""
        return Slice(trace.rank, thread, record.call.op, begin, end, args, number + 1 if phase else 0, phase)


def _told(finding: Finding) -> dict[str, object]:
    return {
        "message": finding.message,
        "severity": finding.severity.value,
        "ranks": ranks_text(finding.ranks),
        "culprits": culprits_text(finding),
        "group": "" if finding.group is None else group_text(finding.group),
        "sequence": finding.sequence,
        "advice": RULES[finding.code].advice,
    }


def _group_label(trace: Trace, index: int) -> str:
    if index >= len(trace.groups):
        return "unknown group"
    group = trace.groups[index]
    return f"{group.name} {group_name(group)}"


def _lanes(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    free: list[int] = []
    found = []
    for begin, end in zip(begins, ends, strict=True):
        lane = next((lane for lane, until in enumerate(free) if until <= begin), len(free))
        if lane == len(free) and lane < _LANES:
            free.append(end)
        lane = min(lane, _LANES - 1)
        free[lane] = max(end, free[lane])
        found.append(lane)
    return found
