"""In which of its calls a rank's device is, as far as the records of all ranks tell."""

from __future__ import annotations

from collections.abc import Mapping

from simcoll.core.record import Record, State
from simcoll.core.trace import ON_DEVICE, Life, Trace, lives, record_at
from simcoll.verifier.findings.device_queue import open_rows


def device_record(traces: Mapping[int, Trace], rank: int) -> Record | None:
    """The call at which a rank's device is; None where none is under way."""
    row = device_row(traces, rank)
    return None if row is None else record_at(traces[rank], row)


def device_row(traces: Mapping[int, Trace], rank: int, seen: dict[tuple[Life, int], bool] | None = None) -> int | None:
    """The row of the first call that is not known to have ended; of one that runs, if the first is not seen to.

    A collective whose end a peer has seen is over, or nearly so, also on a rank that has not looked. Whoever asks for
    many ranks gives ``seen``, so that each collective's peers are looked at once.
    """
    seen = {} if seen is None else seen
    trace = traces.get(rank)
    if trace is None or not len(rows := open_rows(trace)):
        return None
    left = (row for row in rows.tolist() if not _ended_elsewhere(traces, trace, row, seen))
    first = next(left, int(rows[-1]))
    if _runs(trace, first):
        return first
    # A call behind one that waits runs on a stream of its own.
    return next((row for row in rows.tolist() if row > first and _runs(trace, row)), first)


def _runs(trace: Trace, row: int) -> bool:
    slot = trace.slots[row]
    return bool(int(slot["flags"]) & ON_DEVICE) and int(slot["state"]) == State.STARTED


def _ended_elsewhere(traces: Mapping[int, Trace], trace: Trace, row: int, seen: dict[tuple[Life, int], bool]) -> bool:
    slot = trace.slots[row]
    group = int(slot["group"])
    if slot["p2p_sequence"] or group >= len(trace.groups):
        return False
    life, sequence = lives(trace)[group], int(slot["sequence"])
    if (life, sequence) not in seen:
        peers = (traces[rank] for rank in life[1] if rank in traces)
        seen[life, sequence] = any(_ended(peer, life, sequence) for peer in peers)
    return seen[life, sequence]


def _ended(trace: Trace, life: Life, sequence: int) -> bool:
    """Whether a rank has seen a collective end."""
    known = lives(trace)
    if life not in known:
        return False
    mine = (trace.slots["group"] == known.index(life)) & (trace.slots["p2p_sequence"] == 0)
    mine &= trace.slots["sequence"] == sequence
    return bool((trace.slots["state"][mine] == State.COMPLETED).any())
