"""Input of the verifier: one trace per rank, the launcher's outcome, and the stall of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.spec.call import Call

ASYNCHRONOUS = 1
"""Bit of ``flags``: the call said that it was asynchronous."""

AWAITED = 2
"""Bit of ``flags``: a thread waits for the call, has waited, or has seen its end."""

HANDED_ON = 4
"""Bit of ``flags``: a holder of the call's future, or torch, may wait unseen; or nothing can read its result."""

LET_GO = 8
"""Bit of ``flags``: the program dropped the call's Work before any thread had waited for it."""

ON_DEVICE = 16
"""Bit of ``flags``: its start, and its end if it has ended, are the device's own times: a call that has started runs
there.
"""

REPLAYED = 64
"""Bit of ``flags``: a CUDA graph ran a call that it had captured."""

LET_GO_LATER = 128
"""Bit of ``flags``: the rank had waited for another call before the program dropped this call's Work."""

DUMPED = "dumped"
"""The kind of the event that says that torch wrote a Flight Recorder dump of the rank at that time."""

SLOT = np.dtype(
    [
        ("group", "<u4"),
        ("sequence", "<u4"),
        ("p2p_sequence", "<u4"),
        ("signature", "<u4"),
        ("source", "<u4"),
        ("state", "u1"),
        ("flags", "u1"),
        ("scheduled_ns", "<u8"),
        ("started_ns", "<u8"),
        ("finished_ns", "<u8"),
        ("wait_us", "<u4"),
    ]
)
"""The columns that a trace's ``slots`` must have; group, signature and source index the trace's own tables.

``wait_us`` is how long after ``scheduled_ns`` the rank began to wait for an asynchronous call; 0 where nobody saw it.
"""

Slots: TypeAlias = npt.NDArray[Any]


_CALLS = [(name, SLOT[name]) for name in SLOT.names or () if not name.endswith(("_ns", "_us"))]


def calls_digest(slots: Slots) -> bytes:
    """16 bytes that are equal for slots that are equal but for the times, and for nothing else."""
    calls = np.empty(len(slots), _CALLS)
    for name, _ in _CALLS:
        calls[name] = slots[name]
    return blake2b(calls.data, digest_size=16).digest()


_Worked = TypeVar("_Worked")


def once_alike(
    traces: Sequence[Trace], work: Callable[[Trace], _Worked], key: Callable[[Trace], object] | None = None
) -> list[_Worked]:
    """What ``work`` makes of each trace, worked out once for all that are alike: it must look at no times, and at
    nothing but the slots and the tables of calls and lines; with ``key=slots_key`` at nothing but the slots.
    """
    known: dict[object, _Worked] = {}
    keys = [*map(key or course_key, traces)]
    for one, trace in zip(keys, traces, strict=True):
        if one not in known:
            known[one] = work(trace)
    return [known[one] for one in keys]


def course_key(trace: Trace) -> object:
    """A key that is equal for traces known to have the same calls, from the same lines, in the same state."""
    return slots_key(trace), id(trace.signatures), id(trace.sources)


def slots_key(trace: Trace) -> object:
    """A key that is equal for traces known to have the same slots but for the times; their calls may differ."""
    return trace.alike or id(trace)


class SlotTimes(NamedTuple):
    """When the first call of a trace was made, and the last one made or ended (wall clock, ns; :data:`NO_TIME` and 0
    where there is none); and for how long the rank may have waited in all of them (ns): in each call from its making to
    its end, in an asynchronous one from the wait, if that was written down, else not at all.
    """

    first_ns: int
    last_ns: int
    waited_ns: int


NO_TIME = (1 << 64) - 1


def slot_times(trace: Trace) -> SlotTimes:
    """The times of a trace's slots, as the reader saw them or worked out now."""
    if trace.times is not None:
        return trace.times
    slots = trace.slots
    made, ended = slots["scheduled_ns"], slots["finished_ns"]
    if not len(slots):
        return SlotTimes(NO_TIME, 0, 0)
    # By the functions themselves: the methods of arrays take twice as long for the few records of a rank.
    first = int(np.minimum.reduce(made)) or int(made[made > 0].min(initial=NO_TIME))
    last = max(int(np.maximum.reduce(made)), int(np.maximum.reduce(ended)))
    # Unsigned numbers wrap around: as signed ones the differences are right.
    inside = (ended - made).view(np.int64)
    free = (slots["flags"] & ASYNCHRONOUS) != 0
    if free.any():
        wait_us = slots["wait_us"]
        waited = np.where(wait_us > 0, inside - wait_us.astype(np.int64) * 1000, 0)
        inside = np.where(free, waited, inside)
    return SlotTimes(first, last, int(np.add.reduce(np.maximum(inside, 0))))


