"""What halted a job of which nobody tells but its ranks' own records: the calls that stand, and for how long.

:mod:`simcoll.verifier.halts.inferred` tells which calls are waited in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Group, Record
from simcoll.core.trace import Stall
from simcoll.verifier.findings.finding import CallPlace, Finding, Side
from simcoll.verifier.findings.rules import DEADLOCK_CYCLE, MISSING_RANK
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.job import Job
from simcoll.verifier.halts.missing import unseen_ranks
from simcoll.verifier.halts.wait_graph import Wait, WaitGraph, awaited, call_at, in_time, waits_of

_SHOWN = 8
_KNOT_NS, _UNCLEAR_NS = 2 * 10**9, 27 * 10**9
"""What a call must stand longer where no record shows who is missing: in a Gloo dump the last one may have ended, and
on a busy machine a dump takes ten seconds."""

_LARGEST_ELEMENT, _SLOW = 16, 10e6
"""Bytes of an element, at most, and bytes in a second that a slow network carries."""


def for_how_long(job: Job, wait: Wait) -> str:
    """For how long a wait was seen, as `` for 8 s``; empty where nothing tells it."""
    stall = job.stall
    if stall is None or (not stall.watched and not stall.dated):
        return ""
    seconds = stall.seconds if stall.watched else _seconds_open(wait.rank, wait.record, stall)
    return f" for {seconds:.0f} s" if seconds or not stall.watched else ""


def _seconds_open(rank: int, record: Record, stall: Stall) -> float:
    return (stall.until[rank] - record.scheduled_ns) / 1e9


def standing_calls(job: Job, waits: WaitGraph, stall: Stall) -> list[Finding]:
    """Where only records tell of it: calls to which all known members have come, and which take longer than they may.

    Where members are only known by their calls, and every rank of the job stands in a call of one of several groups,
    each of these waits for a rank that stands in another: SC204. Otherwise it is SC201 without a culprit: of calls of
    one group the first, to which all have come, holds up the others.
    """
    calls: dict[tuple[Group, int], list[tuple[int, Record]]] = {}
    for rank in sorted(waits.waiting):
        group, record = awaited(job.traces[rank])
        if _takes_too_long(rank, record, stall) and not record.p2p_sequence:
            calls.setdefault((group, record.sequence), []).append((rank, record))
    if not calls:
        return []
    for rank, last in job.last.items():
        # A rank whose last call is one in which another one stands has failed in it, just before its record ended.
        known = [group for group in job.traces[rank].groups if group.name == last.group]
        if rank not in waits.waiting and known and (known[0], last.sequence) in calls:
            calls[known[0], last.sequence].append((rank, last))
    everybody = {rank for ranks in calls.values() for rank, _ in ranks}
    size = job.size
    unseen = all(stall.misses(rank, record.scheduled_ns + _KNOT_NS) for (rank, record), *_ in calls.values())
    if stall.guessed and len(calls) > 1 and len(everybody) == size and unseen and (stall.dated or _alone(calls)):
        groups = {group for group, _ in calls}
        if len(groups) == 1:
            return [_unclear(calls, everybody)]
        # To a call of a group of all ranks everybody has come: it waits for nobody.
        if all(len(group.ranks) < size for group in groups):
            return [_knot(calls)]
    long = any(stall.misses(rank, record.scheduled_ns + _UNCLEAR_NS) for (rank, record), *_ in calls.values())
    return [_unclear(calls, everybody)] if stall.dated and long else []


def _alone(calls: Mapping[tuple[Group, int], Sequence[tuple[int, Record]]]) -> bool:
    """Whether a rank stands in a call of a group of which it alone is known: a group has more members than one."""
    return any(group.partial and len(group.ranks) == 1 for group, _ in calls)


def _takes_too_long(rank: int, record: Record, stall: Stall) -> bool:
    moved = sum(buffer.elements for buffer in (*record.call.inputs, *record.call.outputs)) * _LARGEST_ELEMENT
    return stall.until[rank] - record.scheduled_ns >= stall.patience_ns + moved / _SLOW * 1e9


def _knot(calls: Mapping[tuple[Group, int], Sequence[tuple[int, Record]]]) -> Finding:
    clauses = []
    for (group, _), members in list(calls.items())[:_SHOWN]:
        ranks = [rank for rank, _ in members]
        clauses.append(f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in {call_at(group, members[0][1])}")
    everybody = tuple(sorted(rank for ranks in calls.values() for rank, _ in ranks))
    message = f"none of them can go on: {', '.join(clauses)}, and no rank is left that could come"
    return DEADLOCK_CYCLE.finding(message, ranks=everybody, sides=_waiting_sides(calls))


def _unclear(calls: Mapping[tuple[Group, int], Sequence[tuple[int, Record]]], ranks: Iterable[int]) -> Finding:
    group, _ = min(calls, key=lambda call: calls[call][0][1].scheduled_ns)
    sequence, *later = sorted(number for known, number in calls if known == group)
    members = calls[group, sequence]
    waiting = {rank for rank, _ in members}
    passed = {rank for number in later for rank, _ in calls[group, number]} - waiting
    left = f", which {ranks_text(passed)} had left" if passed else ""
    message = (
        f"{ranks_text(waiting)} waited in {members[0][1].call.op} (collective {sequence}){left}, and the "
        "records do not tell for whom: a rank that left none, or what they do not state, may be the cause"
    )
    return MISSING_RANK.finding(
        message,
        group=group,
        sequence=sequence,
        ranks=ranks,
        sides=_waiting_sides(calls),
    )


def _waiting_sides(calls: Mapping[tuple[Group, int], Sequence[tuple[int, Record]]]) -> tuple[Side, ...]:
    return tuple(
        Side(
            tuple(rank for rank, _ in ranks),
            ranks[0][1].call,
            lines((rank, record.source) for rank, record in ranks),
            "waited",
            CallPlace(group, sequence),
        )
        for (group, sequence), ranks in list(calls.items())[:_SHOWN]
    )


def open_waits(job: Job, stall: Stall) -> list[str]:
    """In words who waited for whom when the records end, where these end too soon: the first such call."""
    waits = waits_of(job)
    for wait in in_time(waits.all()):
        if late := unseen_ranks(job, waits, wait):
            waiting = sorted({other.rank for other in waits.all() if other.call == wait.call})
            return [
                f"when the records end, {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} in {wait.where}, to "
                f"which {ranks_text(late)} had not come; they end too soon to tell whether it hangs"
            ]
    return _all_came(job, waits, stall)


def _all_came(job: Job, waits: WaitGraph, stall: Stall) -> list[str]:
    """In words the first call that stands though all known members have come to it."""
    standing = [(rank, *awaited(job.traces[rank])) for rank in sorted(waits.waiting)]
    found = [one for one in standing if not one[2].p2p_sequence and _takes_too_long(one[0], one[2], stall)]
    if not found:
        return []
    first, group, record = min(found, key=lambda one: one[2].scheduled_ns)
    ranks = [rank for rank, known, other in standing if (known, other.sequence) == (group, record.sequence)]
    seconds = f" for {_seconds_open(first, record, stall):.0f} s" if stall.dated else ""
    return [
        f"when the records end, {ranks_text(ranks)} had been in {call_at(group, record)}{seconds}, and all known "
        "members had come: it may just have ended, or what the records do not state, or a member of which they do not "
        "tell, holds it up"
    ]
