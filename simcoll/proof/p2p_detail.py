"""Proves sends and receives in ``detail`` mode: the two ends of a message compare notes through the group's store.

Each end writes down its call in a place that both know, the n-th message of its sender, receiver and tag, with one
atomic compare-and-set. The end that comes first finds the place empty, and its call is launched at once; the second
finds the call of the first and judges. If the two agree, nothing more happens. If not, the second end
gives the backend, in its own call's place, one that fits the first end's, so that nothing aborts and no rank waits for
ever, and raises; the first end learns of it when its call is done.

No call waits for its peer here, so that no deadlock appears that the program did not have. A receive from any source
does not know its place before it is done: such tags are left to the post-mortem.

Between GPUs, the end that came first is done, as far as the host knows, before the other comes: it learns the second's
verdict in the background (:mod:`simcoll.proof.p2p_check`), and the second end clears the place.

The module also has the document that one end of a message sends the other, and the judgement of both.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.distributed import Work

from simcoll.core.record import Group, Record, source_document, source_from
from simcoll.errors import CollectiveMismatchError
from simcoll.proof.store import PolledStore
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.recorder import Entry
from simcoll.spec.call import ANY_SOURCE, Call, MalformedCallError
from simcoll.verifier.agreement.p2p_mismatches import Message, unequal
from simcoll.verifier.findings.error_text import message_text


def own_end(entry: Entry) -> Record:
    """A send or receive as its own rank knows it; one from any source that has a message names its sender."""
    record = entry.record()
    return record if entry.taken_from is None else replace(record, call=replace(record.call, peer=entry.taken_from))


def end_document(record: Record) -> list[object]:
    """A send or receive as JSON values, read back by :func:`end_of`."""
    return [record.call.to_json(), source_document(record.source)]


def end_of(group: Group, document: object) -> Record:
    """A peer's send or receive from its document; raises :class:`~simcoll.spec.call.MalformedCallError`."""
    if not isinstance(document, list) or len(document) != 2:
        raise MalformedCallError(f"a peer wrote {document!r:.80}, expected its call")
    call, source = document
    return Record(group.name, 0, Call.from_json(call), source_from(source))


def disagreement_error(
    group: Group, group_rank: int, mine: Record, theirs: Record, note: str = ""
) -> CollectiveMismatchError | None:
    """SC301 or SC302 between the two ends of a message, or None; also None where they are no such two ends."""
    send, receive = (mine, theirs) if mine.call.op == "send" else (theirs, mine)
    sender, receiver = receive.call.peer, send.call.peer
    met = (send.call.op, receive.call.op, theirs.call.peer) == ("send", "recv", group_rank)
    if not met or sender is None or receiver is None or not 0 <= sender < len(group.ranks):
        return None
    finding = unequal(Message(group, group.ranks[sender], group.ranks[receiver], send, receive))
    return None if finding is None else CollectiveMismatchError(message_text(finding) + note, (finding,))


StandIn = Callable[[str, torch.Tensor, int, int], Work | None]
"""Gives the backend a send or receive (the op) of a tensor, with a peer (group rank) and a tag."""

_MOST_CHANNELS = 1 << 16
"""Distinct peers and tags that a group keeps count of; a program that uses more is no longer proved, only recorded."""

_AGREED = 4096

LATE_END = (
    "  found in the background (mode detail): this end had been launched before the other one was known, and what was "
    "computed since may be wrong; only the end that comes second can raise before its launch"
)
"""The note beside the finding for the end of a message between GPUs that came first."""


@dataclass(frozen=True, slots=True)
class _Header:
    """The call that one end of a message is about to make, and the bytes that it sends or has room for."""

    size: int
    record: Record

    def text(self) -> str:
        return json.dumps([self.size, *end_document(self.record)])

    @classmethod
    def read(cls, group: Group, said: bytes) -> _Header:
        """Read the other end's document; raises ValueError on anything else."""
        document = json.loads(said)
        if not isinstance(document, list) or len(document) != 3 or type(document[0]) is not int or document[0] < 0:
            raise MalformedCallError(f"a peer wrote {said!r:.80}, expected its call")
        return cls(document[0], end_of(group, document[1:]))


