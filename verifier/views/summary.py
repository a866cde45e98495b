"""The summary of a job from its traces: time and kind of its records, its groups' progress, its ranks' places.

A group's progress is the last collective that all its recorded members finished, groups of one kind together.

:func:`bandwidths` gives the bus bandwidth of collectives, from the times that devices gave; host times do not show it.
A rank that comes early to a collective is inside until the last one has come, and the last one waits for no rank.
So the time of a collective is the shortest that any of its ranks was inside. Bus bandwidth is that of nccl-tests: the
row's factor times the larger side of the call, by that time (:attr:`simcoll.spec.table.CollectiveSpec.traffic`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import UNKNOWN_SOURCE, Group, Record, Source, State
from simcoll.core.trace import (
    AWAITED,
    NO_TIME,
    ON_DEVICE,
    Life,
    Slots,
    Stall,
    Trace,
    course_key,
    ran_on_device,
    record_at,
    slot_times,
)
from simcoll.spec.call import Call, bytes_of
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.agreement.columns import GroupColumns, Part
from simcoll.verifier.findings.describe import NAMELESS
from simcoll.verifier.findings.finding import Activity, Bandwidth, Place, Progress, RankState, RankStatus, Summary
from simcoll.verifier.halts.failures import Failure
from simcoll.verifier.halts.job import device_row
from simcoll.verifier.views.steps import steps_ended

_OPEN = (State.SCHEDULED, State.STARTED)
_INSIDE = (*_OPEN, State.FAILED, State.REJECTED)


def summarise(
    traces: Sequence[Trace],
    states: Sequence[RankState],
    failures: Mapping[int, Failure],
    stall: Stall | None,
    world_size: int,
    groups: Sequence[GroupColumns] = (),
) -> Summary:
    """Summarise a job; cost grows with the records, and in Python with the ranks only."""
    begin, end = _span(traces)
    return Summary(
        world_size,
        len(traces),
        tuple(sorted({trace.mode for trace in traces})),
        begin,
        end,
        progress_of(traces),
        _places(traces, states, failures, stall),
        tuple(sorted(set[str]().union(*(trace.unknown for trace in traces)))),
        bandwidths(groups),
        steps_ended(traces),
    )


def _span(traces: Sequence[Trace]) -> tuple[int, int]:
    """The times at which the first call was made, and at which the last one was made or ended."""
    times = [slot_times(trace) for trace in traces]
    begin, end = min((one.first_ns for one in times), default=NO_TIME), max((one.last_ns for one in times), default=0)
    return begin if begin < NO_TIME else 0, end


@dataclass(slots=True)
class _Crowd:
    """Ranks at one place: that of the first of them, the ranks, when each came there, and their groups."""

    first: Place
    ranks: list[int] = field(default_factory=list)
    since: list[int] = field(default_factory=list)
    groups: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    def place(self) -> Place:
        """The place of all of them."""
        since = min((time for time in self.since if time), default=0)
        return replace(self.first, ranks=tuple(sorted(self.ranks)), since_ns=since, groups=len(self.groups))


def _places(
    traces: Sequence[Trace], states: Sequence[RankState], failures: Mapping[int, Failure], stall: Stall | None
) -> tuple[Place, ...]:
    """The places of the ranks, those at the same place together: the largest crowd first, then by rank.

    The place of ranks that are known to be alike is worked out once.
    """
    by_rank = {trace.rank: trace for trace in traces}
    at: dict[object, tuple[int | None, int | None]] = {}
    crowds: dict[object, _Crowd] = {}
    alike: dict[object, tuple[_Crowd, int | None]] = {}
    of_kind: dict[object, _Crowd] = {}
    ended: dict[tuple[Life, int], bool] = {}
    for state in states:
        rank, trace = state.rank, by_rank.get(state.rank)
        own = None if trace is None else (course_key(trace), id(trace.groups))
        finished = state.status is RankStatus.FINISHED
        line = UNKNOWN_SOURCE if stall is None else stall.places.get(rank, UNKNOWN_SOURCE)
        busy = stall is not None and rank in stall.busy
        reason = _reason(failures[rank]) if rank in failures else ""
        row: int | None = None
        if trace is not None and not finished:
            row = device_row(by_rank, rank, ended)
        key = own, row, state.status, line, busy, reason
        if (known := alike.get(key)) is None:
            index = None
            if trace is not None and row is not None:
                index = _group_at(trace, row)
            elif trace is not None:
                if (mine := course_key(trace)) not in at:
                    at[mine] = _row(trace)
                row, index = at[mine]
            group = None if trace is None or index is None or index >= len(trace.groups) else trace.groups[index]
            kind = own and own[0], row, None if group is None else kind_of(group), state.status, line, busy, reason
            if (crowd := of_kind.get(kind)) is None:
                place = _place(state, trace, row, line, reason, busy=busy)
                crowd = of_kind[kind] = crowds.setdefault(_key(place), _Crowd(place))
            if group is not None:
                crowd.groups.add((group.name, group.ranks))
            known = alike[key] = crowd, None if group is None else row
        crowd, row = known
        crowd.ranks.append(rank)
        if trace is not None and row is not None:
            crowd.since.append(int(trace.slots["scheduled_ns"][row]))
    together = [crowd.place() for crowd in crowds.values()]
    return tuple(sorted(together, key=lambda place: (-len(place.ranks), place.ranks)))


def _group_at(trace: Trace, row: int) -> int | None:
    """The index of a row's group; None where the row points outside the trace's table of calls."""
    slots = trace.slots
    return int(slots["group"][row]) if int(slots["signature"][row]) < len(trace.signatures) else None


def _place(state: RankState, trace: Trace | None, row: int | None, line: Source, reason: str, *, busy: bool) -> Place:
    """The place of one rank; ``busy``: its threads are at work elsewhere."""
    bare = Place((state.rank,), Activity.UNSEEN, state.status.value, line=line, reason=reason)
    record = None if trace is None or row is None else record_at(trace, row)
    if trace is None or row is None or record is None:
        return replace(bare, activity=_activity(state.status, Activity.UNSEEN))
    # A dump does not say whether a call is asynchronous, nor has a last one that seems open always begun to wait.
    awaited = bool(int(trace.slots[row]["flags"]) & AWAITED) or not (record.asynchronous or trace.unknown)
    going_on = Activity.OWN_CODE
    if record.state in _OPEN:
        going_on = Activity.WAITS if awaited and not busy else Activity.OPEN
    elif record.state is State.FAILED and trace.unknown:
        going_on = Activity.FAILED
    return replace(
        bare,
        activity=_activity(state.status, going_on),
        group=trace.groups[int(trace.slots[row]["group"])],
        groups=1,
        record=record,
        inside=record.state in _INSIDE,
        since_ns=record.scheduled_ns,
    )


def _row(trace: Trace) -> tuple[int | None, int | None]:
    """The row that shows a rank's place, and its group: the first call for which it waits, otherwise its last one."""
    slots = trace.slots
    waits = np.flatnonzero((slots["state"] <= State.STARTED) & (slots["flags"] & AWAITED != 0))
    if not len(slots):
        return None, None
    row = int(waits[0]) if len(waits) else len(slots) - 1
    return row, _group_at(trace, row)


