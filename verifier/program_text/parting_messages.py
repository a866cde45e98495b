"""Finds where a rank parted from those that make the other end of a message, by which it passed.

A rank that sends to all workers waits for the one that does not receive. What these two do differs by design; what the
worker does differs from the other workers by the fork that is looked for. If no other rank makes such an end, as along
a pipeline, it is the exit by which the peer left the loop, or the round, in which the other one waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from simcoll.core.record import Source, State
from simcoll.core.trace import Trace
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.verifier.findings.finding import Finding, Parting, RankSource, Severity, Side
from simcoll.verifier.findings.rules import DEADLOCK_CYCLE, P2P_UNMATCHED
from simcoll.verifier.program_text.parting import Ran, exit_between, parting_of

_CODES = (DEADLOCK_CYCLE.code, P2P_UNMATCHED.code)
_OTHER_END = {"send": "recv", "recv": "send"}
_ASKED = 64
"""Ranks whose messages are looked at."""


def with_partings_of_messages(findings: Sequence[Finding], traces: Sequence[Trace], ran: Ran) -> tuple[Finding, ...]:
    """The findings; those on a message without its other end say where its peer parted from ranks that make one."""
    by_rank = {trace.rank: trace for trace in traces}
    found = []
    for finding in findings:
        asked = finding.code in _CODES and finding.severity is Severity.ERROR
        parting = next(_partings(finding, by_rank, ran), None) if asked else None
        found.append(finding if parting is None else replace(finding, parted=parting))
    return tuple(found)


def _partings(finding: Finding, traces: dict[int, Trace], ran: Ran) -> Iterator[Parting]:
    for side in finding.sides:
        waiting = traces.get(side.ranks[0]) if side.ranks and side.call is not None else None
        if waiting is None or side.call is None or side.call.op not in _OTHER_END:
            continue
        peer = _peer(waiting, side.call)
        stands = next((_stands(other, peer) for other in finding.sides if peer in other.ranks), None)
        if peer is None or stands is None:
            continue
        makers = [trace for rank, trace in traces.items() if rank not in (peer, waiting.rank)][:_ASKED]
        for line, ranks in _other_ends(makers, side.call.op, waiting.rank).items():
            # A rank that came by at other times has not parted there for good.
            if not ran.ever([peer], line.file, line.line, line.line):
                made = Side(tuple(ranks), side.call, (RankSource(ranks[0], line),))
                parting = parting_of((made, Side((peer,), None, (RankSource(peer, stands),), past=True)), ran)
                if parting is not None:
                    yield parting
        past = Side((peer,), None, (RankSource(peer, stands),), past=True)
        if finding.code == P2P_UNMATCHED.code and (left := exit_between(side, past, ran)) is not None:
            yield left


def _peer(trace: Trace, call: Call) -> int | None:
    """The global rank at the other end of a rank's last such message that has not ended."""
    slots = trace.slots
    same = [index for index, known in enumerate(trace.signatures) if (known.op, known.peer) == (call.op, call.peer)]
    open_rows = (slots["p2p_sequence"] > 0) & (slots["state"] != State.COMPLETED) & np.isin(slots["signature"], same)
    rows = np.flatnonzero(open_rows)
    if not len(rows) or call.peer is None or call.peer == ANY_SOURCE:
        return None
    members = trace.groups[int(slots["group"][rows[-1]])].ranks
    return members[call.peer] if call.peer < len(members) else None


def _stands(side: Side, rank: int) -> Source | None:
    """The line at which a rank of a side stands."""
    own = [one.source for one in side.sources if one.rank == rank] or [one.source for one in side.sources]
    return own[0] if own else side.stood if side.stood.file else None


def _other_ends(traces: Sequence[Trace], op: str, rank: int) -> dict[Source, list[int]]:
    """The lines at which ranks completed the other end of a message of ``rank``, with those ranks."""
    found: dict[Source, list[int]] = {}
    for trace in traces:
        wanted = [
            index for index, call in enumerate(trace.signatures) if call.op == _OTHER_END[op] and call.peer is not None
        ]
        rows = np.flatnonzero(np.isin(trace.slots["signature"], wanted) & (trace.slots["state"] == State.COMPLETED))
        for row in rows[::-1].tolist():
            group, call = (
                trace.groups[int(trace.slots["group"][row])],
                trace.signatures[int(trace.slots["signature"][row])],
            )
            if call.peer is not None and 0 <= call.peer < len(group.ranks) and group.ranks[call.peer] == rank:
                found.setdefault(trace.sources[int(trace.slots["source"][row])], []).append(trace.rank)
                break
    return found
