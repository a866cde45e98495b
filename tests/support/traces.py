"""Traces made from records: what tests of the verifier, pricing and views share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcoll.core.record import Event, Group, Record, Source
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, ON_DEVICE, SLOT, MemoryTrace
from simcoll.spec.call import Call


def trace_of(
    rank: int,
    world_size: int,
    groups: Sequence[Group],
    records: Sequence[Record],
    *,
    mode: str = "detail",
    events: Sequence[Event] = (),
) -> MemoryTrace:
    """Columns from records; each record's ``group`` names one of ``groups``."""
    names = {group.name: index for index, group in enumerate(groups)}
    calls: dict[Call, int] = {}
    sources: dict[tuple[Source, ...], int] = {}
    lines: list[Source] = []
    slots = np.zeros(len(records), SLOT)
    for slot, record in zip(slots, records, strict=True):
        slot["group"] = names[record.group]
        slot["signature"] = calls.setdefault(record.call, len(calls))
        slot["source"] = sources.setdefault(record.source.stack, len(sources))
        lines += [record.source] if len(sources) > len(lines) else []
        slot["flags"] = ASYNCHRONOUS * record.asynchronous | AWAITED * record.awaited | ON_DEVICE * record.on_device
        for column in ("sequence", "p2p_sequence", "state", "scheduled_ns", "started_ns", "finished_ns"):
            slot[column] = getattr(record, column)
    return MemoryTrace(rank, world_size, mode, tuple(groups), tuple(calls), tuple(lines), tuple(events), slots)
