"""The call with which the dumps of a job end, and the ranks whose dumps do not show it.

A Gloo dump says that a call has ended, and not how: whether the rank that its dump does not show there came later, or
left and so made the call fail, looks the same. What tells them apart is what the others did then. A job that goes on
makes calls at its pace; one in which a rank has left makes none, and its ranks dump when an exception has ended them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simcoll.record import Group, Record, State
from simcoll.verifier.describe import group_text, source_text
from simcoll.verifier.finding import Finding, Severity, Side
from simcoll.verifier.incidents import Job
from simcoll.verifier.ranges import ranks_text, verb
from simcoll.verifier.rules_order import MISSING_RANK
from simcoll.verifier.sides import lines
from simcoll.verifier.trace import Life, Trace, lives, reached, record_at
from simcoll.verifier.whereabouts import whereabouts

_PACES: Final = 10
"""So many times as long as ever between two calls must the ranks have made none, and as a dump took to be written."""
_QUIET: Final = 250_000_000
"""And so long (ns) at least: the kernel may hold up a process for a tenth of a second."""
_FEWEST: Final = 4
"""Calls of a rank from which its pace is taken."""


@dataclass(frozen=True, slots=True)
class LastCall:
    """The collective that most dumps end with, as the ranks of ``records`` made it.

    Of its members ``short`` have a dump that ends with the call before it, ``unseen`` none, and ``others`` another one.
    """

    group: Group
    records: Mapping[int, Record]
    short: tuple[int, ...]
    unseen: tuple[int, ...]
    others: tuple[int, ...]

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
    life, sequence = place
    rest = [rank for rank in groups[place].ranks if rank not in ends[place]]
    before = ends.get((life, sequence - 1), {})
    short = tuple(rank for rank in rest if rank in before or (sequence == 1 and _is_empty(dumps.get(rank))))
    unseen = tuple(rank for rank in rest if rank not in dumps)
    others = tuple(rank for rank in rest if rank not in (*short, *unseen))
    return LastCall(groups[place], ends[place], short, unseen, others)


def _is_empty(trace: Trace | None) -> bool:
    return trace is not None and not any(reached(trace).values())


def stopped_short(job: Job) -> list[Finding]:
    """SC201 as a warning: most dumps end with a call that has ended, long before, and a few with the call before it."""
    dumps = {rank: trace for rank, trace in job.traces.items() if "state" in trace.unknown}
    last = last_call(dumps) if len(dumps) == len(job.traces) else None
    if last is None or not last.short or last.unseen or last.others or len(last.short) > len(last.made):
        return []
    if any(trace.problems for trace in dumps.values()):
        return []
    if any(record.state is not State.COMPLETED for record in last.records.values()):
        return []
    quiet = min(dumps[rank].seen_ns - last.records[rank].scheduled_ns for rank in last.made)
    writing = min(trace.seen_ns - int(trace.slots["scheduled_ns"].max(initial=0)) for trace in dumps.values())
    pace = max(_pace(dumps[rank]) for rank in last.made)
    if not pace or quiet < max(_QUIET, _PACES * pace, _PACES * writing):
        return []
    return [_warning(job, last, quiet, pace)]


def _pace(trace: Trace) -> int:
    """The longest time (ns) between two calls of a rank; 0 where it made too few to tell."""
    made = np.sort(trace.slots["scheduled_ns"].astype(np.int64))
    return max(1, int(np.diff(made).max())) if len(made) >= _FEWEST else 0


def _warning(job: Job, last: LastCall, quiet: int, pace: int) -> Finding:
    record = last.records[last.made[0]]
    message = (
        f"the {verb(last.short, 'dump', 'dumps')} of {ranks_text(last.short)} {verb(last.short, 'ends', 'end')} before "
        f"{record.call.op} (collective {record.sequence}), after which nothing more came from "
        f"{ranks_text(last.made)} for {quiet / 1e9:.1f} s (before it at most {pace / 1e9:.2g} s): where "
        f"{ranks_text(last.short)} had left, the call has failed; the dumps do not say how it ended"
    )
    made = Side(tuple(last.made), record.call, lines((rank, one.source) for rank, one in last.records.items()), "made")
    return Finding(
        MISSING_RANK.code,
        Severity.WARNING,
        message,
        group=last.group,
        sequence=record.sequence,
        ranks=tuple(sorted((*last.made, *last.short))),
        culprits=last.short if len(last.short) < len(last.made) else (),
        sides=(made, *whereabouts(job, last.short, group=last.group)),
    )


def unseen_notes(dumps: Sequence[Trace]) -> list[str]:
    """In words the call that the dumps end with, where members of its group left none."""
    last = last_call({trace.rank: trace for trace in dumps})
    if last is None or not last.unseen:
        return []
    return [
        f"{verb(last.made, 'the dump', 'the dumps')} of {ranks_text(last.made)} {verb(last.made, 'ends', 'end')} with "
        f"{last.place}; whether {ranks_text(last.unseen)}, which left none, came to it is not known"
    ]
