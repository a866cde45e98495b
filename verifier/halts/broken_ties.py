"""Names the culprits where a group has no majority, as of two ranks, by other groups of its kind.

Ranks of such a group that have made the same calls, from the same lines, up to the one on which the group's ranks
disagree, and do there what one side does, stand for that side. So do ranks of the group itself that have not come so
far, if the calls that they have made since the one before are those of one side. Nobody is named unless all that say
something agree, nor by groups that have made no call twice: those may have another task, and differ from here on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Source
from simcoll.core.trace import Trace, record_at
from simcoll.spec.call import Call
from simcoll.verifier.findings.describe import NO_MAJORITY
from simcoll.verifier.findings.finding import Finding, Parting, Severity, Side
from simcoll.verifier.findings.rules import CALL_SKIPPED, DEADLOCK_CYCLE, FIELD_RULES, ORDER_SWAPPED

_ASKED: Final = 256
"""Ranks whose calls are looked at."""
_WINDOW: Final = 256
"""Calls up to that of a finding that have to be alike."""
_CODES: Final = frozenset(rule.code for rule in (*FIELD_RULES, CALL_SKIPPED, ORDER_SWAPPED))

_Course: TypeAlias = tuple[tuple[Call, tuple[Source, ...]], ...]


def with_broken_ties(findings: Sequence[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """The findings; those of two sides of a group without a majority name the one that no such group bears out."""
    job = _Job({trace.rank: trace for trace in traces})
    return tuple(_broken(one, job) if _is_tie(one) else one for one in findings)


@dataclass(slots=True, eq=False)
class _Job:
    """The ranks' records, and what was asked of them: each of thousands of groups asks the others the same."""

    traces: Mapping[int, Trace]
    _groups: tuple[Group, ...] | None = None
    _courses: dict[tuple[int, Group, int], _Course | None] = field(default_factory=dict)
    _same: dict[_Course, _Course] = field(default_factory=dict)

    def groups(self) -> tuple[Group, ...]:
        """The groups that the first ranks know."""
        if self._groups is None:
            asked = [*self.traces.values()][:_ASKED]
            self._groups = tuple(dict.fromkeys(one for trace in asked for one in trace.groups))
        return self._groups

    def course(self, rank: int, group: Group, last: int) -> _Course | None:
        """A rank's collectives of a group up to one, one object for all that are equal; None as of :func:`_course`."""
        key = rank, group, last
        if key not in self._courses:
            course = _course(self.traces.get(rank), group, last)
            self._courses[key] = None if course is None else self._same.setdefault(course, course)
        return self._courses[key]


