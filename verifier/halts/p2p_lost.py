"""SC501 where it stops a job: a message that one end let go before it had left, and for which the other end waits.

Gloo keeps nothing of a send or a receive whose Work is gone, however much of the message is still to be moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Record, State
from simcoll.core.trace import AWAITED, LET_GO, Trace, record_at
from simcoll.verifier.agreement.p2p_channels import ChannelRecords, Unmatched
from simcoll.verifier.findings.describe import record_text
from simcoll.verifier.findings.failures import Nature
from simcoll.verifier.findings.finding import Finding, Severity
from simcoll.verifier.findings.rules_async import WORK_NEVER_WAITED
from simcoll.verifier.findings.sides import record_side
from simcoll.verifier.halts.job import Job
from simcoll.verifier.halts.p2p_unmatched import is_stuck


def lost_messages(job: Job) -> list[Finding]:
    """The work of a send or receive was let go before the message had left, and the other end waits for it.

    The first such message between two ranks, where nothing else explains why the other end waits.
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
    return found


def _unwound(job: Job, rank: int) -> bool:
    """Whether the rank raised a mismatch: what its frames held went with them."""
    failure = job.failures.get(rank)
    return failure is not None and failure.nature is Nature.MISMATCH


def swallowed_messages(job: Job) -> list[Finding]:
    """The first message that left although its receive was let go, where the two ranks meet no more after it.

    Nothing takes it from the connection of the two: what follows on it never arrives. That is told of a job that was
    given up; while it runs, a slow call looks the same.
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
    """Whether both sit in the same collective."""
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
        f"rank {rank} let the work of its {own} {ranks_text([waiting.rank])} go before the message had gone over, "
        f"and the message went with it: {end}"
    )
    return Finding(
        WORK_NEVER_WAITED.code,
        Severity.ERROR,
        message,
        group=lane.group,
        ranks=tuple(sorted({rank, waiting.rank})),
        culprits=(rank,),
        sides=(
            record_side(rank, lane.group, record, "let go"),
            record_side(waiting.rank, waiting.group, waiting.record, "waits"),
        ),
    )
