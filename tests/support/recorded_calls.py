"""The calls of a recorded job in a form in which those of two runs are compared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from simcoll.core.record import Record, number, text
from simcoll.core.trace import Trace, record_at
from simcoll.dryrun.rank.event_kinds import SIZED_BY_OTHERS
from simcoll.spec.call import Buffer, Call

Place = tuple[int, str, int, int]
"""A rank, a group's name, a sequence number and a p2p sequence number."""


def calls(traces: Sequence[Trace], unsized: Collection[Place] = ()) -> list[list[object]]:
    """By rank: group members, numbers, what was called, and the line; without sizes at the places ``unsized``."""
    return [_calls(trace, unsized) for trace in traces]


def sized_by_others(traces: Sequence[Trace]) -> set[Place]:
    """Where a dry run says that a call's sizes rest on what other ranks would have sent."""
    return {
        (trace.rank, text(event, "group"), number(event, "sequence") or 0, number(event, "message") or 0)
        for trace in traces
        for event in trace.events
        if event.kind == SIZED_BY_OTHERS
    }


def _calls(trace: Trace, unsized: Collection[Place]) -> list[object]:
    names = {group.name: group.ranks for group in trace.groups}
    records = [record for row in range(len(trace.slots)) if (record := record_at(trace, row)) is not None]
    return [
        (names[one.group], one.sequence, one.p2p_sequence, _call(trace, one, unsized), one.source, one.asynchronous)
        for one in records
    ]


def _call(trace: Trace, record: Record, unsized: Collection[Place]) -> Call:
    message = record.p2p_sequence
    if (trace.rank, record.group, record.sequence, message) not in unsized:
        return record.call
    return replace(
        record.call,
        inputs=tuple(map(_row_width, record.call.inputs)),
        outputs=tuple(map(_row_width, record.call.outputs)),
        input_splits=None,
        output_splits=None,
    )


def _row_width(buffer: Buffer) -> Buffer:
    """A buffer without its number of rows."""
    return replace(buffer, shape=buffer.shape[1:])
