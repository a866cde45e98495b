"""SC301 and SC302: messages whose two ends disagree."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Record, State
from simcoll.core.trace import record_at
from simcoll.spec.call import Buffer, Call, bytes_of
from simcoll.verifier.agreement.distinct import distinct_rows
from simcoll.verifier.agreement.mismatches import Mismatch
from simcoll.verifier.agreement.p2p_matching import ChannelRecords, Matching
from simcoll.verifier.findings.describe import elements_text
from simcoll.verifier.findings.finding import CallPlace, Finding, Rule, Side, lines
from simcoll.verifier.findings.rules import P2P_DTYPE_MISMATCH, P2P_SIZE_MISMATCH

_RAW = "uint8"
_Good = dict[object, set[tuple[int, int]]]
"""The correct statements of messages' ends: the senders and receivers by line and value, and by line alone."""

_COMPLEX = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}


@dataclass(frozen=True, slots=True)
class Message:
    """A send and the receive that it meets; ranks are global."""

    group: Group
    sender: int
    receiver: int
    send: Record
    receive: Record

    @property
    def lines(self) -> object:
        """A key that is equal for messages with the same sending and receiving lines."""
        ends = (self.send.source, self.receive.source)
        return self.group.name, tuple((source.file, source.line) for source in ends)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A disagreement between the ends of a message: its rule, the fields, and the sentence that says so."""

    rule: Rule
    differing: tuple[str, ...]
    text: str


def disagreement(send: Call, receive: Call, sender: int, receiver: int) -> Disagreement | None:
    """SC301 or SC302 on a send (of global rank ``sender``) and the receive that it meets; None where they agree.

    Bytes received as numbers, or numbers received as bytes, are intended where no byte is left over. An empty message
    has no dtype to disagree about.
    """
    (sent, carried), (wanted, room) = _dtype_and_count(send.inputs), _dtype_and_count(receive.outputs)
    size, space = bytes_of(send.inputs), bytes_of(receive.outputs)
    if carried == room == 0:
        return None
    if sent == wanted or {sent, wanted} & {None}:
        if carried == room:
            return None
        text = f"rank {sender} sends {elements_text(carried)} to rank {receiver}"
        text += f", which receives into {elements_text(room)}"
        return Disagreement(P2P_SIZE_MISMATCH, ("count",), text)
    if carried != room and size is not None and size == space and _reinterprets(str(sent), str(wanted)):
        return None
    text = f"rank {sender} sends {sent} to rank {receiver}, which receives {wanted}"
    if size is not None and space is not None and size != space:
        text += f" ({size} bytes into {space})"
    differing = ("dtype",) if carried == room else ("dtype", "count")
    return Disagreement(P2P_DTYPE_MISMATCH, differing, text)


def unequal_messages(matching: Matching, aborted: Collection[int] = ()) -> list[Mismatch]:
    """SC301 and SC302 on all messages, one finding for all that have the same lines, in order of time.

    ``aborted`` are the ranks (global) that ended by SIGABRT, as Gloo ends the receiver of too large a message.
    """
    cases: dict[object, list[tuple[Message, Disagreement]]] = {}
    good: _Good = {}
    for lane, distinct in _ordered(matching):
        for message, often, found in _judged(lane, distinct):
            if found is None:
                for voice in _voices(message):
                    for stated in (voice, voice[:2]):
                        good.setdefault(stated, set()).add((message.sender, message.receiver))
            else:
                cases.setdefault((found.rule.code, message.lines), []).extend([(message, found)] * often)
    for message, found in _fatal(matching, aborted):
        cases.setdefault((found.rule.code, message.lines), []).append((message, found))
    findings = [_finding(messages, good) for messages in cases.values()]
    return sorted(findings, key=lambda mismatch: mismatch.time_ns)


def agreed_messages(matching: Matching) -> int:
    """The number of messages that are known to have two ends that agree."""
    return sum(often for one in _ordered(matching) for _, often, wrong in _judged(*one) if wrong is None)


def unequal(message: Message) -> Finding | None:
    """SC301 or SC302 on one message, or None."""
    wrong = disagreement(message.send.call, message.receive.call, message.sender, message.receiver)
    return None if wrong is None else _finding([(message, wrong)], {}).finding


def _ordered(matching: Matching) -> Iterator[tuple[ChannelRecords, Sequence[tuple[int, int]]]]:
    """The lanes whose n-th send meets the n-th receive, with the first of their distinct messages and their counts.

    What the ends do is worked out once for lanes between ranks with the same slots, whose rows are one object.
    """
    known: dict[object, Sequence[tuple[int, int]]] = {}
    for lane in matching.lanes:
        if lane.ordered and lane.paired:
            key = id(lane.sends.rows), id(lane.receives.rows)
            if key not in known:
                known[key] = _distinct_messages(lane)
            yield lane, known[key]


def _distinct_messages(lane: ChannelRecords) -> Sequence[tuple[int, int]]:
    ends = (lane.sends.part(slice(lane.paired)), lane.receives.part(slice(lane.paired)))
    columns = [end.trace.slots[name][end.rows].astype(np.int64) for end in ends for name in ("signature", "source")]
    first, often, _ = distinct_rows(columns)
    return sorted(zip(first.tolist(), often.tolist(), strict=True))


def _judged(
    lane: ChannelRecords, distinct: Sequence[tuple[int, int]]
) -> Iterator[tuple[Message, int, Disagreement | None]]:
    """The distinct messages of a lane, the count of each, and its disagreement or None."""
    found = []
    for place, times in distinct:
        send, receive = (record_at(end.trace, int(end.rows[place])) for end in (lane.sends, lane.receives))
        if send is None or receive is None:
            continue
        message = Message(lane.group, lane.sender, lane.receiver, send, receive)
        wrong = disagreement(send.call, receive.call, lane.sender, lane.receiver)
        if wrong is not None and _impossible(message):
            # These two have not met: a record is missing, or threads wrote them down in another order.
            return
        found.append((message, times, wrong))
    yield from found


def _fatal(matching: Matching, aborted: Collection[int]) -> Iterator[tuple[Message, Disagreement]]:
    """The messages available to a receive from any source, and larger than it, when its rank was aborted."""
    for lane in matching.lanes:
        sends, receives = lane.left_sends(), lane.open
        if lane.receiver not in aborted or not len(sends) or not len(receives):
            continue
        send = record_at(sends.trace, int(sends.rows[0]))
        receive = record_at(receives.trace, int(receives.rows[0]))
        if send is None or receive is None:
            continue
        wrong = disagreement(send.call, receive.call, lane.sender, lane.receiver)
        sent, room = bytes_of(send.call.inputs), bytes_of(receive.call.outputs)
        if wrong is not None and sent is not None and room is not None and sent > room:
            yield Message(lane.group, lane.sender, lane.receiver, send, receive), wrong


def _impossible(message: Message) -> bool:
    """True if the receive completed with fewer bytes than were sent, which Gloo does not survive.

    Where the record does not state the device, it may have been Gloo.
    """
    sent, room = bytes_of(message.send.call.inputs), bytes_of(message.receive.call.outputs)
    on_cpu = all(buffer.device in ("cpu", "") for buffer in message.receive.call.outputs)
    done = message.receive.state is State.COMPLETED
    return done and on_cpu and sent is not None and room is not None and sent > room


def _finding(messages: Sequence[tuple[Message, Disagreement]], good: _Good) -> Mismatch:
    (first, wrong), *rest = messages
    senders = sorted({message.sender for message, _ in messages})
    receivers = sorted({message.receiver for message, _ in messages})
    pairs = len({(message.sender, message.receiver) for message, _ in messages})
    text = wrong.text
    if rest:
        between = f" between {ranks_text({*senders, *receivers})}" if pairs > 1 else ""
        text += f" ({len(rest)} more from these lines{between})"
    ends = (senders, first.sender, first.send), (receivers, first.receiver, first.receive)
    sides = tuple(_side(first.group, *end) for end in ends)
    finding = wrong.rule.finding(
        text,
        group=first.group,
        ranks={*senders, *receivers},
        culprits=_culprits([message for message, _ in messages], good),
        sides=sides,
        differing=wrong.differing,
    )
    return Mismatch(finding, max(first.send.scheduled_ns, first.receive.scheduled_ns))


def _side(group: Group, ranks: Sequence[int], rank: int, record: Record) -> Side:
    stated = lines([(rank, record.source)])
    return Side(tuple(ranks), record.call, stated, place=CallPlace.of(group, record, rank))


def _culprits(messages: Sequence[Message], good: _Good) -> tuple[int, ...]:
    """The ends that other ranks' messages of the same lines contradict; none where those say nothing.

    A send and a receive alone do not show which of them is wrong, nor does the one of them whose line no others used.
    """
    guilty = set()
    for message in messages:
        voices, ranks = _voices(message), (message.sender, message.receiver)
        borne_out = [_borne_out(good.get(voice, ()), message) for voice in voices]
        contradicted = [_borne_out(good.get(voice[:2], ()), message) for voice in voices]
        if borne_out[0] != borne_out[1] and contradicted[wrong := borne_out.index(False)]:
            guilty.add(ranks[wrong])
    if guilty:
        return tuple(sorted(guilty))
    senders, receivers = ({message.sender for message in messages}, {message.receiver for message in messages})
    if len(senders) == len(receivers) or len({_stated_ends(message) for message in messages}) > 1:
        return ()
    return tuple(sorted(senders if len(senders) < len(receivers) else receivers))


def _borne_out(pairs: Collection[tuple[int, int]], message: Message) -> bool:
    """True if a rank other than these two was right in what these pairs stated."""
    return any(set(pair) - {message.sender, message.receiver} for pair in pairs)


def _voices(message: Message) -> tuple[tuple[object, ...], tuple[object, ...]]:
    sent, received = _stated_ends(message)
    return ("send", message.send.source, sent), ("recv", message.receive.source, received)


def _stated_ends(message: Message) -> tuple[object, object]:
    return _dtype_and_count(message.send.call.inputs), _dtype_and_count(message.receive.call.outputs)


def _dtype_and_count(buffers: tuple[Buffer, ...]) -> tuple[str | None, int]:
    """The dtype and the number of elements; None where the buffers are of several dtypes, or there are none."""
    dtypes = {buffer.dtype for buffer in buffers}
    return (dtypes.pop() if len(dtypes) == 1 else None), sum(buffer.elements for buffer in buffers)


def _reinterprets(sent: str, received: str) -> bool:
    return _RAW in (sent, received) or _COMPLEX.get(sent) == received or _COMPLEX.get(received) == sent
