"""SC303, SC304 and SC501: sends and receives whose other end does not come.

SC304 on devices: a message whose other end has not been made blocks ranks that wait for each other. The host that made
such a message goes on, and the rank that lacks the other end comes to a collective: its device waits there for the
sender's, which is blocked in the message. Both are seen in calls, so neither is late.

SC501 where it stops a job: one end of a message was let go before the message had left, and the other end waits for it.
Gloo keeps nothing of a send or a receive whose Work is gone, however much of the message is still to be moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Record, Source, State
from simcoll.core.trace import AWAITED, LET_GO, Trace, record_at
from simcoll.core.units import show_seconds
from simcoll.verifier.agreement.p2p_matching import ChannelRecords, End, Unmatched
from simcoll.verifier.findings.describe import record_text
from simcoll.verifier.findings.finding import Finding, Severity, record_side
from simcoll.verifier.findings.rules import P2P_TAG_MISMATCH, P2P_UNMATCHED, WORK_NEVER_WAITED
from simcoll.verifier.halts.failures import Nature
from simcoll.verifier.halts.job import Job, rank_locations
from simcoll.verifier.halts.missing import ended_ranks, never_comes, waits_in_a_call
from simcoll.verifier.halts.wait_graph import Wait, WaitGraph, waits_of


def unmet_message(cycle: Sequence[Wait]) -> Finding | None:
    """SC304 for a cycle of waits that one message of a device closes among collectives; None for any other cycle.

    Where two messages wait for each other, their order is wrong, and no end is lacking.
    """
    messages = [place for place, wait in enumerate(cycle) if wait.record.p2p_sequence]
    if len(messages) != 1 or not cycle[messages[0]].on_device:
        return None
    wait, other = (cycle[place % len(cycle)] for place in (messages[0], messages[0] + 1))
    peer = other.rank
    lacks = "receive" if wait.record.call.op == "send" else "send"
    message = (
        f"the device of rank {wait.rank} waits in {wait.where} for rank {peer}, which waits in {other.where} and has "
        f"made no {lacks} for it before"
    )
    return P2P_UNMATCHED.finding(
        message,
        group=wait.group,
        ranks={wait.rank, peer},
        sides=(
            record_side(wait.rank, wait.group, wait.record, "waits"),
            record_side(other.rank, other.group, other.record, "waits"),
        ),
    )


def assumed_unmet(job: Job, waits: WaitGraph) -> list[Finding]:
    """In a job that was given up, a device is blocked in a message without its other end, and the waits close a cycle
    if hosts wait for their devices.

    It is assumed, not seen, that a host waits for its device, as in ``tensor.item()``. A message that nobody waits for
    holds up no host.
    """
    stall = job.stall
    if stall is None or not stall.over or not stall.watched:
        return []
    standing = {wait.rank for wait in waits.all() if wait.on_device and wait.record.awaited}
    cycle = waits_of(replace(job, stall=replace(stall, blocked=stall.blocked | standing))).cycle()
    held = all(wait.record.awaited for wait in cycle if wait.record.p2p_sequence)
    found = unmet_message(cycle) if held else None
    return [] if found is None else [found]


_MOST_JUDGED = 8
"""Messages whose tags are compared with those of all other ranks."""
_CAUSES = (Nature.OWN, Nature.MISMATCH)
"""Failures that end a rank whoever waits for it."""


def unmatched_messages(job: Job) -> list[Finding]:
    """A send or receive waits for another end that is not made, or is made with another tag.

    A rank is blamed only if it has ended, or if the wait for it failed while it waited for nobody itself; otherwise it
    may still come to the message. Ranks that wait for each other are a deadlock, not a missing message. A rank that was
    at work when the job stood may still use the other rank's tag in another thread.
    """
    if job.clean:
        return []
    stuck = [one for one in job.matching.unmatched if is_stuck(job, one)]
    standing = [one for one in stuck if job.stall is None or one.rank not in job.stall.busy]
    crossed = _crossed(standing) or _sent_on(job, standing)
    if crossed:
        culprits = [_of_another_tag(job, *pair) for pair in crossed[:_MOST_JUDGED]]
        blank = [()] * (len(crossed) - len(culprits))
        return _folded(_tags_differ(*pair, who) for pair, who in zip(crossed, [*culprits, *blank], strict=True))
    hopeless = [one for one in stuck if never_comes(job, one)]
    # A rank that waits for a blocked rank waits for whatever blocks that one.
    waiting = {one.rank for one in hopeless}
    first = [one for one in hopeless if one.peer not in waiting]
    return _folded(_nobody_comes(job, one) for one in first or hopeless[:1])


def unreceived_messages(job: Job) -> list[Finding]:
    """A warning: messages of a job that ended well were sent for good, and never received.

    A receive that stays open at the end is not reported.
    """
    lost = (one for one in job.matching.unmatched if one.sends and one.pending) if job.clean else ()
    return _folded(_unreceived(job, one) for one in lost)


def is_stuck(job: Job, one: Unmatched) -> bool:
    """True if its rank waits for it, or failed for it, and nothing else that failed first explains that."""
    if not one.awaited or one.rank in job.ended or not (one.pending or one.record.state is State.FAILED):
        return False
    until = one.record.finished_ns
    causes = [one for one in job.failures.values() if one.nature in _CAUSES and not one.terminated]
    before = [failure for failure in causes if not until or failure.noticed_ns < until]
    return not before and one.peer not in [failure.rank for failure in causes]


def _crossed(stuck: Sequence[Unmatched]) -> list[tuple[Unmatched, Unmatched]]:
    """Sends and receives between the same two ranks that both wait, each for another tag."""
    receives: dict[object, list[Unmatched]] = {}
    for one in stuck:
        if not one.sends and one.peer is not None:
            receives.setdefault((one.group, one.peer, one.rank), []).append(one)
    pairs = []
    for send in stuck:
        waiting = receives.get((send.group, send.rank, send.peer)) if send.sends else None
        if waiting:
            pairs.append((send, waiting.pop(0)))
    return pairs


def _sent_on(job: Job, stuck: Sequence[Unmatched]) -> list[tuple[Unmatched, Unmatched]]:
    """Receives that wait for one tag, each with a message of another tag that its sender has sent without waiting.

    The sender sends nothing more, and other ranks' messages of the two lines tell whose tag is wrong.
    """
    busy = () if job.stall is None else job.stall.busy
    sends: dict[object, list[Unmatched]] = {}
    for one in job.matching.unmatched:
        if one.sends and one.pending and not one.awaited and one.rank not in busy:
            sends.setdefault((one.group, one.rank, one.peer), []).append(one)
    pairs = []
    for receive in (one for one in stuck if not one.sends and one.peer is not None):
        sent = sends.get((receive.group, receive.peer, receive.rank))
        if sent and (receive.peer in job.ended or waits_in_a_call(job, sent[0].rank)):
            pairs.append((sent[0], receive))
    return [pair for pair in pairs[:_MOST_JUDGED] if _of_another_tag(job, *pair)]


def _tags_differ(send: Unmatched, receive: Unmatched, culprits: tuple[int, ...]) -> Finding:
    tag, other = send.record.call.tag or 0, receive.record.call.tag or 0
    sent = f"sent rank {receive.rank} a message with tag {tag}"
    if send.awaited:
        sent = f"waits for rank {receive.rank} to receive its message with tag {tag}"
    message = f"rank {send.rank} {sent}, and rank {receive.rank} waits for one from it with tag {other}"
    return P2P_TAG_MISMATCH.finding(
        message,
        group=send.group,
        ranks={send.rank, receive.rank},
        culprits=culprits,
        sides=(
            record_side(send.rank, send.group, send.record),
            record_side(receive.rank, receive.group, receive.record),
        ),
        differing=("tag",),
    )


def _of_another_tag(job: Job, send: Unmatched, receive: Unmatched) -> tuple[int, ...]:
    """The end that other ranks' messages of the two lines contradict: all of these have the other end's tag."""
    tags: set[int] = set()
    for lane in (one for one in job.matching.lanes if one.paired):
        for end, rank, mine in ((lane.sends, lane.sender, send), (lane.receives, lane.receiver, receive)):
            tags |= _tags_at(mine.record.source, end.part(slice(lane.paired))) if rank != mine.rank else set()
    ends = [one for one in (send, receive) if {one.record.call.tag or 0} != tags]
    return (ends[0].rank,) if len(tags) == 1 and len(ends) == 1 else ()


def _tags_at(line: Source, end: End) -> set[int]:
    """The tags of those ends of messages that were made at a line."""
    trace, slots = end.trace, end.trace.slots[end.rows]
    here = [number for number, source in enumerate(trace.sources) if source == line]
    numbers = np.unique(slots["signature"][np.isin(slots["source"], here)]).tolist()
    return {trace.signatures[number].tag or 0 for number in numbers if number < len(trace.signatures)}


def _nobody_comes(job: Job, one: Unmatched) -> Finding:
    peers = one.peers
    ended = len(ended_ranks(job, peers)) == len(peers)
    where = "ended" if ended else _what_they_do(job, peers)
    tag = f" (tag {one.record.call.tag})" if one.record.call.tag else ""
    # A rank that has given up may have done so too early: the other end may have been about to come.
    gave_up = one.record.state is State.FAILED and one.record.finished_ns and not ended
    after = show_seconds((one.record.finished_ns - one.record.scheduled_ns) / 1e9) if gave_up else ""
    if one.sends:
        text = f"rank {one.rank} waits for {ranks_text(peers)} to receive its message{tag}, but no receive is left"
        if gave_up:
            text = f"rank {one.rank} gave up after {after} waiting for {ranks_text(peers)} to receive its message{tag}"
    else:
        source = ranks_text(peers) if one.peer is not None else f"any of {ranks_text(peers)}"
        text = f"rank {one.rank} waits for a message{tag} from {source} that is never sent"
        if gave_up:
            text = f"rank {one.rank} gave up after {after} on a message{tag} from {source}, which had not been sent"
    return _unmatched(job, one, peers, f"{text}; {ranks_text(peers)} {where}", Severity.ERROR)


def _what_they_do(job: Job, peers: Sequence[int]) -> str:
    if len(peers) > 1:
        return "are busy or ended"
    return "waits for something else" if waits_in_a_call(job, peers[0]) else "is busy elsewhere"


def _unreceived(job: Job, one: Unmatched) -> Finding:
    peers = [] if one.peer is None else [one.peer]
    tag = f" (tag {one.record.call.tag})" if one.record.call.tag else ""
    text = f"rank {one.rank} sent {ranks_text(peers)} a message{tag} that was not received when the job ended"
    return _unmatched(job, one, peers, text, Severity.WARNING)


def _unmatched(job: Job, one: Unmatched, peers: Sequence[int], message: str, severity: Severity) -> Finding:
    return P2P_UNMATCHED.finding(
        message,
        severity=severity,
        group=one.group,
        ranks={one.rank, *peers},
        sides=(record_side(one.rank, one.group, one.record), *rank_locations(job, peers[:4])),
    )


def _folded(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for all that name the same ranks and lines, with their number."""
    first: dict[object, Finding] = {}
    often: Counter[object] = Counter()
    for finding in findings:
        lines = tuple(tuple((one.source.file, one.source.line) for one in side.sources) for side in finding.sides)
        key = (finding.code, finding.ranks, lines)
        first.setdefault(key, finding)
        often[key] += 1
    return [
        replace(finding, message=f"{finding.message} ({often[key] - 1} more from these lines)")
        if often[key] > 1
        else finding
        for key, finding in first.items()
    ]


