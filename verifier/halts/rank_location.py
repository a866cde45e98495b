"""Where ranks are that others wait for: their state, their last call, and the line at which they stand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simcoll.core.record import UNKNOWN_SOURCE, Group, Source
from simcoll.core.trace import Stall
from simcoll.verifier.findings.describe import record_text
from simcoll.verifier.findings.failures import source_of
from simcoll.verifier.findings.finding import Side
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.device_position import device_record
from simcoll.verifier.halts.job import Job

_SHOWN = 8


def rank_locations(
    job: Job, ranks: Iterable[int], stall: Stall | None = None, group: Group | None = None
) -> list[Side]:
    """Sides that say where ranks are, those at the same place together; ``stall`` knows lines without a call.

    Of ranks that have destroyed the ``group`` in which they are missed, that is what is said.
    """
    alike: dict[tuple[str, Source], list[int]] = {}
    for rank in ranks:
        alike.setdefault(_place(job, rank, stall, group), []).append(rank)
    return [
        Side(tuple(members), None, lines([(members[0], source)]), note, job.place(members[0]))
        for (note, source), members in list(alike.items())[:_SHOWN]
    ]


def left_group(job: Job, rank: int, group: Group) -> Source | None:
    """The line at which a rank destroyed a group for good, after its last call on it; None where it did not."""
    trace = job.traces.get(rank)
    if trace is None:
        return None
    mine = [index for index, known in enumerate(trace.groups) if known == group]
    last = int(trace.slots["scheduled_ns"][np.isin(trace.slots["group"], mine)].max(initial=0))
    for event in reversed(trace.events):
        if event.kind == "creating" or event.time_ns < last:
            return None
        if event.kind == "destroyed" and event.data.get("group") in (None, group.name):
            return source_of(event.data)
    return None


def _place(job: Job, rank: int, stall: Stall | None, group: Group | None) -> tuple[str, Source]:
    last = job.last.get(rank)
    has_states = rank not in job.traces or "state" not in job.traces[rank].unknown
    state, here = _state(job, rank, stall)
    left = None if group is None else left_group(job, rank, group)
    placed = here is not None or left is not None
    call = "" if last is None else record_text(last, ended_known=has_states, placed=placed)
    before = f"last call: {call}" if call else "no call of it is recorded"
    device = device_record(job.traces, rank)
    if device is not None and device != last:
        before = f"its device is in {record_text(device)}; {before}"
    if left is not None:
        return f"destroyed the group; {before}", left
    return f"{state}; {before}", here or (UNKNOWN_SOURCE if last is None else last.source)


def _state(job: Job, rank: int, stall: Stall | None) -> tuple[str, Source | None]:
    if rank in job.failures:
        return job.failures[rank].text(), None
    if rank in job.ended:
        return "ended", None
    if stall is not None and rank in stall.stopped:
        return "its process is stopped", None
    if stall is not None and rank in stall.connecting:
        return "simcoll connects to the store from this line", stall.places.get(rank)
    if stall is not None and rank in stall.places:
        return "is at this line", stall.places[rank]
    if rank not in job.traces:
        return "left no record", None
    # Of a rank that nobody saw from outside nothing tells whether it still lives.
    seen = rank in job.launched if stall is None else stall.watched
    return "busy elsewhere" if seen else "its record goes no further", None
