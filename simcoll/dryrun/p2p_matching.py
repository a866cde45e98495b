"""Matches the sends and receives of a dry run by sender, receiver and tag, in the order in which they are posted.

Tags count on CPUs only, as with Gloo; NCCL has none. A receive from any source takes the message of the sender that its
rank was told when it ran, since the rank may have gone on by that. Where no thread can go on otherwise, it takes the
message that was posted first.
A message to or from a rank that did not run, or might have gone on after its end, counts as complete. A
message with more bytes than the receive has room for, which Gloo would not survive, never completes; nor does one whose
Work was dropped at once. Where its rank waited for another call before that, the other end may have come meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from simcoll.core.trace import AWAITED, LET_GO, LET_GO_LATER, Life, Trace, lives
from simcoll.spec.call import ANY_SOURCE, Call, bytes_of

End: TypeAlias = tuple[int, int]
"""One end of a message: a rank, and the row of its trace."""


class _Channel(NamedTuple):
    """A group's life, the group ranks of sender and receiver, and the tag (None where tags do not count)."""

    life: Life
    sender: int
    receiver: int
    tag: int | None

    def is_with(self, rank: int, *, sends: bool) -> bool:
        """True if this (global) rank is the sender, or else the receiver."""
        place = self.sender if sends else self.receiver
        return place != ANY_SOURCE and self.life[1][place] == rank


ANY_SOURCE_SPELLING = "recv_anysource"


@dataclass(frozen=True, slots=True)
class _Form:
    """The part of a call that matters for matching; ``peer`` is None for a call that is no message.

    ``told`` is the sender that a receive from any source was told; None for other calls.
    """

    sends: bool
    peer: int | None
    tag: int | None
    on_cpu: bool
    bytes: int | None
    told: int | None = None


class _Posted(NamedTuple):
    end: End
    number: int
    form: _Form
    place: int


class _Rows(NamedTuple):
    """A rank's calls as columns, with the forms of its signatures and its places in its groups."""

    signature: list[int]
    group: list[int]
    let_go: list[bool]
    forms: list[_Form]
    places: list[int | None]
    lives: list[Life]