def lost_messages(job: Job) -> list[Finding]:
    """The work of a send or receive was let go before the message had left, and the other end waits for it.

    Only the first such message between two ranks is reported, and only where nothing else explains why the other end
    waits.
    """
    if job.clean:
        return []
    found = []
    for lane in job.matching.lanes:
        for gone, waits in _let_go(lane):
            record, one = record_at(*gone), _waiting(job, lane, waits, gone[0])
            if record is not None and one is not None and not _unwound(job, gone[0].rank):
                found.append(_finding(lane, gone[0].rank, record, one))
                break
    return _of_one_line(found)


def _of_one_line(findings: Sequence[Finding]) -> list[Finding]:
    """The first of those whose work one line of a rank let go, with the other ranks that wait for its messages."""
    by_line: dict[object, list[Finding]] = {}
    for finding in findings:
        lines = tuple((one.source.file, one.source.line) for one in finding.sides[0].sources)
        by_line.setdefault((finding.culprits, lines), []).append(finding)
    told = []
    for first, *others in by_line.values():
        waiting = {rank for one in others for rank in one.ranks} - set(first.ranks)
        message = f"{first.message}; the same holds for {ranks_text(waiting)}" if waiting else first.message
        told.append(replace(first, message=message, ranks=tuple(sorted({*first.ranks, *waiting}))))
    return told


