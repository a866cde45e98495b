"""The call with which the dumps of a job end, and the ranks that left none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Group, Record
from simcoll.core.trace import Life, Trace, lives, record_at
from simcoll.verifier.findings.describe import group_text, source_text


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
    """The collective with which most dumps end, of equally many the one made first; None where none ends with one."""
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
    """In words the call that the dumps end with, where members of its group left none."""
    last = last_call({trace.rank: trace for trace in dumps})
    if last is None or not last.unseen:
        return []
    return [
        f"{verb(last.made, 'the dump', 'the dumps')} of {ranks_text(last.made)} {verb(last.made, 'ends', 'end')} with "
        f"{last.place}; whether {ranks_text(last.unseen)}, which left none, came to it is not known"
    ]
