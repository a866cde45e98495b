"""Names the one call that went to another group than the others' call from the same line.

A rank that gives a call the wrong group is missing in the right one, and is one too many in the other: what is reported
is a deadlock, a missing rank, an extra call, or one that differs from those of the other group. Where the ranks stood
when the job halted is then another place than where it began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from simcoll.core.record import Group, Record
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.findings.describe import group_text, source_text
from simcoll.verifier.findings.finding import CallPlace, Finding, RankSource, Severity, Side
from simcoll.verifier.findings.rules import CALL_SKIPPED, DEADLOCK_CYCLE, FIELD_RULES, MISSING_RANK, RANK_EXITED_EARLY
from simcoll.verifier.program_text.parting import Ran, parting_at_line

_EXPLAINED = frozenset(
    rule.code for rule in (MISSING_RANK, RANK_EXITED_EARLY, CALL_SKIPPED, DEADLOCK_CYCLE, *FIELD_RULES)
)

_ASKED, _LACKING, _ROWS = 64, 8, 16
"""Ranks of a group whose calls are looked at, ranks that lack a call, and each one's last calls from its line."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A collective that a rank made in a group: its row, and its record."""

    trace: Trace
    group: Group
    row: int
    record: Record


@dataclass(frozen=True, slots=True)
class _Misplaced:
    """A call that went to its group where the ``others``' calls went to another one, to which its rank belongs too."""

    made: _Made
    expected: Group
    others: tuple[int, ...]


def with_wrong_groups(findings: Sequence[Finding], traces: Sequence[Trace], ran: Ran) -> tuple[Finding, ...]:
    """The findings; an error that follows from a call in the wrong group says so."""
    by_rank = {trace.rank: trace for trace in traces}
    explained = (one.code in _EXPLAINED and one.severity is Severity.ERROR for one in findings)
    return tuple(_told(one, by_rank, ran) if wanted else one for one, wanted in zip(findings, explained, strict=True))


def _told(finding: Finding, traces: Mapping[int, Trace], ran: Ran) -> Finding:
    every = [one for made in _suspects(finding, traces) if (one := _misplaced(made, traces))]
    # Of groups in a ring each rank is in the wrong one for the next.
    if len({one.made.trace.rank for one in every} | set(finding.culprits)) != 1 or not every:
        return finding
    made, rank, expected, others = every[0].made, every[0].made.trace.rank, every[0].expected, every[0].others
    message = (
        f"rank {rank} made its {made.record.call.op} at {source_text(made.record.source)} in {group_text(made.group)}, "
        f"where the others' call from that line is in {group_text(expected)}; {finding.message}"
    )
    # The ranks made the call of one line: only what gave them their groups has parted them.
    sides = (Side(ranks, made.record.call, (RankSource(ranks[0], made.record.source),)) for ranks in ((rank,), others))
    known = finding.parted is not None and finding.parted.behind
    parted = finding.parted if known else parting_at_line(tuple(sides), ran)
    return replace(finding, message=message, culprits=(rank,), differing=("group",), parted=parted)


def _suspects(finding: Finding, traces: Mapping[int, Trace]) -> Iterator[_Made]:
    """The calls of a finding, and those from its lines that ranks which lack them made in other groups."""
    absent: dict[tuple[Group, int], list[int]] = {}
    for side in finding.sides:
        place = side.place
        if place is None and finding.group is not None and finding.sequence is not None:
            place = CallPlace(finding.group, finding.sequence)
        made = None if place is None or side.call is None else _made(traces.get(side.ranks[0]), place)
        if made is None:
            continue
        yield made
        for rank in _lackers(finding, side, made, traces, absent):
            trace = traces[rank]
            others = [index for index, group in enumerate(trace.groups) if group != made.group]
            rows = _rows_like(made, trace, -1)[-_ROWS:] if others else ()
            calls = (_of_row(trace, int(row)) for row in rows if int(trace.slots["group"][row]) in others)
            yield from (one for one in calls if one is not None)


def _lackers(
    finding: Finding,
    side: Side,
    made: _Made,
    traces: Mapping[int, Trace],
    absent: dict[tuple[Group, int], list[int]],
) -> list[int]:
    """The ranks to which a finding points, or else those that have not come to a call, which ``absent`` has of calls
    that were asked for before: each side of a finding may be of one rank.
    """
    named: Sequence[int] = finding.culprits
    if not named:
        key = made.group, made.record.sequence
        if key not in absent:
            absent[key] = [rank for rank in made.group.ranks if rank in traces and _row(traces[rank], *key) is None]
        named = absent[key]
    return [*islice((rank for rank in named if rank in traces and rank not in side.ranks), _LACKING)]


