"""Traces of jobs that were never run: per rank a list of calls, each after so much compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from tests.support.traces import trace_of

BEGIN = 1_800_000_000_000_000_000
TOOK = 1_000_000
"""Nanoseconds that every recorded call took; a replay prices it anew."""


@dataclass(frozen=True)
class Made:
    """A call of a rank on a group, after so many seconds of compute.

    The wait for an asynchronous one ends ``waits`` seconds after the call; None: no record shows it.
    """

    group: str
    call: Call
    compute: float = 0.0
    asynchronous: bool = False
    waits: float | None = None
    line: int = 1
    state: State = State.COMPLETED


def call(op: str = "all_reduce", size: int = 4096, *, peer: int | None = None) -> Call:
    """A call of so many bytes, as nccl-tests counts them."""
    buffer = (Buffer((size,), "uint8", "cpu"),)
    if op == "send":
        return Call("send", "send", buffer, (), peer=peer, tag=0)
    if op == "recv":
        return Call("recv", "recv", (), buffer, peer=peer, tag=0)
    if op == "barrier":
        return Call("barrier", "barrier")
    return Call(op, op, buffer, buffer, reduce_op="sum" if "reduce" in op else None)


def timed(groups: Sequence[Group], calls: Mapping[int, Sequence[Made]], world: int | None = None) -> list[MemoryTrace]:
    """One trace for each rank, with times."""
    size = world or max(rank for group in groups for rank in group.ranks) + 1
    return [_trace(rank, size, groups, made) for rank, made in sorted(calls.items())]


def _trace(rank: int, size: int, groups: Sequence[Group], calls: Sequence[Made]) -> MemoryTrace:
    now, records = BEGIN, []
    numbers: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    for made in calls:
        now += round(made.compute * 1e9)
        message = made.call.op in ("send", "recv")
        (messages if message else numbers)[made.group] += 1
        ended = now + (TOOK if made.waits is None else round(made.waits * 1e9))
        done = not made.asynchronous or made.waits is not None
        records.append(
            Record(
                made.group,
                numbers[made.group],
                made.call,
                Source("train.py", made.line, "step", "call()"),
                made.state if done else State.STARTED,
                made.asynchronous,
                done,
                messages[made.group] if message else 0,
                now,
                now,
                ended if done else 0,
            )
        )
        if not made.asynchronous:
            now = ended
    return trace_of(rank, size, [group for group in groups if rank in group.ranks], records)


def world(size: int) -> Group:
    """The default group."""
    return Group("0", "default_pg", tuple(range(size)))