def _activity(status: RankStatus, going_on: Activity) -> Activity:
    """A process that the launcher stopped is where it was before."""
    if status is RankStatus.FAILED:
        return Activity.FAILED
    return Activity.ENDED if status is RankStatus.FINISHED else going_on


def _reason(failure: Failure) -> str:
    """A failure in a few words: the finding has the exception and the cause."""
    return f"raised {failure.type}" if failure.type else failure.text()


def _key(place: Place) -> object:
    """A key that is equal for ranks at the same place; groups of one kind count as one."""
    record = place.record
    call: tuple[object, ...] = ()
    if record is not None and place.group is not None:
        source: Source = record.source
        at = (source.file, source.line)
        call = (kind_of(place.group), record.call.op, record.sequence, record.p2p_sequence, record.state, at)
    line = (place.line.file, place.line.line)
    return (place.activity, place.process, place.inside, place.reason, line, call)


_Inside: TypeAlias = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
"""Positions of one rank's collectives that its device has ended, and the rows of its trace."""

_Kind: TypeAlias = tuple[str, int, str, int]
"""Op, bytes, description of the group, its size."""


def bandwidths(groups: Sequence[GroupColumns]) -> tuple[Bandwidth, ...]:
    """The collectives of each op and size in groups of each kind; those that took most time in all come first."""
    found: dict[_Kind, list[tuple[GroupColumns, npt.NDArray[np.uint32], npt.NDArray[np.float64]]]] = {}
    devices: dict[object, bool] = {}
    for columns in groups:
        for kind, sequences, seconds in _of_group(columns, devices):
            found.setdefault(kind, []).append((columns, sequences, seconds))
    rows = [_alike(kind, parts) for kind, parts in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.seconds * row.calls, row.op, row.bytes)))