@dataclass(slots=True)
class P2pMatcher:
    """The posted ends that are not matched yet. ``taken`` has the source of each matched receive from any source.

    ``pairs`` maps each matched end to its other end.
    """

    traces: Mapping[int, Trace]
    taken: dict[End, int] = field(default_factory=dict)
    pairs: dict[End, End] = field(default_factory=dict)
    _unknown: set[int] = field(default_factory=set)
    _rows: dict[int, _Rows] = field(default_factory=dict)
    _sends: dict[_Channel, deque[_Posted]] = field(default_factory=dict)
    _receives: dict[_Channel, deque[_Posted]] = field(default_factory=dict)
    _count: int = 0

    def post(self, end: End) -> Sequence[End]:
        """Post an end; returns the ends that complete by that."""
        rank, row = end
        rows = self._rows.get(rank)
        if rows is None:
            rows = self._rows[rank] = _rows(self.traces[rank])
        form, group = rows.forms[rows.signature[row]], rows.group[row]
        place, peer, life = rows.places[group], form.peer, rows.lives[group]
        if place is None or peer is None or (form.on_cpu and rows.let_go[row]):
            return ()
        if peer != ANY_SOURCE and (not 0 <= peer < len(life[1]) or not self._is_known(life[1][peer])):
            return (end,)
        self._count += 1
        posted = _Posted(end, self._count, form, place)
        if form.told is not None and 0 <= form.told < len(life[1]) and self._is_known(life[1][form.told]):
            return self._receive(posted, life, form.told)
        return self._send(posted, life, peer) if form.sends else self._receive(posted, life, peer)

    def _is_known(self, rank: int) -> bool:
        return rank in self.traces and rank not in self._unknown

    def _send(self, send: _Posted, life: Life, receiver: int) -> Sequence[End]:
        tag = send.form.tag
        waiting = [
            channel
            for sender in (send.place, ANY_SOURCE)
            if self._receives.get(channel := _Channel(life, sender, receiver, tag))
        ]
        if not waiting:
            self._sends.setdefault(_Channel(life, send.place, receiver, tag), deque()).append(send)
            return ()
        first = min(waiting, key=lambda channel: self._receives[channel][0].number)
        return self._meet(send, self._receives[first].popleft())

    def _receive(self, receive: _Posted, life: Life, sender: int) -> Sequence[End]:
        tag = receive.form.tag
        senders = range(len(life[1])) if sender == ANY_SOURCE else (sender,)
        there = [channel for one in senders if self._sends.get(channel := _Channel(life, one, receive.place, tag))]
        if not there:
            self._receives.setdefault(_Channel(life, sender, receive.place, tag), deque()).append(receive)
            return ()
        first = min(there, key=lambda channel: self._sends[channel][0].number)
        return self._meet(self._sends[first].popleft(), receive)

    def _meet(self, send: _Posted, receive: _Posted) -> Sequence[End]:
        if receive.form.peer == ANY_SOURCE:
            self.taken[receive.end] = send.place
        self.pairs[send.end], self.pairs[receive.end] = receive.end, send.end
        sent, room = send.form.bytes, receive.form.bytes
        on_cpu = send.form.on_cpu and receive.form.on_cpu
        aborts = on_cpu and sent is not None and room is not None and sent > room
        return () if aborts else (send.end, receive.end)

    def forget(self, rank: int) -> list[End]:
        """Treat a rank as unknown from here on; returns the ends that waited for it, which complete now."""
        self._unknown.add(rank)
        done = []
        for waiting in (self._sends, self._receives):
            for channel, posted in waiting.items():
                if channel.is_with(rank, sends=waiting is self._receives):
                    done += [one.end for one in posted]
                    posted.clear()
        return done

    def guess(self) -> list[End]:
        """Complete receives from any source, since no thread can go on; returns the ends that complete by that.

        They take any message that is there, or else the one that an unknown rank may have sent.
        """
        if done := self._loosened():
            return done
        for channel, posted in self._receives.items():
            if channel.sender == ANY_SOURCE and not all(map(self._is_known, channel.life[1])):
                done += [one.end for one in posted]
                posted.clear()
        return done

    def _loosened(self) -> list[End]:
        """Let receives from any source take a message of another sender than the one that their ranks were told."""
        bound = []
        for channel, posted in self._receives.items():
            if channel.sender != ANY_SOURCE:
                bound += [(channel, one) for one in posted if one.form.peer == ANY_SOURCE]
                kept = [one for one in posted if one.form.peer != ANY_SOURCE]
                posted.clear()
                posted.extend(kept)
        done: list[End] = []
        for channel, one in sorted(bound, key=lambda pair: pair[1].number):
            done += self._receive(one, channel.life, ANY_SOURCE)
        return done


def never_met(traces: Mapping[int, Trace], ends: Collection[End]) -> set[End]:
    """The ends that would stay unmatched if all ranks reached the ends of their programs.

    An end with an unknown possible peer may be matched.
    """
    if not ends:
        return set()
    messages = P2pMatcher(traces)
    done: set[End] = set()
    for rank, trace in traces.items():
        for row in np.flatnonzero(trace.slots["p2p_sequence"] > 0).tolist():
            done.update(messages.post((rank, row)))
    while guessed := messages.guess():
        done.update(guessed)
    return {end for end in ends if end not in done and end not in messages.pairs}


def _rows(trace: Trace) -> _Rows:
    slots = trace.slots
    return _Rows(
        slots["signature"].tolist(),
        slots["group"].tolist(),
        (slots["flags"] & (LET_GO | LET_GO_LATER | AWAITED) == LET_GO).tolist(),
        [_form(call) for call in trace.signatures],
        [group.place(trace.rank) for group in trace.groups],
        lives(trace),
    )


def _form(call: Call) -> _Form:
    on_cpu = all(buffer.device == "cpu" for buffer in (*call.inputs, *call.outputs))
    peer = ANY_SOURCE if call.spelling == ANY_SOURCE_SPELLING else call.peer
    tag = call.tag or 0 if on_cpu else None
    told = call.peer if peer == ANY_SOURCE else None
    return _Form(call.op == "send", peer, tag, on_cpu, bytes_of(call.inputs or call.outputs), told)