def _unwound(job: Job, rank: int) -> bool:
    """True if the rank raised a mismatch: the exception let go of all that its frames held."""
    failure = job.failures.get(rank)
    return failure is not None and failure.nature is Nature.MISMATCH


def swallowed_messages(job: Job) -> list[Finding]:
    """The first message that left although its receive was let go, where the two ranks meet no more after it.

    Nothing takes it from the connection of the two, so later messages on it never arrive. It is reported for a job that
    was given up; while the job runs, a slow call looks the same.
    """
    if job.clean or job.stall is None or not job.stall.over:
        return []
    for lane in job.matching.lanes:
        for gone, sent in _let_go(lane):
            record, waiting = record_at(*gone), job.last.get(sent[0].rank)
            if record is None or record.call.op == "send" or sent[0].slots["state"][sent[1]] != State.COMPLETED:
                continue
            if waiting is not None and _stand_together(waiting, job.last.get(gone[0].rank)):
                one = Unmatched(sent[0].rank, gone[0].rank, waiting, lane.group)
                return [_finding(lane, gone[0].rank, record, one)]
    return []


def _stand_together(one: Record, other: Record | None) -> bool:
    """True if both are in the same collective."""
    pending = State.SCHEDULED, State.STARTED
    return (
        other is not None
        and (one.group, one.sequence) == (other.group, other.sequence)
        and not one.p2p_sequence
        and not other.p2p_sequence
        and one.state in pending
        and other.state in pending
    )


