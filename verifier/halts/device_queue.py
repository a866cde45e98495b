"""Plays the device queues to find the call at which each rank's device is blocked, as NCCL queues calls.

Such a call returns once it is queued. So the last call of a rank does not show where its device is; a call that a rank
has made is not one that its device has come to; and a call that is recorded as unfinished may have ended without
anybody having looked. The queues are therefore played: a device comes to a call when the calls queued before it have
ended, and a collective ends when the devices of all members have come to it. Devices are blocked where no call ends any
more.

A device runs the calls of one group in their order. A synchronous call holds up the stream that all later calls wait
for; one that says it is asynchronous holds up only the calls of its own group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import (
    ASYNCHRONOUS,
    ON_DEVICE,
    Life,
    Trace,
    course_key,
    lives,
    once_alike,
)
from simcoll.spec.call import Call

Head: TypeAlias = tuple[int, int]
"""A call at which a device stands: the rank (global) and the row of its trace."""

_Place: TypeAlias = tuple[Life, int]
_LONGEST: Final = 1024
"""Calls of a queue that are looked at, the last ones: CUDA holds about as many launches before it makes a host wait."""

_NO_LIMIT: Final = 1 << 62

_HOST: Final = frozenset({"", "cpu", "meta"})
"""Devices on which a call does not outlast the wait for it. A record that states none is no black box's."""


@dataclass(frozen=True, slots=True)
class Stand:
    """A call at which a device is blocked: the ranks that have not made it, and the calls that block other devices.

    ``row`` is -1 where no device is blocked.
    """

    rank: int
    row: int
    unmade: frozenset[int] = frozenset()
    behind: Mapping[int, frozenset[Head]] = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[int]:
        """The ranks for whose part it waits."""
        return self.unmade | self.behind.keys()


class DeviceCalls:
    """The calls of a job that devices run: those of a group in which any rank made such a call, those without buffers
    included.

    The records of a rank that has only been to a barrier of such a group do not show it by themselves.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._lives = device_lives(traces)
        self._masks: dict[object, npt.NDArray[np.bool_]] = {}
        self._open: dict[object, npt.NDArray[np.intp]] = {}

    def queued(self, trace: Trace) -> npt.NDArray[np.bool_]:
        """A mask of the rows that are such calls."""
        return self._mask(trace)[1]

    def open_rows(self, trace: Trace, *, failed: bool = False) -> npt.NDArray[np.intp]:
        """As :func:`open_rows`, of these calls; ``failed`` takes in those that failed after the last that ended."""
        key, mask = self._mask(trace)
        if (key, failed) not in self._open:
            self._open[key, failed] = _open_rows(trace, mask, failed=failed)
        return self._open[key, failed]

    def _mask(self, trace: Trace) -> tuple[object, npt.NDArray[np.bool_]]:
        """The mask, worked out once for ranks that made the same calls, and a key that is equal for these."""
        known = tuple(index for index, life in enumerate(lives(trace)) if life in self._lives)
        key = course_key(trace), len(trace.groups), known
        if key not in self._masks:
            self._masks[key] = _queued(trace, known)
        return key, self._masks[key]


def device_lives(traces: Sequence[Trace]) -> frozenset[Life]:
    """The groups in which any rank made a call that a device runs."""
    found, seen = set[Life](), set[tuple[int, tuple[int, ...]]]()
    for trace, mine in zip(traces, once_alike(traces, _on_devices), strict=True):
        if mine and (key := (id(trace.groups), mine)) not in seen:
            seen.add(key)
            known = lives(trace)
            found |= {known[index] for index in mine if index < len(known)}
    return frozenset(found)


def _on_devices(trace: Trace) -> tuple[int, ...]:
    """The groups (by index) in which a rank made a call that names a device."""
    return tuple(np.unique(trace.slots["group"][_kinds(trace) == 1]).tolist())


def queued(trace: Trace) -> npt.NDArray[np.bool_]:
    """A mask of the rows that are calls which a device runs, those of a group of such calls without buffers included,
    as far as this rank's record shows.
    """
    return _queued(trace, ())


def _queued(trace: Trace, known: Sequence[int]) -> npt.NDArray[np.bool_]:
    """The same, where these groups (by index) are known to be such."""
    kinds, groups = _kinds(trace), trace.slots["group"]
    mask: npt.NDArray[np.bool_] = kinds == 1
    bare = kinds == 2
    if bare.any():
        # Small numbers are looked up in a table of them all; records of no group stand behind it.
        places, of = np.minimum(groups, len(trace.groups)), np.zeros(len(trace.groups) + 1, np.bool_)
        of[places[mask]], of[[*known]] = True, True
        mask |= bare & of[places]
    return mask


def _kinds(trace: Trace) -> npt.NDArray[np.int8]:
    """The kind of each row's call."""
    signatures, count = trace.slots["signature"], len(trace.signatures)
    kinds = np.array([_kind(call) for call in trace.signatures] + [0], np.int8)
    found: npt.NDArray[np.int8] = kinds[np.minimum(signatures, count)]
    return found