def on_device(part: Part) -> npt.NDArray[np.bool_]:
    """A mask of a rank's collectives that ran by themselves between two times that its device gave.

    Coalesced calls share both times, which belong to none of them alone.
    """
    slots, rows = part.trace.slots, part.rows
    mask = _timed_by_device(part)
    began, ended = slots["started_ns"][rows], slots["finished_ns"][rows]
    shared = (began[1:] == began[:-1]) & (ended[1:] == ended[:-1])
    mask[1:] &= ~shared
    mask[:-1] &= ~shared
    kept: npt.NDArray[np.bool_] = mask & (ended > began)
    return kept


def _timed_by_device(part: Part) -> npt.NDArray[np.bool_]:
    """A mask of a rank's collectives that have ended by the time of a device."""
    slots, rows = part.trace.slots, part.rows
    mask: npt.NDArray[np.bool_] = (slots["flags"][rows] & ON_DEVICE) != 0
    mask &= slots["state"][rows] == State.COMPLETED
    return mask


def _of_group(
    columns: GroupColumns, devices: dict[object, bool]
) -> list[tuple[_Kind, npt.NDArray[np.uint32], npt.NDArray[np.float64]]]:
    """Positions and seconds of each kind of collective that the devices of all members have ended; ``devices`` is what
    :func:`~simcoll.core.trace.ran_on_device` knows.
    """
    if len(columns.parts) != len(columns.group.ranks) or len(columns.parts) < 2:
        return []
    if not all(ran_on_device(part.trace, devices) for part in columns.parts):
        return []
    masks = [on_device(part) for part in columns.parts]
    if not all(mask.any() for mask in masks):
        return []
    known = [
        (part.sequences[mask], part.rows[mask].astype(np.int64))
        for part, mask in zip(columns.parts, masks, strict=True)
    ]
    common = known[0][0]
    for sequences, _ in known[1:]:
        common = common if np.array_equal(sequences, common) else np.intersect1d(common, sequences)
    if not len(common):
        return []
    shortest, size = _shortest(columns, known, common)
    first = columns.parts[0].trace
    ops = [call.op for call in first.signatures]
    signatures = first.slots["signature"][_rows(known[0], common)]
    names = np.array([ops.index(op) for op in ops] or [0])[signatures]
    return [
        ((ops[name], number, columns.group.description, len(columns.group.ranks)), common[mine], shortest[mine])
        for name, number in sorted(set(zip(names.tolist(), size.tolist(), strict=True)))
        if number > 0 and ops[name] in COLLECTIVES and (mine := (names == name) & (size == number)).any()
    ]


