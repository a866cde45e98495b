"""The sends and receives of a dry run as they would meet: by sender, receiver and tag, each end when it is posted.

Tags count on CPUs alone, as with Gloo; NCCL knows none. A receive from any source takes what was posted first. A
message to or from a rank of which nothing is known counts as taken. What Gloo would not survive, more bytes than the
receive has room for, never ends; nor does a message whose Work was let go before the other end came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from simcoll.call import ANY_SOURCE, Call, bytes_of
from simcoll.verifier.trace import AWAITED, LET_GO, Life, Trace, lives

End: TypeAlias = tuple[int, int]
"""One end of a message: a rank, and the row of its trace."""


class _Lane(NamedTuple):
    """A life of a group, the group ranks of sender and receiver, and the tag, None where tags do not count."""

    life: Life
    sender: int
    receiver: int
    tag: int | None

    def is_with(self, rank: int, *, sends: bool) -> bool:
        """Whether this (global) rank is its sender, or its receiver."""
        place = self.sender if sends else self.receiver
        return place != ANY_SOURCE and self.life[1][place] == rank


ANY_SOURCE_SPELLING = "recv_anysource"


@dataclass(frozen=True, slots=True)
class _Posted:
    end: End
    number: int
    call: Call
    place: int


@dataclass(slots=True)
class LoneMessages:
    """What is posted and has not met its other end. ``taken`` says of receives from any source whose message it was.

    ``pairs`` gives each end that has met another one that other.
    """

    traces: Mapping[int, Trace]
    taken: dict[End, int] = field(default_factory=dict)
    pairs: dict[End, End] = field(default_factory=dict)
    _unknown: set[int] = field(default_factory=set)
    _lives: dict[int, list[Life]] = field(default_factory=dict)
    _sends: dict[_Lane, deque[_Posted]] = field(default_factory=dict)
    _receives: dict[_Lane, deque[_Posted]] = field(default_factory=dict)
    _count: int = 0

    def post(self, end: End) -> list[End]:
        """An end is posted: the ends that are done now."""
        rank, row = end
        trace = self.traces[rank]
        slot = trace.slots[row]
        call, group = trace.signatures[int(slot["signature"])], trace.groups[int(slot["group"])]
        place, peer = group.place(rank), _peer(call)
        if place is None or peer is None or (_is_on_cpu(call) and int(slot["flags"]) & (LET_GO | AWAITED) == LET_GO):
            return []
        if peer != ANY_SOURCE and (not 0 <= peer < len(group.ranks) or not self._is_known(group.ranks[peer])):
            return [end]
        life = self._lives.setdefault(rank, lives(trace))[int(slot["group"])]
        self._count += 1
        posted = _Posted(end, self._count, call, place)
        return self._send(posted, life, peer) if call.op == "send" else self._receive(posted, life, peer)

    def _is_known(self, rank: int) -> bool:
        return rank in self.traces and rank not in self._unknown

    def _send(self, send: _Posted, life: Life, receiver: int) -> list[End]:
        tag = _tag(send.call)
        waiting = [
            lane
            for sender in (send.place, ANY_SOURCE)
            if self._receives.get(lane := _Lane(life, sender, receiver, tag))
        ]
        if not waiting:
            self._sends.setdefault(_Lane(life, send.place, receiver, tag), deque()).append(send)
            return []
        first = min(waiting, key=lambda lane: self._receives[lane][0].number)
        return self._meet(send, self._receives[first].popleft(), any_source=first.sender == ANY_SOURCE)

    def _receive(self, receive: _Posted, life: Life, sender: int) -> list[End]:
        tag = _tag(receive.call)
        senders = range(len(life[1])) if sender == ANY_SOURCE else (sender,)
        there = [lane for one in senders if self._sends.get(lane := _Lane(life, one, receive.place, tag))]
        if not there:
            self._receives.setdefault(_Lane(life, sender, receive.place, tag), deque()).append(receive)
            return []
        first = min(there, key=lambda lane: self._sends[lane][0].number)
        return self._meet(self._sends[first].popleft(), receive, any_source=sender == ANY_SOURCE)

    def _meet(self, send: _Posted, receive: _Posted, *, any_source: bool) -> list[End]:
        if any_source:
            self.taken[receive.end] = send.place
        self.pairs[send.end], self.pairs[receive.end] = receive.end, send.end
        sent, room = bytes_of(send.call.inputs), bytes_of(receive.call.outputs)
        on_cpu = _is_on_cpu(send.call) and _is_on_cpu(receive.call)
        aborts = on_cpu and sent is not None and room is not None and sent > room
        return [] if aborts else [send.end, receive.end]

    def forget(self, rank: int) -> list[End]:
        """Nothing is known of a rank from here on: the ends that wait for it, which are done now."""
        self._unknown.add(rank)
        done = []
        for waiting in (self._sends, self._receives):
            for lane, posted in waiting.items():
                if lane.is_with(rank, sends=waiting is self._receives):
                    done += [one.end for one in posted]
                    posted.clear()
        return done

    def guess(self) -> list[End]:
        """Nobody can go on: receives from any source that a rank of which nothing is known may have sent to."""
        done = []
        for lane, posted in self._receives.items():
            if lane.sender == ANY_SOURCE and not all(map(self._is_known, lane.life[1])):
                done += [one.end for one in posted]
                posted.clear()
        return done


def _peer(call: Call) -> int | None:
    return ANY_SOURCE if call.spelling == ANY_SOURCE_SPELLING else call.peer


def _tag(call: Call) -> int | None:
    return call.tag or 0 if _is_on_cpu(call) else None


def _is_on_cpu(call: Call) -> bool:
    return all(buffer.device == "cpu" for buffer in (*call.inputs, *call.outputs))