_Place: TypeAlias = tuple[Trace, int]


def _let_go(lane: ChannelRecords) -> Iterator[tuple[_Place, _Place]]:
    """The ends that were let go too early, each with its other end."""
    if not lane.ordered:
        return
    flags = [end.trace.slots["flags"][end.rows[: lane.paired]] for end in (lane.sends, lane.receives)]
    for place in np.flatnonzero((flags[0] | flags[1]) & LET_GO).tolist():
        send = lane.sends.trace, int(lane.sends.rows[place])
        receive = lane.receives.trace, int(lane.receives.rows[place])
        for gone, other in ((send, receive), (receive, send)):
            if _was_let_go(*gone):
                yield gone, other


def _was_let_go(trace: Trace, row: int) -> bool:
    slot = trace.slots[row]
    call = trace.signatures[int(slot["signature"])]
    flags, open_ = int(slot["flags"]), slot["state"] in (State.SCHEDULED, State.STARTED)
    on_cpu = all(buffer.device == "cpu" for buffer in (*call.inputs, *call.outputs))
    return bool(flags & LET_GO) and not flags & AWAITED and bool(open_) and on_cpu


def _waiting(job: Job, lane: ChannelRecords, waits: _Place, other: Trace) -> Unmatched | None:
    """The end that waits, or failed waiting; None where it does not, or where something else explains that."""
    record = record_at(*waits)
    if record is None:
        return None
    one = Unmatched(waits[0].rank, other.rank, record, lane.group)
    return one if is_stuck(job, one) else None


def _finding(lane: ChannelRecords, rank: int, record: Record, waiting: Unmatched) -> Finding:
    own, other = ("send to", "receives") if record.call.op == "send" else ("receive from", "sends")
    end = f"rank {waiting.rank} {other} it for ever"
    if not waiting.record.p2p_sequence:
        end = f"nothing that follows between the two arrives, such as {record_text(waiting.record)}"
    message = (
        f"rank {rank} dropped the work of its {own} {ranks_text([waiting.rank])} before the message was transferred, "
        f"and the message is lost: {end}"
    )
    return WORK_NEVER_WAITED.finding(
        message,
        severity=Severity.ERROR,
        group=lane.group,
        ranks={rank, waiting.rank},
        culprits=(rank,),
        sides=(
            record_side(rank, lane.group, record, "let go"),
            record_side(waiting.rank, waiting.group, waiting.record, "waits"),
        ),
    )