class Messages:
    """The sends and receives of one group on this rank; calls of one peer and tag come in the order of their launch."""

    def __init__(self, group: Group, group_rank: int, store: PolledStore, stand_in: StandIn) -> None:
        self._group = group
        self._rank = group_rank
        self._store = store
        self._stand_in = stand_in
        self._counts: dict[tuple[int, int, int], int] = {}
        self._loose: set[int] = set()
        self._agreed: set[tuple[bytes, str]] = set()
        self._stood_in: list[tuple[Work | None, torch.Tensor]] = []
        self._guard = threading.Lock()
        self._off = False

    def announce(self, entry: Entry, arguments: Arguments, tag: int) -> Callable[[], None] | None:
        """Judge a call if its other end has come, before it is launched; otherwise leave word for it.

        ``tag`` tells its channel from others, as :meth:`~simcoll.backends.base.Backend.channel` does. The returned
        function is to be called when the call is done. Both raise :class:`CollectiveMismatchError`.
        """
        place = self._place(entry.call, tag)
        tensors = [tensor for tensors in arguments.tensors.values() for tensor in tensors]
        if place is None or self._off or not all(_is_plain(tensor, tag) for tensor in tensors):
            return None
        mine = _Header(sum(tensor.nbytes for tensor in tensors), entry.record())
        text = mine.text()
        try:
            said = self._store.compare_set(place, "", text)
        except RuntimeError:
            self._give_up()
            return None
        if said == text.encode():
            return functools.partial(self._done, place, mine)
        if (said, text) not in self._agreed:
            self._judge(place, entry, mine, said, tensors[0].device)
            if len(self._agreed) < _AGREED:
                self._agreed.add((said, text))
        if tag < 0:
            self._clear(place)
        return None

    def _clear(self, place: str) -> None:
        try:
            self._store.delete_key(place)
        except RuntimeError:
            self._give_up()

    def _place(self, call: Call, tag: int) -> str | None:
        """The key at which this call's two ends meet; None where they cannot know it."""
        peer = call.peer
        with self._guard:
            if peer == ANY_SOURCE:
                self._loose.add(tag)
            if peer is None or not 0 <= peer < len(self._group.ranks) or peer == self._rank:
                return None
            if call.op == "recv" and tag in self._loose:
                return None
            channel = (self._rank, peer, tag) if call.op == "send" else (peer, self._rank, tag)
            if channel not in self._counts and len(self._counts) >= _MOST_CHANNELS:
                self._give_up()
                return None
            self._counts[channel] = count = self._counts.get(channel, 0) + 1
        return f"{channel[0]}/{channel[1]}/{tag}/{count}"

    def stop(self, announced: Callable[[], None] | None) -> None:
        """Prove no more; take back the last announcement."""
        if announced is not None:
            with contextlib.suppress(CollectiveMismatchError):
                announced()
        self._off = True

    def _give_up(self) -> None:
        """The store is gone with the process that held it, or there are too many channels: prove no more."""
        self._off = True

    def _judge(self, place: str, entry: Entry, mine: _Header, said: bytes, device: torch.device) -> None:
        """The other end is there: raise if the two disagree, after making way for it."""
        try:
            theirs = _Header.read(self._group, said)
        except (ValueError, TypeError):
            return
        error = disagreement_error(self._group, self._rank, mine.record, theirs.record)
        if error is None:
            return
        try:
            self._store.set(f"{place}/refused", mine.text())
            self._store.delete_key(place)
        except RuntimeError:
            self._give_up()
        scratch = torch.zeros(theirs.size, dtype=torch.uint8, device=device)
        # A peer that is gone needs no message in place of this one.
        with contextlib.suppress(RuntimeError):
            work = self._stand_in(entry.call.op, scratch, entry.call.peer or 0, entry.call.tag or 0)
            self._stood_in.append((work, scratch))
        raise error

    def _done(self, place: str, mine: _Header) -> None:
        """Check, when the call of the end that came first is done, that the other end did not refuse it."""
        if self._off:
            return
        try:
            if self._store.delete_key(place) or not self._store.check([f"{place}/refused"]):
                return
            theirs = _Header.read(self._group, self._store.get(f"{place}/refused"))
            self._store.delete_key(f"{place}/refused")
        except (RuntimeError, ValueError, TypeError):
            self._give_up()
            return
        error = disagreement_error(self._group, self._rank, mine.record, theirs.record)
        if error is not None:
            raise error


def _is_plain(tensor: torch.Tensor, tag: int) -> bool:
    """True if the backend takes the tensor as it is; Gloo, which has tags, copies tensors on a GPU."""
    place = "cpu" if tag >= 0 else "cuda"
    return tensor.layout is torch.strided and tensor.device.type == place and tensor.is_contiguous()
