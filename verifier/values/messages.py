"""Whether what a rank sends may have come to it by a message, as between the stages of a pipeline: messages have no
digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simcoll.core.trace import Trace
from simcoll.spec.value_laws import is_float
from simcoll.verifier.values.digests import CollectiveValues, RankValues


def may_have_received(calls: Sequence[CollectiveValues], place: int, one: RankValues, traces: Iterable[Trace]) -> bool:
    """True if a rank of the call at ``place`` has received floats since its last reduction of finite values, and what
    their senders reduce before and after that call does not show that theirs were finite.
    """
    rank = calls[place].group.ranks[one.group_rank]
    since = next((mine.record.scheduled_ns for mine in _reductions(reversed(calls[:place]), rank) if _finite(mine)), 0)
    senders: set[int | None] = set()
    for trace in traces:
        senders |= _senders(trace, since, one.record.scheduled_ns) if trace.rank == rank else set()
    return any(sender is None or not _is_finite_around(calls, place, sender) for sender in senders)


def _is_finite_around(calls: Sequence[CollectiveValues], place: int, rank: int) -> bool:
    """True if the reductions of floats that a rank made last and next are finite. A stage that computes with NaNs sums
    them up in the same step.
    """
    before = next(_reductions(reversed(calls[:place]), rank), None)
    after = next(_reductions(calls[place + 1 :], rank), None)
    return after is not None and _finite(after) and (before is None or _finite(before))


def _reductions(calls: Iterable[CollectiveValues], rank: int) -> Iterator[RankValues]:
    """A rank's part in each call that reduces floats."""
    for values in calls:
        for one in values.ranks if values.reduced else ():
            if values.group.ranks[one.group_rank] == rank and one.sent is not None and one.sent.sum is not None:
                yield one


def _finite(one: RankValues) -> bool:
    return one.sent is not None and one.sent.finite


def _senders(trace: Trace, since_ns: int, until_ns: int) -> set[int | None]:
    """The ranks (global) whose messages of floats a rank received in a time; None for one that is not known."""
    ends, messages = trace.slots["finished_ns"], trace.slots["p2p_sequence"] > 0
    rows = trace.slots[messages & (ends > since_ns) & (ends <= until_ns)]
    found: set[int | None] = set()
    for group, index in {(int(row["group"]), int(row["signature"])) for row in rows}:
        call, ranks = trace.signatures[index], trace.groups[group].ranks
        if any(is_float(buffer.dtype) for buffer in call.outputs):
            known = call.peer is not None and 0 <= call.peer < len(ranks)
            found.add(ranks[call.peer] if known and call.peer is not None else None)
    return found