def _kind(call: Call) -> int:
    """1 for a call on devices, 2 for one that names no buffer, 0 for any other."""
    places = {buffer.device for buffer in (*call.inputs, *call.outputs)}
    return 2 if not places else int(places.isdisjoint(_HOST))


def open_rows(trace: Trace) -> npt.NDArray[np.intp]:
    """The rows of queued calls that are not known to have ended, oldest first, as far as this rank's record shows."""
    return _open_rows(trace, queued(trace))


def _open_rows(trace: Trace, mine: npt.NDArray[np.bool_], *, failed: bool = False) -> npt.NDArray[np.intp]:
    """Of these rows those that are not known to have ended."""
    states = trace.slots["state"]
    mask = mine & ((states == State.SCHEDULED) | (states == State.STARTED))
    if failed:
        ended = np.flatnonzero(mine & (states == State.COMPLETED))
        mask |= mine & (states == State.FAILED) & (np.arange(len(mine)) > (ended[-1] if len(ended) else -1))
    return np.flatnonzero(mask)


def stands(
    calls: DeviceCalls,
    traces: Mapping[int, Trace],
    come: Mapping[int, Mapping[Life, int]],
    alone: Collection[Head],
    failed: Collection[int] = (),
) -> list[Stand]:
    """The calls at which the devices of these ranks are blocked for good by their queues, by rank and row.

    ``come`` has the last collective of each group to which each rank has come (:func:`reached_by`). ``alone`` are sends
    and receives that have no other end; of the ranks in ``failed`` calls that failed count as open.
    """
    lonely: dict[int, set[int]] = {}
    for rank, row in alone:
        lonely.setdefault(rank, set()).add(row)
    queues = {}
    for rank, trace in traces.items():
        rows = calls.open_rows(trace, failed=rank in failed)
        if len(rows):
            queues[rank] = _Queue(trace, rows[-_LONGEST:].tolist(), lonely.get(rank, set()))
    return _Play(queues, come).played()


