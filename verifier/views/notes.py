"""Notes of a report that rests on records alone: fields that they leave out, moments that they do not show.

:func:`last_call` finds the call with which the dumps of a job end, and the ranks that left none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Group, Record
from simcoll.core.trace import Life, Trace, lives, reached_by, record_at
from simcoll.verifier.agreement.known_fields import unknown_fields
from simcoll.verifier.findings.describe import fields_text, group_text, source_text
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.halts.inferred import are_dated, is_dump, open_waits, patience_of
from simcoll.verifier.halts.job import Job

_OVERWRITTEN = (1 << 32) - 1
"""The last sequence that a ring dropped of a group of which it has nothing left."""


def with_unknown(findings: Iterable[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """Findings that name the fields which their calls must agree on and which the records leave out."""
    unknown = frozenset[str]().union(*(trace.unknown for trace in traces))
    return tuple(_with_unknown(finding, unknown) if unknown else finding for finding in findings)


def _with_unknown(finding: Finding, unknown: frozenset[str]) -> Finding:
    fields = unknown_fields({side.call.op for side in finding.sides if side.call is not None}, unknown)
    more = [name for name in fields if name not in (*finding.unknown, *finding.differing)]
    return replace(finding, unknown=(*finding.unknown, *more))


def notes_of_records(job: Job, findings: Sequence[Finding]) -> list[str]:
    """Notes on the facts that the records cannot show, once for the report."""
    traces, stall = list(job.traces.values()), job.stall
    unknown = frozenset[str]().union(*(trace.unknown for trace in traces))
    notes = []
    if text := fields_text(unknown):
        notes.append(f"these records do not state {text}: mismatches of these were not judged")
    if not any(finding.culprits for finding in findings):
        notes += unseen_notes([trace for trace in traces if is_dump(trace)])
        notes += _unmet([trace for trace in traces if is_dump(trace)], bool(findings) or stall is not None)
        if stall is not None and not stall.watched and not findings:
            notes += open_waits(job, stall)
    return notes


def _unmet(dumps: Sequence[Trace], reported: bool) -> list[str]:
    """Notes on ranks whose dumps end before calls of others: too soon to show lateness, or no rank waited.

    ``reported`` says that the report names the ranks that wait.
    """
    unmet = _first_unmet(dumps)
    if not unmet:
        return []
    since = {rank: time for rank, (time, _) in unmet.items()}
    written = {trace.rank: trace.seen_ns for trace in dumps}
    dated, patience = are_dated(list(written.values()), min(since.values())), patience_of(dumps)
    late = {rank for rank, time in since.items() if dated and written[rank] - time >= patience}
    notes = []
    if behind := since.keys() - late:
        example = _such_as(unmet[min(behind, key=since.__getitem__)][1])
        notes.append(
            f"the dumps were not written at one moment: those of {ranks_text(behind)} end before calls that others "
            f"show{example}; whether these ranks came to them is not known"
        )
    if late and not reported:
        seconds = min(written[rank] - since[rank] for rank in late) / 1e9
        notes.append(
            f"{ranks_text(late)} had not come to calls that others had made {seconds:.0f} s before; no record shows "
            "that anybody waited for them"
        )
    return notes


def _such_as(call: tuple[Trace, int]) -> str:
    trace, row = call
    record = record_at(trace, row) if row >= 0 else None
    return "" if record is None else f", such as {call_place(trace.groups[int(trace.slots['group'][row])], record)}"


def _first_unmet(dumps: Sequence[Trace]) -> dict[int, tuple[int, tuple[Trace, int]]]:
    """The time (ns) at which others made the first call that a rank has not come to, and that call, by such rank."""
    come = reached_by({trace.rank: trace for trace in dumps})
    furthest: dict[Life, tuple[int, Trace]] = {}
    for trace in dumps:
        for life, sequence in come[trace.rank].items():
            if furthest.get(life, (0, trace))[0] < sequence < _OVERWRITTEN:
                furthest[life] = sequence, trace
    first: dict[int, tuple[int, tuple[Trace, int]]] = {}
    for rank, mine in come.items():
        behind = [life for life, sequence in mine.items() if life in furthest and sequence < furthest[life][0]]
        if behind:
            first[rank] = min((_call_after(furthest[life][1], life, mine[life]) for life in behind), key=itemgetter(0))
    return first


def _call_after(trace: Trace, life: Life, sequence: int) -> tuple[int, tuple[Trace, int]]:
    """The time of a rank's next call on a group (wall clock, nanoseconds), and its row; -1 where the ring lost it."""
    slots = trace.slots
    later = (slots["group"] == lives(trace).index(life)) & (slots["p2p_sequence"] == 0) & (slots["sequence"] > sequence)
    rows = np.flatnonzero(later)
    if not len(rows):
        return int(np.iinfo(np.int64).max), (trace, -1)
    row = int(rows[np.argmin(slots["scheduled_ns"][rows])])
    return int(slots["scheduled_ns"][row]), (trace, row)


@dataclass(frozen=True, slots=True)
class LastCall:
    """The collective that most dumps end with, as the ranks of ``records`` made it; ``unseen`` members left no dump."""

    group: Group
    records: Mapping[int, Record]
    unseen: tuple[int, ...]

    @property
    def made(self) -> list[int]:
        """The ranks whose dumps end with it."""
        return sorted(self.records)

    @property
    def place(self) -> str:
        """``all_reduce #5 of group 0 (default_pg, ranks 0-2) at train.py:41 in step``."""
        return call_place(self.group, self.records[self.made[0]])


def call_place(group: Group, record: Record) -> str:
    """A collective by its place and its line."""
    line = f" at {text}" if (text := source_text(record.source)) else ""
    return f"{record.call.op} #{record.sequence} of {group_text(group)}{line}"


def last_call(dumps: Mapping[int, Trace]) -> LastCall | None:
    """The collective with which most dumps end, among equals the one made first; None where none ends with one."""
    ends: dict[tuple[Life, int], dict[int, Record]] = {}
    groups: dict[tuple[Life, int], Group] = {}
    for rank, trace in dumps.items():
        record = record_at(trace, len(trace.slots) - 1) if len(trace.slots) else None
        if record is not None and not record.p2p_sequence:
            index = int(trace.slots["group"][-1])
            place = lives(trace)[index], record.sequence
            ends.setdefault(place, {})[rank] = record
            groups[place] = trace.groups[index]
    if not ends:
        return None
    place = max(ends, key=lambda one: (len(ends[one]), -min(record.scheduled_ns for record in ends[one].values())))
    unseen = tuple(rank for rank in groups[place].ranks if rank not in dumps)
    return LastCall(groups[place], ends[place], unseen)


def unseen_notes(dumps: Sequence[Trace]) -> list[str]:
    """The call that the dumps end with, in words, where members of its group left none."""
    last = last_call({trace.rank: trace for trace in dumps})
    if last is None or not last.unseen:
        return []
    return [
        f"{verb(last.made, 'the dump', 'the dumps')} of {ranks_text(last.made)} {verb(last.made, 'ends', 'end')} with "
        f"{last.place}; whether {ranks_text(last.unseen)}, which left none, came to it is not known"
    ]