def ran_on_device(trace: Trace, known: dict[object, bool]) -> bool:
    """True if a device gave the time of any call; ``known`` has it of ranks with the same slots, and takes it in."""
    key = slots_key(trace)
    if key not in known:
        known[key] = bool((trace.slots["flags"] & ON_DEVICE).any())
    return known[key]


class Trace(Protocol):
    """One rank's records, column by column, oldest first.

    ``dropped`` (``dropped_p2p``) maps a group's index to the last sequence number (p2p sequence number) that the ring
    overwrote; ``problems`` says in words what could not be read.
    """

    @property
    def rank(self) -> int:
        """The global rank."""
        ...

    @property
    def world_size(self) -> int:
        """The number of ranks of the job."""
        ...

    @property
    def mode(self) -> str:
        """The mode that recorded it."""
        ...

    @property
    def groups(self) -> Sequence[Group]:
        """Process groups, by index."""
        ...

    @property
    def signatures(self) -> Sequence[Call]:
        """Calls, by index."""
        ...

    @property
    def sources(self) -> Sequence[Source]:
        """Lines of the user's program, by index."""
        ...

    @property
    def events(self) -> Sequence[Event]:
        """Other events that the rank recorded, in order."""
        ...

    @property
    def dropped(self) -> Mapping[int, int]:
        """Last dropped sequence by group index."""
        ...

    @property
    def dropped_p2p(self) -> Mapping[int, int]:
        """Last dropped p2p sequence by group index."""
        ...

    @property
    def slots(self) -> Slots:
        """The records, with the fields of :data:`SLOT`."""
        ...

    @property
    def alike(self) -> bytes:
        """The :func:`calls_digest` of the slots, or nothing where it was not worked out: ranks with one digest and the
        same tables of calls and lines are looked at together.
        """
        ...

    @property
    def times(self) -> SlotTimes | None:
        """The times of the slots, or None where they were not worked out: :func:`slot_times` has them then."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """Messages about parts of the record that could not be read."""
        ...

    @property
    def unknown(self) -> frozenset[str]:
        """Fields of a call (``reduce_op``, ``root``, ...) that this kind of record never states."""
        ...

    @property
    def seen_ns(self) -> int:
        """The time (wall clock, nanoseconds) up to which it records the rank; 0 where that is not known."""
        ...


@dataclass(frozen=True, slots=True)
class RankExit:
    """The end of one rank's process: a negative ``exit_code`` is a signal, None a process that has not ended.

    ``stopped`` says that its launcher ended it, because another rank had failed or the job was to end.
    """

    exit_code: int | None
    time_ns: int = 0
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """The job as the launcher saw it: each global rank's end, and whether the ranks were started at all."""

    ranks: Mapping[int, RankExit] = field(default_factory=dict)
    launched: bool = True


@dataclass(frozen=True, slots=True)
class Stall:
    """A stalled job, as seen from outside: the begin of the stall, and the time until which it was watched.

    ``places`` gives the line of the user's program at which a rank's main thread is, ``blocked`` the ranks whose main
    thread waits inside torch, ``busy`` those that compute or have threads at work elsewhere, ``stopped`` those whose
    process a signal has stopped, ``connecting`` those in which simcoll itself still connects to the store. ``over``
    says that the job was ended for it: no further rank could arrive, or the time limit for the stall had passed.

    Where no monitor watched the job, ``until`` is the time up to which each rank's record goes, and ``patience_ns``
    how long a rank must be seen not to arrive. ``dated`` is False where these times may be those of copies,
    ``guessed`` is True where a group may have more members than the records know. ``writing_ns`` is the most that any
    rank may have taken to write its record. ``never_met`` are messages (rank, name of the group, p2p sequence) of which
    it is known that no rank's program has the other end.
    """

    since_ns: int
    seen_ns: int
    places: Mapping[int, Source] = field(default_factory=dict)
    blocked: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()
    connecting: frozenset[int] = frozenset()
    over: bool = True
    until: Mapping[int, int] = field(default_factory=dict)
    patience_ns: int = 0
    dated: bool = True
    guessed: bool = False
    writing_ns: int = 0
    never_met: frozenset[tuple[int, str, int]] = frozenset()

    @property
    def seconds(self) -> float:
        """The duration of the stall, in seconds."""
        return (self.seen_ns - self.since_ns) / 1e9

    @property
    def watched(self) -> bool:
        """True if a monitor saw it from outside."""
        return not self.until

    def misses(self, rank: int, since_ns: int) -> bool:
        """True if a rank is known not to have come, for as long as required, to a call that was made then."""
        return self.watched or self.until.get(rank, 0) - since_ns >= self.patience_ns


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """A trace that was never a file: simulated ranks, tests."""

    rank: int
    world_size: int
    mode: str
    groups: Sequence[Group]
    signatures: Sequence[Call]
    sources: Sequence[Source]
    events: Sequence[Event]
    slots: Slots
    dropped: Mapping[int, int] = field(default_factory=dict)
    problems: Sequence[str] = ()
    dropped_p2p: Mapping[int, int] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    seen_ns: int = 0

    @property
    def alike(self) -> bytes:
        """Nothing: a trace that is made of another with other slots must not keep its digest."""
        return b""

    @property
    def times(self) -> None:
        """None, as :attr:`alike`."""
        return None