class _Queue:
    """One rank's open calls; those at which its device may be are ``heads``."""

    def __init__(self, trace: Trace, rows: Sequence[int], alone: Collection[int]) -> None:
        self.rank = trace.rank
        self.heads: set[int] = set()
        self.alone = alone
        self.places: dict[int, _Place | None] = {}
        self.rows: dict[_Place, int] = {}
        self._lines: dict[object, deque[int]] = {}
        self._line_of: dict[int, object] = {}
        self._barriers: deque[int] = deque()
        self._running: list[int] = []
        self._fill(trace, rows)

    def _fill(self, trace: Trace, rows: Sequence[int]) -> None:
        known = lives(trace)
        for row in rows:
            slot = trace.slots[row]
            if int(slot["group"]) >= len(known):
                continue
            life, message = known[int(slot["group"])], int(slot["p2p_sequence"])
            # Messages run beside the collectives, those of one peer one after the other.
            line = (life, trace.signatures[int(slot["signature"])].peer) if message else life
            self._lines.setdefault(line, deque()).append(row)
            self._line_of[row] = line
            self.places[row] = None if message else (life, int(slot["sequence"]))
            if not message:
                self.rows[life, int(slot["sequence"])] = row
            flags = int(slot["flags"])
            if not flags & ASYNCHRONOUS:
                self._barriers.append(row)
            if flags & ON_DEVICE and slot["state"] == State.STARTED:
                self._running.append(row)

    def advance(self) -> list[int]:
        """The calls that the device comes to now."""
        while self._barriers and self._barriers[0] not in self.places:
            self._barriers.popleft()
        limit = self._barriers[0] if self._barriers else _NO_LIMIT
        first = [line[0] for line in self._lines.values() if line and line[0] <= limit]
        running = [row for row in self._running if row in self.places]
        new = sorted({*first, *running} - self.heads)
        self.heads.update(new)
        return new

    def end(self, row: int) -> None:
        """A call has ended."""
        place = self.places.pop(row)
        if place is not None and self.rows.get(place) == row:
            del self.rows[place]
        self.heads.discard(row)
        line = self._lines[self._line_of[row]]
        while line and line[0] not in self.places:
            line.popleft()

    def holds_up(self, row: int) -> frozenset[Head]:
        """The calls at which the device is blocked before it comes to this one."""
        before = {head for head in self.heads if head < row}
        barriers = before.intersection(self._barriers)
        own = {head for head in before if self._line_of[head] == self._line_of[row]}
        return frozenset((self.rank, head) for head in (barriers | own or before))


class _Play:
    """The queues of all ranks, played until nothing ends any more."""

    def __init__(self, queues: Mapping[int, _Queue], come: Mapping[int, Mapping[Life, int]]) -> None:
        self._queues = queues
        self._come = come
        self._wanted: dict[_Place, set[int]] = {}

    def played(self) -> list[Stand]:
        """Play; returns the calls at which devices are blocked."""
        left = deque(self._queues)
        while left:
            queue = self._queues[left.popleft()]
            for row in queue.advance():
                left.extend(self._arrive(queue, row))
        found = [self._stand(queue, row) for queue in self._queues.values() for row in sorted(queue.heads)]
        return [one for one in found if one.needs or one.row in self._queues[one.rank].alone]

    def _arrive(self, queue: _Queue, row: int) -> Iterable[int]:
        """A device comes to a call; gives the ranks whose devices go on for it."""
        place = queue.places[row]
        if place is None:
            # Both ends are there, and nothing shows that the message cannot be delivered.
            if row in queue.alone:
                return ()
            queue.end(row)
            return (queue.rank,)
        wanted = self._wanted.get(place)
        if wanted is None:
            wanted = self._wanted[place] = {member for member in place[0][1] if not self._has_passed(member, place)}
        wanted.discard(queue.rank)
        if wanted:
            return ()
        members = [self._queues[rank] for rank in place[0][1] if rank in self._queues]
        ended = [one for one in members if one.rows.get(place) in one.heads]
        for one in ended:
            one.end(one.rows[place])
        return [one.rank for one in ended]

    def _has_passed(self, rank: int, place: _Place) -> bool:
        """True if a rank's part of a collective is over."""
        return self._has_made(rank, place) and (rank not in self._queues or place not in self._queues[rank].rows)

    def _has_made(self, rank: int, place: _Place) -> bool:
        return self._come.get(rank, {}).get(place[0], 0) >= place[1]

    def _stand(self, queue: _Queue, row: int) -> Stand:
        place = queue.places[row]
        if place is None:
            return Stand(queue.rank, row)
        wanted = self._wanted.get(place, set())
        unmade = frozenset(rank for rank in wanted if not self._has_made(rank, place))
        behind = {rank: self._queues[rank].holds_up(self._queues[rank].rows[place]) for rank in wanted - unmade}
        return Stand(queue.rank, row, unmade, behind)
