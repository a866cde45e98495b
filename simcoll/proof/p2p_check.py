"""The digest exchange by which the ranks of a group compare their sends and receives in the background: ``check`` mode.

Each rank leaves numbered notes for each other one in the group's store: the state of its end of each of their channels
(:mod:`simcoll.proof.p2p_channel`). An end that has come as far compares its own digest with that, so that ends are
compared at equal counts, whenever each of them gets there. Where the digests differ, each end sends the other its
messages since they last agreed, and both find the first pair that cannot be. No rank waits for another in this.

A receive from any source joins a channel when the source of its message is known, in the order in which such receives
were made. Gloo keeps no order between them and receives that name the sender: where a program mixes the two, the
channel is left to the post-mortem.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import astuple
from typing import Any, NamedTuple

from simcoll.core.record import Group, Record
from simcoll.proof.p2p_channel import Count, P2PChannel, Posted
from simcoll.proof.p2p_detail import disagreement_error, end_document, end_of, own_end
from simcoll.proof.store import PolledStore
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.spec.call import ANY_SOURCE

_MOST_CHANNELS = 1 << 14
_FARTHEST = 1 << 16
"""Channels of a group, and messages that its ranks have not compared: more of them are left to the post-mortem."""

_ANSWER_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_BUSY_SECONDS = 0.02
_REST_SECONDS = 0.005


class ChannelKey(NamedTuple):
    """A channel as one of its ends knows it: the group rank of the other end, the direction, the tag.

    Where a backend knows no tags, the communicator that the messages take stands for it (a number below 0).
    """

    peer: int
    sends: bool
    tag: int


class OverError(RuntimeError):
    """No message of this group is left to compare, or too many are."""


class DigestExchange:
    """One rank's side of the exchange of one group; all on one thread, but for :meth:`stop` and :meth:`give_up`."""

    def __init__(
        self, group: Group, group_rank: int, store: PolledStore, devices: Collection[str], note: str = ""
    ) -> None:
        """``devices`` are those whose backends match messages in a known way; ``note`` ends each error."""
        self._note = f"\n{note}" if note else ""
        self._group = group
        self._rank = group_rank
        self._store = store
        self.devices = frozenset(devices)
        self._channels: dict[ChannelKey, P2PChannel | None] = {}
        self._open: dict[ChannelKey, P2PChannel] = {}
        self._unclaimed: dict[int, deque[Posted]] = {}
        self._sent: dict[ChannelKey, tuple[int, int, float]] = {}
        self._asking = ExitStack()
        self._out: dict[int, list[object]] = {}
        self._written: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._found = False
        self._given_up = False
        self._closing = False
        self._announced_end = False

    @property
    def pause(self) -> float | None:
        """The seconds until the next look at the others' notes; None: no note is expected."""
        if self._sent or (self._closing and not self._announced_end):
            return _BUSY_SECONDS
        waiting = self._open or (not self._closing and any(self._unclaimed.values()))
        return _PAUSE_SECONDS if waiting else None

    def meet(self, made: Sequence[Posted]) -> int | None:
        """Take in these messages, and the notes of other ranks; returns the number taken: all that were launched.

        None if two ends were found apart: the error is a pending one. Raises RuntimeError if the store has gone,
        after :meth:`stop`, and when there is nothing more to compare.
        """
        # Ends that differ already may be why it failed: that is still found out.
        if self._given_up and not self._sent:
            self._announce_end()
            raise OverError("a message failed: the group's connections go with it")
        taken = self._take(made)
        silent = self._silent()
        read = self._read_notes()
        self._give_up_asking()
        for key, channel in list(self._open.items()):
            if key not in self._sent and not channel.caught_up():
                self._send_messages(key, channel)
        wrote = self._write()
        self._close_channels(silent)
        if self._closing:
            self._announce_end()
        if not (taken or read or wrote):
            self._store.rest(_REST_SECONDS)
        return None if self._found else taken

    def finish(self) -> None:
        """No message follows."""
        self._closing = True

    def give_up(self) -> None:
        """A message failed: the ends' later counts are not comparable."""
        self._given_up = True

    def stop(self) -> None:
        """Have the current meeting, and every later one, raise; from any thread."""
        self._store.stop()
        self._asking.close()

    # This rank's own messages.

    def _take(self, made: Sequence[Posted]) -> int:
        taken = 0
        for posted in made:
            if posted.launched is None:
                break
            taken += 1
            if posted.launched:
                self._place(posted)
        for tag, row in self._unclaimed.items():
            while row and (source := row[0].entry.taken_from) is not None:
                self._join(ChannelKey(source, False, tag), row.popleft())
        kept = sum(channel.open for channel in self._open.values()) + sum(map(len, self._unclaimed.values()))
        if kept > _FARTHEST or len(self._channels) + len(self._unclaimed) > _MOST_CHANNELS:
            raise OverError("more messages or channels than are kept")
        return taken

    def _place(self, posted: Posted) -> None:
        call = posted.entry.call
        peer, tag, sends = call.peer, posted.channel, call.op == "send"
        if {buffer.device for buffer in (*call.inputs, *call.outputs)} - self.devices or peer is None:
            return
        if peer == ANY_SOURCE:
            if tag not in self._unclaimed:
                self._unclaimed[tag] = deque()
                self._drop([key for key in self._channels if key.tag == tag and not key.sends])
            self._unclaimed[tag].append(posted)
        elif sends or tag not in self._unclaimed:
            self._join(ChannelKey(peer, sends, tag), posted)
        else:
            self._drop([ChannelKey(peer, sends, tag)])

    def _join(self, key: ChannelKey, posted: Posted) -> None:
        if key.peer == self._rank or not 0 <= key.peer < len(self._group.ranks):
            return
        channel = self._channel(key)
        if channel is not None:
            channel.add(posted)
            self._open[key] = channel

    def _channel(self, key: ChannelKey) -> P2PChannel | None:
        """None where it was left to the post-mortem."""
        if key not in self._channels:
            self._channels[key] = P2PChannel()
        return self._channels[key]

    def _drop(self, keys: Sequence[ChannelKey]) -> None:
        """Leave channels to the post-mortem, and have the other end do so."""
        for key in keys:
            if key not in self._channels or self._channels[key] is not None:
                self._forget(key)
                self._send(key, "left")

    def _forget(self, key: ChannelKey) -> None:
        self._channels[key] = None
        self._open.pop(key, None)
        self._sent.pop(key, None)

    # Notes between ranks.

    def _send(self, key: ChannelKey, kind: str, *content: object) -> None:
        self._out.setdefault(key.peer, []).append([kind, key.sends, key.tag, *content])

    def _write(self) -> bool:
        for key, channel in self._open.items():
            if key not in self._sent and (count := channel.news(last=self._closing)) is not None:
                self._send(key, "count", *astuple(count))
        out, self._out = self._out, {}
        for peer, note in out.items():
            number = self._written[peer] = self._written.get(peer, 0) + 1
            self._store.set(f"{self._rank}/{peer}/{number}", json.dumps(note))
        return bool(out)

    def _announce_end(self) -> None:
        if not self._announced_end:
            self._announced_end = True
            self._store.set(f"{self._rank}/last", "")

    def _read_notes(self) -> bool:
        """Read the notes of the peers of open channels."""
        read = False
        for peer in {key.peer for key in self._open}:
            while self._store.check([key := f"{peer}/{self._rank}/{self._read.get(peer, 0) + 1}"]):
                note = json.loads(self._store.get(key))
                self._store.delete_key(key)
                self._read[peer] = self._read.get(peer, 0) + 1
                for kind, sends, tag, *content in note:
                    self._take_note(ChannelKey(peer, not sends, tag), kind, content)
                read = True
        return read

    def _silent(self) -> set[int]:
        """The peers that make no more messages, once this rank makes none either."""
        peers = {key.peer for key in self._open} if self._closing else set()
        return {peer for peer in peers if self._store.check([f"{peer}/last"])}

    def _close_channels(self, silent: Collection[int]) -> None:
        """Wait no longer where both ends agree, and where the other end makes no message any more."""
        for key, channel in list(self._open.items()):
            hopeless = key.peer in silent and channel.exhausted
            if key not in self._sent and (hopeless or not channel.open):
                del self._open[key]

    def _take_note(self, key: ChannelKey, kind: str, content: Sequence[Any]) -> None:
        channel = self._channel(key)
        if channel is None or self._found:
            return
        if kind == "left":
            self._forget(key)
        elif kind == "differ":
            self._send_messages(key, channel)
            self._judge(key, channel, *content)
        elif key not in self._sent and not channel.agrees(Count(*content)):
            self._send_messages(key, channel)

    # Where digests differ.

    def _send_messages(self, key: ChannelKey, channel: P2PChannel) -> None:
        """Send the other end the messages since both last agreed, once."""
        if key in self._sent:
            return
        self._sent[key] = channel.settled, channel.made, time.monotonic() + _ANSWER_SECONDS
        self._open[key] = channel
        self._asking.enter_context(PENDING_ERRORS.expected())
        self._send(key, "differ", channel.settled, *_documents(channel.part(channel.settled, channel.made)))

    def _judge(
        self,
        key: ChannelKey,
        channel: P2PChannel,
        begin: int,
        documents: Sequence[object],
        theirs: Sequence[tuple[int, int]],
    ) -> None:
        """Find the first message whose two ends disagree; each of the two draws the same conclusion."""
        mine_begin, mine_end, _ = self._sent.pop(key)
        first, end = max(begin, mine_begin), min(begin + len(theirs), mine_end)
        records = [end_of(self._group, document) for document in documents]
        harmless: dict[tuple[int, int], tuple[int, int]] = {}
        for posted, (place, word) in zip(channel.part(first, end), theirs[first - begin :], strict=False):
            pair = posted.entry.prepared.message, place
            if pair in harmless:
                continue
            if self._wrong(posted, records[place]):
                return
            harmless[pair] = pair[0], word
        if not channel.accept(end, harmless.values()):
            # The digests cannot be of these messages: only a certain error is reported.
            self._drop([key])
        self._asked()

    def _asked(self) -> None:
        """End the wait for an error where none is to come."""
        if not self._sent:
            self._asking.pop_all().close()

    def _give_up_asking(self) -> None:
        """The other end may have left the group before it was asked."""
        now = time.monotonic()
        if late := [key for key, (_, _, until) in self._sent.items() if until < now]:
            self._drop(late)
            self._asked()

    def _wrong(self, posted: Posted, theirs: Record) -> bool:
        error = disagreement_error(self._group, self._rank, own_end(posted.entry), theirs, self._note)
        if error is not None:
            if not posted.reported:
                PENDING_ERRORS.add(error, posted.maker)
            self._found = True
        return error is not None


def _documents(messages: Sequence[Posted]) -> tuple[list[object], list[tuple[int, int]]]:
    """Messages as JSON values: the distinct ones, and the row of them, each with its word."""
    places: dict[object, int] = {}
    documents: list[object] = []
    row = []
    for posted in messages:
        entry = posted.entry
        known = entry.call, entry.source, entry.taken_from
        if known not in places:
            places[known] = len(documents)
            documents.append(end_document(own_end(entry)))
        row.append((places[known], entry.prepared.message))
    return documents, row