def _of_row(trace: Trace, row: int) -> _Made | None:
    record = record_at(trace, row)
    return None if record is None else _Made(trace, trace.groups[int(trace.slots["group"][row])], row, record)


def _made(trace: Trace | None, place: CallPlace) -> _Made | None:
    if trace is None or place.rank is not None:
        return None
    row = _row(trace, place.group, place.number) if place.number else None
    made = None if row is None else _of_row(trace, row)
    return made if made is not None and made.record.source.file else None


def _misplaced(made: _Made, traces: Mapping[int, Trace]) -> _Misplaced | None:
    """A call in a group in which no other member makes it, where members of another group of its rank expect it.

    Each of the others must make the call in one group at all times: else the rank may as well have skipped a call. One
    rank against one other does not tell which of them is wrong.
    """
    here = set()
    for rank, used in _used_by_others(made, traces, made.group):
        if len(used) > 1 or made.group in used:
            return None
        here.add(rank)
    groups = (group for group in dict.fromkeys(made.trace.groups) if group != made.group)
    expected = [(group, there) for group in groups if (there := _expecting(made, traces, group))]
    if len(expected) != 1 or len(here | expected[0][1]) < 2:
        return None
    return _Misplaced(made, expected[0][0], tuple(sorted(here | expected[0][1])))


def _expecting(made: _Made, traces: Mapping[int, Trace], group: Group) -> set[int]:
    """The other members of a group, if they make this call there, and there alone, and one was due when it was made."""
    there = []
    for rank, used in _used_by_others(made, traces, group):
        if used != {group}:
            return set()
        there.append(rank)
    due = [twin for rank in there if (twin := _twin(made, traces[rank], group, _last_before(made, group))) is not None]
    return set(there) if due and all(_alike(twin, made) for twin in due) else set()


def _used_by_others(made: _Made, traces: Mapping[int, Trace], group: Group) -> Iterator[tuple[int, set[Group]]]:
    """The groups in which each other member of a group makes this call; members that never make it are left out.

    The first ones often tell enough: they are looked at one by one, as there may be a finding for each of them.
    """
    for rank in islice(group.ranks, _ASKED):
        if rank in traces and rank != made.trace.rank and (used := _groups_used(made, traces[rank])):
            yield rank, used


def _groups_used(made: _Made, trace: Trace) -> set[Group]:
    return {trace.groups[index] for index in np.unique(trace.slots["group"][_rows_like(made, trace, -1)]).tolist()}


def _twin(made: _Made, trace: Trace, group: Group, sequence: int) -> _Made | None:
    """Another rank's call from the same line and callers, the same one counted from a collective that both made."""
    begin, start = _row(made.trace, group, sequence), _row(trace, group, sequence)
    if begin is None or start is None:
        return None
    number = int((_rows_like(made, made.trace, begin) < made.row).sum())
    rows = _rows_like(made, trace, start)
    return _of_row(trace, int(rows[number])) if len(rows) > number else None


def _rows_like(made: _Made, trace: Trace, begin: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The rows after ``begin`` of a trace's collectives with this op, line and callers."""
    calls = [index for index, call in enumerate(trace.signatures) if call.op == made.record.call.op]
    lines = [index for index, source in enumerate(trace.sources) if source.stack == made.record.source.stack]
    slots = trace.slots[begin + 1 :]
    like = np.isin(slots["signature"], calls) & np.isin(slots["source"], lines) & (slots["p2p_sequence"] == 0)
    return np.flatnonzero(like & (slots["group"] < len(trace.groups))) + (begin + 1)


def _row(trace: Trace, group: Group, sequence: int) -> int | None:
    """The row of a collective; -1 for the begin of a group, None where the records do not have it or it is unclear."""
    if sequence == 0:
        return None if trace.dropped else -1
    indices = [index for index, one in enumerate(trace.groups) if one == group]
    mine = np.isin(trace.slots["group"], indices) & (trace.slots["p2p_sequence"] == 0)
    rows = np.flatnonzero(mine & (trace.slots["sequence"] == sequence))
    return int(rows[0]) if len(rows) == 1 else None


def _last_before(made: _Made, group: Group) -> int:
    """The last collective of a group that a rank had made before a call; 0 where it had made none."""
    indices = [index for index, one in enumerate(made.trace.groups) if one == group]
    slots = made.trace.slots[: made.row]
    mine = slots["sequence"][np.isin(slots["group"], indices) & (slots["p2p_sequence"] == 0)]
    return int(mine[-1]) if len(mine) else 0


def _alike(one: _Made, other: _Made) -> bool:
    """True if two calls take the same tensors."""
    mine, theirs = ([(buffer.shape, buffer.dtype) for buffer in made.record.call.inputs] for made in (one, other))
    return mine == theirs