def altered(trace: Trace, slots: Slots, events: Sequence[Event]) -> MemoryTrace:
    """A trace with other records and events, and otherwise the same fields."""
    said = {one.name: getattr(trace, one.name) for one in fields(MemoryTrace)}
    return MemoryTrace(**said | {"slots": slots, "events": events})


Life: TypeAlias = tuple[str, tuple[int, ...], int]
"""A group by name and members, and how often it had been made before."""


def lives(trace: Trace) -> list[Life]:
    """The life of the group of each index."""
    if len({group.name for group in trace.groups}) == len(trace.groups):
        return [(group.name, group.ranks, 0) for group in trace.groups]
    earlier: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found = []
    for group in trace.groups:
        key = group.name, group.ranks
        found.append((*key, earlier[key]))
        earlier[key] += 1
    return found


def reached(trace: Trace) -> dict[Life, int]:
    """The last collective of each group that the rank has come to."""
    return reached_by({trace.rank: trace})[trace.rank]


def reached_by(traces: Mapping[int, Trace]) -> dict[int, dict[Life, int]]:
    """:func:`reached` of each rank (global)."""
    recorded = once_alike([*traces.values()], _newest, lambda trace: (slots_key(trace), len(trace.groups)))
    found = {}
    for (rank, trace), newest in zip(traces.items(), recorded, strict=True):
        lost = trace.dropped
        last = [max(number, lost.get(index, 0)) for index, number in enumerate(newest)] if lost else newest
        found[rank] = dict(zip(lives(trace), last, strict=True))
    return found


def _newest(trace: Trace) -> list[int]:
    """The number of the last recorded collective of each group, by index."""
    slots = trace.slots
    mine = slots[(slots["p2p_sequence"] == 0) & (slots["group"] < len(trace.groups))]
    newest = np.zeros(len(trace.groups), np.int64)
    np.maximum.at(newest, mine["group"], mine["sequence"])
    found: list[int] = newest.tolist()
    return found


_STATES = {int(state): state for state in State}


def record_at(trace: Trace, row: int) -> Record | None:
    """One row of a trace as a record; None where the row points outside the trace's tables."""
    group, sequence, p2p_sequence, signature, source, state, flags, scheduled, started, finished = _values(
        trace.slots, row
    )
    if group >= len(trace.groups) or signature >= len(trace.signatures):
        return None
    return Record(
        trace.groups[group].name,
        sequence,
        trace.signatures[signature],
        trace.sources[source] if source < len(trace.sources) else Source("", 0, ""),
        _STATES.get(state, State.SCHEDULED),
        bool(flags & ASYNCHRONOUS),
        bool(flags & AWAITED),
        p2p_sequence,
        scheduled,
        started,
        finished,
        bool(flags & ON_DEVICE),
    )


def _values(slots: Slots, row: int) -> tuple[int, ...]:
    """The fields of a slot in the order of :data:`SLOT`, but for the last; slots may hold others beside them."""
    names = slots.dtype.names or ()
    chosen = _chosen.get(names)
    if chosen is None:
        chosen = _chosen[names] = itemgetter(*(names.index(name) for name in (SLOT.names or ())[:-1]))
    values: tuple[int, ...] = chosen(slots[row].item())
    return values


_chosen: dict[tuple[str, ...], Callable[[Any], Any]] = {}
