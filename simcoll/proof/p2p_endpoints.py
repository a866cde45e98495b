"""What one end of a message tells the other of its call, and what is found when both are known."""

from __future__ import annotations

from dataclasses import replace

from simcoll.core.record import Group, Record, Source, source_document
from simcoll.errors import CollectiveMismatchError
from simcoll.recorder.recorder import Entry
from simcoll.spec.call import Call, MalformedCallError
from simcoll.verifier.agreement.p2p_mismatches import Message, unequal
from simcoll.verifier.findings.error_text import message_text


def own_end(entry: Entry) -> Record:
    """A send or receive as its own rank knows it; one from any source that has a message names whose it was."""
    record = entry.record()
    return record if entry.taken_from is None else replace(record, call=replace(record.call, peer=entry.taken_from))


def end_document(record: Record) -> list[object]:
    """A send or receive as JSON values, read back by :func:`end_of`."""
    return [record.call.to_json(), source_document(record.source)]


def end_of(group: Group, document: object) -> Record:
    """A peer's send or receive from its document; raises :class:`~simcoll.spec.call.MalformedCallError`."""
    if not isinstance(document, list) or len(document) != 2:
        raise MalformedCallError(f"a peer wrote {document!r:.80}, expected its call")
    call, (file, line, function, code) = document
    return Record(group.name, 0, Call.from_json(call), Source(str(file), int(line), str(function), str(code)))


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
