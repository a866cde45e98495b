"""Matches sends with receives in the ranks' records, and reports the ends that are left over.

Between two ranks of a group the messages of one tag are received in the order in which they were sent (Gloo). NCCL
knows no tags: all messages of the two have one order. A receive from any source belongs to the sender that it
took its message from, which its record says once it is known; until then it may take any message with its tag.

Nothing is guessed beyond the records. Where a ring has overwritten records, only calls that are not done are judged;
where a rank has no records, or where the unmatched ends contradict the records' own states, nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, Record, State
from simcoll.core.trace import Life, Trace, lives, once_alike, record_at, slots_key
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind

Rows = npt.NDArray[np.intp]
"""Rows of a trace's ``slots``."""

NO_ROWS: Rows = np.zeros(0, np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """One rank's sends to a peer, or its receives from it, in the order in which they were made.

    ``rows`` is one object for ranks with the same slots, and ``known`` what :meth:`used` is, where that is known.
    """

    trace: Trace
    rows: Rows
    known: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def states(self) -> npt.NDArray[np.uint8]:
        """The state of each row."""
        states: npt.NDArray[np.uint8] = self.trace.slots["state"][self.rows]
        return states

    def part(self, places: npt.NDArray[np.bool_] | slice) -> End:
        """Some of the rows, in the same order."""
        return End(self.trace, self.rows[places])

    def used(self) -> tuple[int, ...]:
        """The distinct calls, as indices of the trace's ``signatures``, ascending."""
        if self.known is not None:
            return self.known
        return tuple(np.unique(self.trace.slots["signature"][self.rows]).tolist())

    def tags(self) -> npt.NDArray[np.int64]:
        """The tag of each row; 0 where none is stated."""
        tags = {index: self.trace.signatures[index].tag or 0 for index in self.used()}
        if len({*tags.values()}) < 2:
            return np.full(len(self.rows), next(iter(tags.values()), 0), np.int64)
        table = np.zeros(len(self.trace.signatures), np.int64)
        table[[*tags]] = [*tags.values()]
        stated: npt.NDArray[np.int64] = table[self.trace.slots["signature"][self.rows]]
        return stated

    def devices(self) -> set[str]:
        """The device types of all buffers; empty texts where records do not state them."""
        calls = [self.trace.signatures[index] for index in self.used()]
        return {buffer.device for call in calls for buffer in (*call.inputs, *call.outputs)}


@dataclass(frozen=True, slots=True, eq=False)
class ChannelRecords:
    """The messages of one tag from one rank of a group to another; on NCCL those of all tags (``tag`` is None).

    ``sender`` and ``receiver`` are global ranks. ``ordered`` says that the n-th send meets the n-th receive for
    certain. ``open`` are the receiver's receives from any source, which may take these messages too, and have not
    stated the one that they took. A lane that is not ``whole`` has only the ends that are not done.
    """

    group: Group
    sender: int
    receiver: int
    tag: int | None
    sends: End
    receives: End
    ordered: bool
    open: End
    whole: bool = True

    @property
    def paired(self) -> int:
        """The number of messages that have both ends."""
        return min(len(self.sends), len(self.receives))

    def sound(self) -> bool:
        """True if none of the unmatched ends is done: a call that is done has met its other end."""
        left = [self.receives.part(slice(self.paired, None))]
        left += [] if len(self.open) else [self.left_sends()]
        return not any((end.states() == State.COMPLETED).any() for end in left)

    def left_sends(self) -> End:
        """The sends that no receive which names the sender has met."""
        return self.sends.part(slice(self.paired, None))


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A send or receive (of a global rank) whose other end no rank has made. ``peer`` is None for any source.

    ``pending`` says that it has not ended, ``awaited`` that a thread waits for it, or did when it failed.
    """

    rank: int
    peer: int | None
    record: Record
    group: Group

    @property
    def pending(self) -> bool:
        """True if it has neither ended nor failed."""
        return self.record.state in (State.SCHEDULED, State.STARTED)

    @property
    def awaited(self) -> bool:
        """True if a thread waits for it, or has waited."""
        return self.record.awaited

    @property
    def peers(self) -> list[int]:
        """The ranks (global) of which one may have the other end."""
        return [rank for rank in self.group.ranks if rank != self.rank] if self.peer is None else [self.peer]

    @property
    def sends(self) -> bool:
        """True for a send."""
        return self.record.call.op == "send"


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """The result of :func:`match_messages`: the lanes that can be judged, and the unmatched ends on them."""

    lanes: Sequence[ChannelRecords] = ()
    unmatched: Sequence[Unmatched] = ()


@dataclass(slots=True, eq=False)
class _Member:
    """One rank's messages in one life of a group: sends and receives by the peer's group rank."""

    trace: Trace
    whole: bool
    sends: dict[int, End] = field(default_factory=dict)
    receives: dict[int, End] = field(default_factory=dict)

    def open(self, tag: int | None) -> End:
        """Receives from any source that have not said whose message they took."""
        end = self.receives.get(ANY_SOURCE, End(self.trace, NO_ROWS))
        return end if tag is None else end.part(end.tags() == tag)


def match_messages(traces: Sequence[Trace]) -> Matching:
    """Match the sends and receives of all traces, whichever of the ranks they are of."""
    lanes: list[ChannelRecords] = []
    unmatched: list[Unmatched] = []
    for group, members in _lives(traces):
        senders = _senders(members)
        found = [lane for lane in _lanes(group, members, senders) if lane.sound()]
        lanes += found
        unmatched += [one for lane in found for one in _left_over(lane)]
        unmatched += _nobody_sent(group, members, senders)
    return Matching(tuple(lanes), tuple(unmatched))


def _lives(traces: Sequence[Trace]) -> list[tuple[Group, dict[int, _Member]]]:
    """Each life of each group in which anybody sent or received, with its members by group rank."""
    found: dict[Life, tuple[Group, dict[int, _Member]]] = {}
    if not any(messages := once_alike(traces, _message_groups, slots_key)):
        return []
    rows = _MessageRows()
    for trace, used in zip(traces, messages, strict=True):
        for index, (group, life) in enumerate(zip(trace.groups, lives(trace), strict=True)):
            if (place := group.place(trace.rank)) is not None:
                _, members = found.setdefault(life, (group, {}))
                members[place] = _member(trace, index, rows) if index in used else _idle(trace, index)
    return [life for life in found.values() if any(member.sends or member.receives for member in life[1].values())]


def _message_groups(trace: Trace) -> set[int]:
    """The groups (by index) in which a rank sent or received."""
    slots = trace.slots
    messages = slots["p2p_sequence"] > 0
    return set(np.unique(slots["group"][messages]).tolist()) if messages.any() else set()


def _idle(trace: Trace, index: int) -> _Member:
    return _Member(trace, not trace.dropped_p2p.get(index))


def _member(trace: Trace, index: int, rows: _MessageRows) -> _Member:
    member = _idle(trace, index)
    directions: dict[int, list[int]] = {}
    for signature in rows.used(trace, index):
        directions.setdefault(_direction(trace.signatures[signature]), []).append(signature)
    for direction, signatures in sorted(directions.items()):
        sends, peer = direction % 2 == 1, direction // 2 - 2
        if peer >= ANY_SOURCE:
            used = tuple(signatures)
            (member.sends if sends else member.receives)[peer] = End(trace, rows.of(trace, index, used), used)
    return member


class _MessageRows:
    """The messages of each rank in each group, worked out once for ranks with the same slots."""

    def __init__(self) -> None:
        self._all: dict[object, tuple[Rows, npt.NDArray[np.uint32], tuple[int, ...]]] = {}
        self._of: dict[object, Rows] = {}

    def used(self, trace: Trace, index: int) -> tuple[int, ...]:
        """The distinct calls, ascending."""
        return self._messages(trace, index)[2]

    def of(self, trace: Trace, index: int, used: tuple[int, ...]) -> Rows:
        """The rows of some of the calls, in the order in which they were made."""
        key = slots_key(trace), len(trace.signatures), index, used
        if key not in self._of:
            rows, signatures, every = self._messages(trace, index)
            chosen = np.zeros(len(trace.signatures), np.bool_)
            chosen[[*used]] = True
            self._of[key] = rows if used == every else rows[chosen[signatures]]
        return self._of[key]

    def _messages(self, trace: Trace, index: int) -> tuple[Rows, npt.NDArray[np.uint32], tuple[int, ...]]:
        key = slots_key(trace), len(trace.signatures), index
        if key not in self._all:
            slots = trace.slots
            mask = (slots["group"] == index) & (slots["p2p_sequence"] > 0) & (slots["state"] != State.REJECTED)
            rows = np.flatnonzero(mask & (slots["signature"] < len(trace.signatures)))
            numbers = slots["p2p_sequence"][rows]
            if (numbers[1:] < numbers[:-1]).any():
                # Threads may write down their calls a little out of order.
                rows = rows[np.argsort(numbers, kind="stable")]
            signatures = slots["signature"][rows]
            self._all[key] = rows, signatures, tuple(np.unique(signatures).tolist())
        return self._all[key]


def _direction(call: Call) -> int:
    """Peer and op as one number; a call that is neither send nor receive has a peer of -2."""
    spec = COLLECTIVES.get(call.op)
    if spec is None or spec.kind is not Kind.POINT_TO_POINT or call.peer is None:
        return 0
    return 2 * (max(call.peer, ANY_SOURCE) + 2) + (call.op == "send")


def _senders(members: Mapping[int, _Member]) -> dict[int, set[int]]:
    """For each rank (of the group) that recorded something, the other such ranks that sent to it."""
    found: dict[int, set[int]] = {receiver: set() for receiver in members}
    for sender, of in members.items():
        for receiver in of.sends:
            if receiver in found and receiver != sender:
                found[receiver].add(sender)
    return found


def _lanes(group: Group, members: Mapping[int, _Member], senders: Mapping[int, set[int]]) -> Iterator[ChannelRecords]:
    """The lanes between all ranks that recorded something of the group."""
    for receiver, to in members.items():
        named = {sender for sender in to.receives if sender in members and sender != receiver}
        for sender in sorted(named | senders[receiver]):
            of = members[sender]
            sends = of.sends.get(receiver, End(of.trace, NO_ROWS))
            receives = to.receives.get(sender, End(to.trace, NO_ROWS))
            if of.whole and to.whole:
                yield from _split(group, sends, receives, to)
            else:
                yield from _recent(_by_tag(group, sends, receives, to), of.whole, to.whole)


def _split(group: Group, sends: End, receives: End, receiver: _Member) -> Iterator[ChannelRecords]:
    """One lane a tag where tags count, which is on CPUs; one for all where they do not, or where it is not known.

    Where both sides name the same tags in the same order, it makes no difference.
    """
    devices = sends.devices() | receives.devices()
    waiting = receiver.open(None)
    sent, received = sends.tags(), receives.tags()
    both = min(len(sent), len(received))
    same = bool((sent[:both] == received[:both]).all())
    ordered = same and len(devices) == 1 and _in_turn(receives, waiting)
    if devices - {"cpu"} or (ordered and len(sent) == len(received) and not len(waiting)):
        yield ChannelRecords(group, sends.trace.rank, receives.trace.rank, None, sends, receives, ordered, waiting)
    else:
        yield from _by_tag(group, sends, receives, receiver)


def _by_tag(group: Group, sends: End, receives: End, receiver: _Member) -> Iterator[ChannelRecords]:
    """One lane a tag; none for buffers that are not on CPUs. Records that do not state a device state no tag either."""
    if (sends.devices() | receives.devices()) - {"cpu", ""}:
        return
    sent, received = _tagged(sends), _tagged(receives)
    for tag in sorted(sent.keys() | received.keys()):
        mine = received.get(tag, receives.part(slice(0)))
        waiting = receiver.open(tag)
        ordered = _in_turn(mine, waiting)
        theirs = sent.get(tag, sends.part(slice(0)))
        yield ChannelRecords(group, sends.trace.rank, receives.trace.rank, tag, theirs, mine, ordered, waiting)


def _tagged(end: End) -> dict[int, End]:
    """The parts of an end by tag."""
    if not len(end):
        return {}
    tags = end.tags()
    order = np.argsort(tags, kind="stable")
    starts = np.flatnonzero(np.diff(tags[order])) + 1
    parts = np.split(order, starts)
    return {int(tags[part[0]]): End(end.trace, end.rows[part]) for part in parts}


def _recent(lanes: Iterable[ChannelRecords], sends_whole: bool, receives_whole: bool) -> Iterator[ChannelRecords]:
    """The calls that are not done, of lanes whose first messages were overwritten.

    On Gloo a call that is done has met its other end, and so have all before it. The pairs are not known; a lane is
    left out where a side has no call left that shows how far it came.
    """
    for lane in lanes:
        if (sends_whole or len(lane.sends)) and (receives_whole or len(lane.receives)):
            sends, receives = (end.part(end.states() != State.COMPLETED) for end in (lane.sends, lane.receives))
            yield replace(lane, sends=sends, receives=receives, ordered=False, whole=False)


def _in_turn(receives: End, waiting: End) -> bool:
    """True if receives took messages in their own order.

    Gloo keeps no order between receives that name the sender and receives from any source, unless these come later.
    """
    mixed = len({receives.trace.signatures[index].spelling for index in receives.used()}) > 1
    later = not len(waiting) or not len(receives) or bool(waiting.rows.min() > receives.rows.max())
    return not mixed and later


def _left_over(lane: ChannelRecords) -> Iterator[Unmatched]:
    """The ends of a lane without another end, but for sends that a receive from any source may have taken."""
    found = list(_unmatched(lane.group, lane.receives.part(slice(lane.paired, None)), lane.sender))
    if not len(lane.open):
        found += _unmatched(lane.group, lane.left_sends(), lane.receiver)
    # A call that nobody waits for may have met its other end long ago.
    yield from (one for one in found if lane.whole or one.awaited)


def _nobody_sent(group: Group, members: Mapping[int, _Member], senders: Mapping[int, set[int]]) -> Iterator[Unmatched]:
    """Receives from any source beyond the messages, of all senders, that are left for them."""
    if set(members) != set(range(len(group.ranks))) or not all(member.whole for member in members.values()):
        return
    for receiver, member in members.items():
        end = member.receives.get(ANY_SOURCE)
        tags = [] if end is None else np.unique(end.tags()).tolist()
        for tag in tags:
            waiting = member.open(tag)
            there = sum(_spare(members[sender], member, receiver, sender, tag) for sender in senders[receiver])
            if not (waiting.states() == State.COMPLETED).any():
                yield from _unmatched(group, waiting.part(slice(there, None)), None)


def _spare(of: _Member, to: _Member, receiver: int, sender: int, tag: int) -> int:
    """The number of messages of one sender beyond the receives that name it."""
    sends, receives = of.sends.get(receiver), to.receives.get(sender)
    sent = 0 if sends is None else int((sends.tags() == tag).sum())
    taken = 0 if receives is None else int((receives.tags() == tag).sum())
    return max(sent - taken, 0)


def _unmatched(group: Group, end: End, peer: int | None) -> Iterator[Unmatched]:
    for row in end.rows.tolist():
        if (record := record_at(end.trace, row)) is not None:
            yield Unmatched(end.trace.rank, peer, record, group)
