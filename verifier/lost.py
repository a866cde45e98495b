"""SC501 where it stops a job: a message that one end let go before it had left, and for which the other end waits.

Gloo keeps nothing of a send or a receive whose Work is gone, however much of the message is still to be moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcoll.record import Record, State
from simcoll.verifier.finding import Finding, Severity, Side
from simcoll.verifier.incidents import Job
from simcoll.verifier.matching import End, Lane, Unmatched
from simcoll.verifier.ranges import ranks_text
from simcoll.verifier.rules_flight import WORK_NEVER_WAITED
from simcoll.verifier.sides import lines
from simcoll.verifier.trace import AWAITED, LET_GO, record_at
from simcoll.verifier.unmatched import is_stuck


def lost_messages(job: Job, lanes: Sequence[Lane]) -> list[Finding]:
    """The first message of each lane that was let go at one end, and kept the other one waiting."""
    if job.clean:
        return []
    return [finding for lane in lanes if (finding := next(_lost(job, lane), None)) is not None]


def _lost(job: Job, lane: Lane) -> Iterator[Finding]:
    if not lane.ordered:
        return
    for place in range(lane.paired):
        send, receive = int(lane.sends.rows[place]), int(lane.receives.rows[place])
        for gone, waits in (
            ((lane.sends, send), (lane.receives, receive)),
            ((lane.receives, receive), (lane.sends, send)),
        ):
            if _was_let_go(*gone) and (one := _waiting(job, lane, waits, gone[0])) is not None:
                record = record_at(gone[0].trace, gone[1])
                if record is not None:
                    yield _finding(lane, gone[0].trace.rank, record, one)


def _was_let_go(end: End, row: int) -> bool:
    slot = end.trace.slots[row]
    call = end.trace.signatures[int(slot["signature"])]
    flags, open_ = int(slot["flags"]), slot["state"] in (State.SCHEDULED, State.STARTED)
    on_cpu = all(buffer.device == "cpu" for buffer in (*call.inputs, *call.outputs))
    return bool(flags & LET_GO) and not flags & AWAITED and bool(open_) and on_cpu


def _waiting(job: Job, lane: Lane, waits: tuple[End, int], other: End) -> Unmatched | None:
    """The end that waits, or failed waiting; None where it does not, or where something else explains that."""
    record = record_at(waits[0].trace, waits[1])
    if record is None:
        return None
    one = Unmatched(waits[0].trace.rank, other.trace.rank, record, lane.group)
    return one if is_stuck(job, one) else None


def _finding(lane: Lane, rank: int, record: Record, waiting: Unmatched) -> Finding:
    own, other = ("send to", "receives") if record.call.op == "send" else ("receive from", "sends")
    message = (
        f"rank {rank} let the work of its {own} {ranks_text([waiting.rank])} go before the message had gone over, "
        f"and the message went with it: rank {waiting.rank} {other} it for ever"
    )
    return Finding(
        WORK_NEVER_WAITED.code,
        Severity.ERROR,
        message,
        group=lane.group,
        ranks=tuple(sorted({rank, waiting.rank})),
        culprits=(rank,),
        sides=(
            Side((rank,), record.call, lines([(rank, record.source)]), "let go"),
            Side((waiting.rank,), waiting.record.call, lines([(waiting.rank, waiting.record.source)]), "waits"),
        ),
    )
