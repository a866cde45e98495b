"""What would stand still in the real run: calls that only some of the ranks make, though in a dry run all of them end.

The n-th collective of a group ends when every member has made n. Where a member that ran made fewer, the others' next
one would wait for ever: it is put down as begun, with nothing of its rank after it, and the job as ended for standing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcoll.record import State
from simcoll.verifier.finding import Finding, Report
from simcoll.verifier.ranges import ranks_text
from simcoll.verifier.rules_job import RANK_EXITED_EARLY
from simcoll.verifier.rules_order import CALL_SKIPPED
from simcoll.verifier.trace import AWAITED, LaunchOutcome, Life, MemoryTrace, RankExit, Stall, altered, lives, reached

_WATCHED_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class Halt:
    """The job as it would have been found standing."""

    traces: list[MemoryTrace]
    outcome: LaunchOutcome
    stall: Stall


def halt_of(traces: Sequence[MemoryTrace], exits: Mapping[int, RankExit], last_ns: int) -> Halt | None:
    """The job as it would stand; None where every collective has all the members that ran."""
    least = _least(traces)
    stuck = {trace.rank: row for trace in traces if (row := _first_beyond(trace, least)) is not None}
    if not stuck:
        return None
    stopped = {rank: replace(end, exit_code=-15, stopped=True) if rank in stuck else end for rank, end in exits.items()}
    cut = [_cut(trace, stuck[trace.rank]) if trace.rank in stuck else trace for trace in traces]
    stall = Stall(last_ns, last_ns + _WATCHED_NS, blocked=frozenset(stuck))
    return Halt(cut, LaunchOutcome(stopped), stall)


def _least(traces: Sequence[MemoryTrace]) -> dict[Life, int]:
    """How far the member that made the fewest collectives came, by group."""
    least: dict[Life, int] = {}
    for counts in (reached(trace) for trace in traces):
        for life, count in counts.items():
            least[life] = min(count, least.get(life, count))
    return least


def _first_beyond(trace: MemoryTrace, least: Mapping[Life, int]) -> int | None:
    """The first row of a rank that not all members that ran have come to."""
    known = lives(trace)
    limits = np.array([least[life] for life in known] or [0])
    slots = trace.slots
    rows = np.nonzero((slots["p2p_sequence"] == 0) & (slots["sequence"] > limits[slots["group"]]))[0]
    return int(rows[0]) if len(rows) else None


def _cut(trace: MemoryTrace, row: int) -> MemoryTrace:
    slots = trace.slots[: row + 1].copy()
    slots["state"][row], slots["finished_ns"][row] = State.STARTED, 0
    slots["flags"][row] |= AWAITED
    begun = int(slots["scheduled_ns"][row])
    return altered(trace, slots, [event for event in trace.events if event.time_ns <= begun])


def by_majority(report: Report, halt: Halt) -> Report:
    """SC202 in the place of SC702 where most of a group's ranks have ended: the others made a call too many."""
    run = {trace.rank for trace in halt.traces}
    return replace(report, findings=tuple(_by_majority(finding, run) for finding in report.findings))


def _by_majority(finding: Finding, run: set[int]) -> Finding:
    members = run & set(() if finding.group is None else finding.group.ranks)
    waiting = sorted(members - set(finding.culprits))
    if finding.code != RANK_EXITED_EARLY.code or not waiting or len(finding.culprits) <= len(waiting):
        return finding
    message = (
        f"{ranks_text(waiting)} made collective {finding.sequence}, which {ranks_text(finding.culprits)}, most of the "
        f"group, ended without"
    )
    return replace(finding, code=CALL_SKIPPED.code, message=message, culprits=tuple(waiting))