def _is_tie(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and not finding.culprits and len(finding.sides) == 2


def _broken(finding: Finding, job: _Job) -> Finding:
    if finding.code == DEADLOCK_CYCLE.code:
        return _in_order(finding, job)
    known = finding.code in _CODES and finding.group is not None and finding.sequence is not None
    return _decided(finding, job) if known else finding


def _in_order(finding: Finding, job: _Job) -> Finding:
    """The finding on ranks that wait for each other in two collectives: the others made the first one, or came without.

    Only ranks that wait in the other one are asked; they are there on the way that its members have in common.
    """
    named: list[tuple[tuple[int, ...], str]] = []
    parted = finding.parted
    for one, other in (finding.sides, finding.sides[::-1]):
        place = one.place
        if place is None or place.rank is not None or other.place is None or other.place.rank is not None:
            return finding
        course = job.course(one.ranks[0], place.group, place.number)
        if course is None or not _has_come_round(course):
            continue
        lackers = tuple(rank for rank in other.ranks if rank in place.group.ranks)
        votes: dict[bool, list[int]] = {True: [], False: []}
        for group in _alike(place.group, job):
            for rank in (rank for rank in group.ranks if rank in other.ranks):
                if job.course(rank, group, place.number) == course:
                    votes[True].append(rank)
                elif place.number > 1 and job.course(rank, group, place.number - 1) == course[:-1]:
                    votes[False].append(rank)
        if votes[True] and not votes[False] and lackers:
            named.append((lackers, f"{ranks_text(votes[True])} made their {course[-1][0].op} before"))
            parted = None if parted is None else _without(parted, set(votes[True]))
        elif votes[False] and not votes[True]:
            named.append((one.ranks, f"{ranks_text(votes[False])} came there without {course[-1][0].op}"))
    if len({who for who, _ in named}) != 1:
        return finding
    who, why = named[0]
    return replace(finding, culprits=tuple(sorted(who)), message=f"{finding.message}; {why}", parted=parted)


def _without(parted: Parting, ranks: set[int]) -> Parting:
    """A parting without ranks that are no witnesses of it: they have come past the line the other way before."""
    sides = ((tuple(rank for rank in side if rank not in ranks), did) for side, did in parted.sides)
    return replace(parted, sides=tuple((side, did) for side, did in sides if side))


def _decided(finding: Finding, job: _Job) -> Finding:
    group, last = finding.group, finding.sequence
    assert group is not None
    assert last is not None
    courses = [_course_of(side, job, group, last) for side in finding.sides]
    if courses[0] == courses[1]:
        return finding
    votes = _on_the_way(finding, group, last, job.traces)
    where = "on their way there"
    if not any(votes):
        where = "in other such groups"
        votes = _in_other_groups(courses, group, last, job)
    if bool(votes[0]) == bool(votes[1]):
        return finding
    right, wrong = finding.sides if votes[0] else finding.sides[::-1]
    did = f"{where} {ranks_text(votes[0] or votes[1])} did as {ranks_text(right.ranks)}"
    message = finding.message
    message = message.replace(NO_MAJORITY, did) if NO_MAJORITY in message else f"{message}; {did}"
    return replace(finding, culprits=tuple(sorted(wrong.ranks)), message=message)


def _in_other_groups(courses: Sequence[_Course | None], group: Group, last: int, job: _Job) -> list[list[int]]:
    """The ranks of other groups that made the calls of one side up to the last one, for each of the two."""
    votes: list[list[int]] = [[], []]
    round_again = [known if known is not None and _has_come_round(known) else None for known in courses]
    for other in _alike(group, job) if any(round_again) else ():
        for rank in other.ranks:
            course = job.course(rank, other, last)
            for place, known in enumerate(round_again):
                if known is not None and course is known:
                    votes[place].append(rank)
    return votes


def _on_the_way(finding: Finding, group: Group, last: int, traces: Mapping[int, Trace]) -> list[list[int]]:
    """The ranks of a group that have not made its last call, and so far do as one side did on the way there."""
    votes: list[list[int]] = [[], []]
    ways = [_since(traces.get(side.ranks[0]), group, last) for side in finding.sides]
    for rank in (rank for rank in group.ranks if rank not in finding.ranks):
        mine = _since(traces.get(rank), group, last)
        alike = [bool(mine) and way is not None and mine == way[: len(mine or ())] for way in ways]
        if alike.count(True) == 1:
            votes[alike.index(True)].append(rank)
    return votes


def _since(trace: Trace | None, group: Group, last: int) -> _Course | None:
    """All calls of a rank, in whatever group, since the one before a group's last one; None where that is not known."""
    if trace is None or group not in trace.groups:
        return None
    slots, index = trace.slots, trace.groups.index(group)
    before = np.flatnonzero((slots["group"] == index) & (slots["p2p_sequence"] == 0) & (slots["sequence"] == last - 1))
    if last > 1 and len(before) != 1:
        return None
    rows = np.arange(int(before[0]) + 1 if len(before) else 0, len(slots))[:_WINDOW]
    return _calls(trace, rows, peers=False)


def _has_come_round(course: _Course) -> bool:
    """True if a call was made more than once from its line."""
    return len(set(course)) < len(course)


def _alike(group: Group, job: _Job) -> list[Group]:
    """The other groups of a group's description and size, without its ranks."""
    mine = set(group.ranks)
    return [
        one
        for one in job.groups()
        if (one.description, len(one.ranks)) == (group.description, len(group.ranks)) and mine.isdisjoint(one.ranks)
    ]


def _course_of(side: Side, job: _Job, group: Group, last: int) -> _Course | None:
    """The calls of a side's ranks; None where they are not one course."""
    courses = {job.course(rank, group, last) for rank in side.ranks}
    return courses.pop() if len(courses) == 1 else None


def _course(trace: Trace | None, group: Group, last: int) -> _Course | None:
    """A rank's collectives of a group up to one; None where it has not made that one, or a record is lacking."""
    if trace is None or group not in trace.groups:
        return None
    slots, index = trace.slots, trace.groups.index(group)
    rows = np.flatnonzero((slots["group"] == index) & (slots["p2p_sequence"] == 0) & (slots["sequence"] <= last))
    rows = rows[np.argsort(slots["sequence"][rows], kind="stable")]
    first = max(1, last - _WINDOW + 1)
    rows = rows[slots["sequence"][rows] >= first]
    if slots["sequence"][rows].tolist() != list(range(first, last + 1)):
        return None
    return _calls(trace, rows, peers=True)


def _calls(trace: Trace, rows: npt.NDArray[np.intp], *, peers: bool) -> _Course | None:
    """The calls of these rows with the lines that made them; without ``peers`` those of messages are left out.

    None where a row points outside of the trace's tables.
    """
    found = []
    for row in rows.tolist():
        record = record_at(trace, row)
        if record is None:
            return None
        found.append((record.call if peers else replace(record.call, peer=None), record.source.stack))
    return tuple(found)