def _rows(known: _Inside, common: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    sequences, rows = known
    return rows if len(sequences) == len(common) else rows[np.searchsorted(sequences, common)]


def _shortest(
    columns: GroupColumns, known: Sequence[_Inside], common: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The shortest time that any rank was inside each collective, and its bytes: one rank after the other."""
    shortest, size = np.full(len(common), np.inf), np.zeros(len(common), np.int64)
    for part, own in zip(columns.parts, known, strict=True):
        slots = part.trace.slots[_rows(own, common)]
        shortest = np.minimum(shortest, (slots["finished_ns"] - slots["started_ns"]).astype(np.float64) / 1e9)
        sizes = np.array([bytes_of_call(call) for call in part.trace.signatures] or [0], np.int64)
        size = np.maximum(size, sizes[slots["signature"]])
    return shortest, size


def bytes_of_call(call: Call) -> int:
    """The larger of a call's two sides; 0 where a dtype's width is not known."""
    sides = bytes_of(call.inputs), bytes_of(call.outputs)
    return 0 if None in sides else min(max(sides[0] or 0, sides[1] or 0), 1 << 60)


def _alike(
    kind: _Kind, parts: Sequence[tuple[GroupColumns, npt.NDArray[np.uint32], npt.NDArray[np.float64]]]
) -> Bandwidth:
    op, size, description, ranks = kind
    times = np.concatenate([seconds for _, _, seconds in parts])
    columns, sequences, seconds = max(parts, key=lambda part: float(part[2].max()))
    return Bandwidth(
        op,
        size,
        description,
        ranks,
        len(times),
        float(np.median(times)),
        COLLECTIVES[op].traffic(ranks) * size / float(np.median(times)),
        float(seconds.max()),
        columns.group,
        int(sequences[int(seconds.argmax())]),
    )


# Not frozen, as what is made for each of thousands of ranks: that takes several times as long.
@dataclass(slots=True)
class _Part:
    """One member's collectives of the group's last life: the finished ones, and the number of lives it saw begin."""

    trace: Trace
    index: int
    finished: npt.NDArray[np.uint32]
    lives: int


@dataclass(slots=True)
class _OneKind:
    """Groups of one kind, each with the last collective that its members finished (its number, and one of them), or
    None.
    """

    groups: list[tuple[Group, tuple[int, _Part] | None]] = field(default_factory=list)
    unrecorded: int = 0


def kind_of(group: Group) -> tuple[str, int]:
    """The kind of a group, which groups of equal purpose share: description and size; no description is one too."""
    return ("" if group.description in NAMELESS else group.description), len(group.ranks)


def progress_of(traces: Sequence[Trace]) -> tuple[Progress, ...]:
    """Progress by kind of group, in the order in which the groups were made; groups without a collective stay out."""
    parts: dict[tuple[str, tuple[int, ...]], list[_Part]] = {}
    alike: dict[bytes, list[tuple[int, npt.NDArray[np.uint32], int]]] = {}
    for trace in traces:
        known = alike.get(trace.alike) if trace.alike else None
        if known is None:
            known = alike[trace.alike] = _finished(trace.slots)
        # A black box has an entry for each life of a group, in order; a dump has one for all.
        mine: dict[tuple[str, tuple[int, ...]], _Part] = {}
        for index, finished, begun in known:
            if index < len(trace.groups):
                key = trace.groups[index].name, trace.groups[index].ranks
                earlier = mine[key].lives if key in mine else 0
                mine[key] = _Part(trace, index, finished, earlier + begun)
        for key, part in mine.items():
            parts.setdefault(key, []).append(part)
    recorded = {trace.rank for trace in traces}
    kinds: dict[tuple[str, int], _OneKind] = {}
    for members in parts.values():
        group = members[0].trace.groups[members[0].index]
        present = len(recorded.intersection(group.ranks))
        kind = kinds.setdefault(kind_of(group), _OneKind())
        kind.groups.append((group, _last_finished(members, present)))
        kind.unrecorded += len(group.ranks) - present
    return tuple(_progress(*key, kind) for key, kind in kinds.items())


def _finished(slots: Slots) -> list[tuple[int, npt.NDArray[np.uint32], int]]:
    """Each group with a collective: its index, the finished collectives of its last life, and how many lives began."""
    rows = np.flatnonzero(slots["p2p_sequence"] == 0)
    if not len(rows):
        return []
    rows = rows[np.argsort(slots["group"][rows], kind="stable")]
    index, sequence = slots["group"][rows], slots["sequence"][rows]
    begins = np.concatenate([[0], np.flatnonzero(index[1:] != index[:-1]) + 1])
    ends = np.append(begins[1:], len(rows))
    # A group that was destroyed and made again counts from 1 again.
    ones = np.flatnonzero(sequence == 1)
    before, until = np.searchsorted(ones, begins), np.searchsorted(ones, ends)
    last = np.append(ones, 0)[until - 1]
    last = np.where(until > before, last, begins)
    kept = slots["state"][rows] == State.COMPLETED
    kept &= np.arange(len(rows)) >= np.repeat(last, ends - begins)
    finished, counts = sequence[kept], np.concatenate([[0], np.cumsum(kept)])
    return [
        (group, finished[begin:end], lives)
        for group, begin, end, lives in zip(
            index[begins].tolist(),
            counts[begins].tolist(),
            counts[ends].tolist(),
            (until - before).tolist(),
            strict=True,
        )
    ]


def _last_finished(parts: Sequence[_Part], present: int) -> tuple[int, _Part] | None:
    """The last collective that these members finished, all ``present`` ones; None where there is none."""
    lives = max(part.lives for part in parts)
    here = [part for part in parts if part.lives == lives or part.index in part.trace.dropped]
    each = {id(part.finished): part.finished for part in here}
    distinct = [*{finished.tobytes(): finished for finished in each.values()}.values()]
    if len(here) < present or not all(map(len, distinct)):
        return None
    last = min(int(finished.max()) for finished in distinct)
    if len(distinct) > 1 and not all((finished == last).any() for finished in distinct):
        common = distinct[0]
        for finished in distinct[1:]:
            common = common[np.isin(common, finished)]
        if not len(common):
            return None
        last = int(common.max())
    return last, here[0]


def _record(last: tuple[int, _Part]) -> Record | None:
    sequence, part = last
    slots = part.trace.slots
    at = (slots["group"] == part.index) & (slots["sequence"] == sequence) & (slots["p2p_sequence"] == 0)
    return record_at(part.trace, int(np.flatnonzero(at)[-1]))


def _progress(description: str, size: int, kind: _OneKind) -> Progress:
    finished = sorted((last for _, last in kind.groups if last is not None), key=itemgetter(0))
    groups = tuple(group for group, _ in kind.groups)
    members = tuple(sorted({rank for group in groups for rank in group.ranks}))
    most = _record(finished[-1]) if finished else None
    least = _record(finished[0]) if finished and len(finished) == len(groups) else None
    return Progress(description, size, groups, members, least, most, kind.unrecorded)
