"""Finds where a rank parted from those that make the other end of a message, by which it passed.

A rank that sends to all workers waits for the one that does not receive. What these two do differs by design; what the
worker does differs from the other workers by the fork that is looked for. If no other rank makes such an end, as along
a pipeline, it is the fork that leads to the line of the peer's earlier ends, or of those that others make for the rank
as far from them, if the peer came past that line without a call; or the exit by which the peer left the loop, or the
round, in which the other one waits, or a round at a line where all others made more ends. The one end of a message
that is unlike those that others make at its line is told apart from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simcoll.core.record import Source, State
from simcoll.core.trace import Trace
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.verifier.findings.finding import Finding, Parting, RankSource, Severity, Side
from simcoll.verifier.findings.rules import (
    DEADLOCK_CYCLE,
    P2P_DTYPE_MISMATCH,
    P2P_SIZE_MISMATCH,
    P2P_TAG_MISMATCH,
    P2P_UNMATCHED,
)
from simcoll.verifier.program_text.forks import ROUNDS
from simcoll.verifier.program_text.message_lists import OTHER_END
from simcoll.verifier.program_text.parting import Ran, exit_between, names_rank, parting_at_line, parting_of
from simcoll.verifier.program_text.parting_lists import with_emptied_list, with_shorter_list
from simcoll.verifier.program_text.ways import comes_past

_CODES = (DEADLOCK_CYCLE.code, P2P_UNMATCHED.code)
_UNLIKE = (P2P_SIZE_MISMATCH.code, P2P_DTYPE_MISMATCH.code, P2P_TAG_MISMATCH.code)
_ASKED = 64
"""Ranks whose messages are looked at."""
_LATELY = 64
"""Calls of a peer, the last ones, among which the one before its line is looked for."""
_WITNESSES = 2
"""Ranks that made one end oftener than another rank, which may have left out a round."""
_HALF = 32
"""Bits of a number of two halves."""


def with_partings_of_messages(findings: Sequence[Finding], traces: Sequence[Trace], ran: Ran) -> tuple[Finding, ...]:
    """The findings; those on a message say where the rank whose end is lacking, or unlike others, parted from these."""
    by_rank = {trace.rank: trace for trace in traces}
    found = []
    for finding in findings:
        told = finding
        if finding.code in _CODES and finding.severity is Severity.ERROR:
            told = _with_parting(finding, by_rank, ran)
        elif finding.code in _UNLIKE and len(finding.culprits) == 1:
            told = replace(finding, parted=_from_others(finding, by_rank, ran))
        found.append(told)
    return tuple(found)


def _from_others(finding: Finding, traces: Mapping[int, Trace], ran: Ran) -> Parting | None:
    """Where the one culprit parted from other ranks that made such a call at its line."""
    [culprit] = finding.culprits
    for side in (one for one in finding.sides if one.call is not None and culprit in one.ranks and one.sources):
        line, op = _stands(side, culprit) or side.sources[0].source, "" if side.call is None else side.call.op
        made = {
            rank: call for rank, trace in traces.items() if rank != culprit and (call := _made_there(trace, line, op))
        }
        if made:
            # Almost any comparison tells two ranks apart: then it has to tell the culprit from all ranks.
            ranks = tuple(sorted(made if len(made) > 1 else traces.keys() - {culprit}))
            call, own = next(iter(made.values())), Side((culprit,), side.call, (RankSource(culprit, line),))
            found = parting_at_line((own, Side(ranks, call, (RankSource(ranks[0], line),))), ran)
            return found and replace(found, sides=_of_ranks(found.sides, {culprit, *made}))
    return None


def _of_ranks(sides: Sequence[tuple[Sequence[int], str]], ranks: Set[int]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """What these ranks did at a fork."""
    kept = ((tuple(rank for rank in of if rank in ranks), did) for of, did in sides)
    return tuple((of, did) for of, did in kept if of)


def _made_there(trace: Trace, line: Source, op: str) -> Call | None:
    """The last such call that a rank made at a line."""
    here = [number for number, source in enumerate(trace.sources) if source == line]
    numbers = trace.slots["signature"][np.isin(trace.slots["source"], here)].tolist() if here else []
    calls = (trace.signatures[number] for number in reversed(numbers) if number < len(trace.signatures))
    return next((call for call in calls if call.op == op), None)


def _with_parting(finding: Finding, traces: dict[int, Trace], ran: Ran) -> Finding:
    """The finding with where a list of messages was built otherwise than those of others, or else where a peer parted.

    A list that is only shorter than others of its own rank may be so by the program's schedule: then it comes after all
    but the head of a loop.
    """
    told = _by_lists(finding, traces)
    if told is not finding:
        return told
    parting = next(_partings(finding, traces, ran), finding.parted)
    told = finding if parting is None else _by_lists(finding, traces, asked=parting.source)
    if told is not finding:
        return told
    if parting is None or any(did in ROUNDS for _, did in parting.sides):
        told = _by_lists(finding, traces, alone=True)
    if told is finding and parting is None:
        told = _with_left_peer(finding, traces, ran)
    return _with_extra_end(replace(finding, parted=parting), traces, ran) if told is finding else told


def _with_left_peer(finding: Finding, traces: Mapping[int, Trace], ran: Ran) -> Finding:
    """The finding, if the rank that lacks the other end has left for good the line at which others wait for theirs."""
    for _, call, _, peer, stands in _unmet(finding, traces):
        if peer not in traces:
            continue
        places = _last_lines(traces[peer], stands)
        if places is None or places[1] is not None:
            continue
        alike = [*traces.items()][:_ASKED]
        others = tuple(rank for rank, trace in alike if rank != peer and _waits_at(trace, stands))
        there = Side(others, Call(OTHER_END[call.op], ""), (RankSource((*others, peer)[0], stands),))
        past = Side((peer,), None, (RankSource(peer, stands),), past=True)
        left = exit_between(there, past, ran) if others else None
        if left is not None:
            # What a message says may be its sender's mistake.
            own = len(others) > 1 and not finding.culprits and names_rank(left.source.code)
            return replace(finding, culprits=(peer,) if own else finding.culprits, parted=left)
    return finding


def _waits_at(trace: Trace, line: Source) -> bool:
    """True if the last call of a rank is a message of this line that has not ended."""
    if not len(trace.slots) or trace.slots["state"][-1] == State.COMPLETED or not trace.slots["p2p_sequence"][-1]:
        return False
    number = int(trace.slots["source"][-1])
    return number < len(trace.sources) and trace.sources[number] == line


def _with_extra_end(finding: Finding, traces: Mapping[int, Trace], ran: Ran) -> Finding:
    """The finding, if its rank made more ends at its line than any other rank there, by a comparison with the rank."""
    for side in () if finding.culprits else finding.sides:
        if side.call is None or side.call.op not in OTHER_END or len(side.ranks) != 1 or not side.sources:
            continue
        [rank], line = side.ranks, side.sources[0].source
        asked = [*traces.items()][:_ASKED]
        often = {one: count for one, trace in asked if (count := _often_made(trace, line, side.call.op))}
        mine = often.pop(rank, 0)
        if not often or mine <= max(often.values()):
            continue
        others = tuple(sorted(often))
        own = Side((rank,), side.call, (RankSource(rank, line),))
        parting = parting_at_line((own, Side(others, side.call, (RankSource(others[0], line),))), ran)
        known = finding.parted
        if parting is not None and parting.behind and (known is None or known.source.line == parting.source.line):
            return replace(finding, culprits=(rank,), parted=known or parting)
    return finding


def _often_made(trace: Trace, line: Source, op: str) -> int:
    """How often a rank made such a call at a line."""
    here = [number for number, source in enumerate(trace.sources) if source == line]
    calls = [number for number, call in enumerate(trace.signatures) if call.op == op]
    slots = trace.slots
    return int((np.isin(slots["source"], here) & np.isin(slots["signature"], calls)).sum()) if here else 0


def _by_lists(
    finding: Finding, traces: Mapping[int, Trace], *, alone: bool = False, asked: Source | None = None
) -> Finding:
    """The finding, if a list of messages explains that one has no other end; ``alone``: by its own rank's lists.

    ``asked``: a list that this line found empty.
    """
    for side in finding.sides:
        waiting = traces.get(side.ranks[0]) if side.ranks and side.call is not None else None
        if waiting is None or side.call is None or side.call.op not in OTHER_END:
            continue
        peer = traces.get(-1 if (rank := _peer(waiting, side.call)) is None else rank)
        if peer is None:
            continue
        told = (
            with_shorter_list(finding, waiting, peer, side.call.op, traces, alone=alone)
            if asked is None
            else with_emptied_list(finding, waiting, peer, side.call.op, traces, asked)
        )
        if told is not finding:
            return told
    return finding


class _Unmet(NamedTuple):
    """A side that waits in a message, its call, the record of its first rank, the peer whose end is lacking, and the
    line at which that stands.
    """

    side: Side
    call: Call
    waiting: Trace
    peer: int
    stands: Source


def _unmet(finding: Finding, traces: Mapping[int, Trace]) -> Iterator[_Unmet]:
    """The sides of a finding that wait in a message for a rank of another side."""
    for side in finding.sides:
        waiting = traces.get(side.ranks[0]) if side.ranks and side.call is not None else None
        if waiting is None or side.call is None or side.call.op not in OTHER_END:
            continue
        peer = _peer(waiting, side.call)
        stands = next((_stands(other, peer) for other in finding.sides if peer in other.ranks), None)
        if peer is not None and stands is not None:
            yield _Unmet(side, side.call, waiting, peer, stands)


def _partings(finding: Finding, traces: dict[int, Trace], ran: Ran) -> Iterator[Parting]:
    for side, call, waiting, peer, stands in _unmet(finding, traces):
        past = Side((peer,), None, (RankSource(peer, stands),), past=True)
        for made, ranks in _made(traces, peer, waiting.rank, call.op, stands, ran):
            maker = Side(ranks or (peer,), call, (RankSource((*ranks, peer)[0], made),))
            parting = parting_of((maker, past), ran)
            if parting is not None:
                yield parting if ranks else replace(parting, sides=parting.sides[-1:])
        if not _has_gone_on(finding, peer):
            continue
        told = finding.parted is not None and finding.parted.behind
        came = told and _came_as_often(traces, peer, waiting.rank, _stands(side, waiting.rank))
        if not came and (left := exit_between(side, past, ran)) is not None:
            yield left
        yield from _rounds_left_out(traces, peer, waiting.rank, call, ran)


def _rounds_left_out(traces: Mapping[int, Trace], peer: int, rank: int, call: Call, ran: Ran) -> Iterator[Parting]:
    """The conditions by which a peer left out a round at the line of its ends for a rank, which others made oftener.

    All others that were there, and as often as each other.
    """
    ends = _other_ends([traces[peer]] if peer in traces else [], call.op, lambda _, to: to == rank)
    for line in ends:
        op = OTHER_END[call.op]
        often = {one: count for one, trace in [*traces.items()][:_ASKED] if (count := _often_made(trace, line, op))}
        mine = often.pop(peer, 0)
        if len(often) < _WITNESSES or len(set(often.values())) > 1 or mine >= min(often.values()):
            continue
        others = tuple(sorted(often))
        maker = Side(others, Call(op, ""), (RankSource(others[0], line),))
        parting = parting_of((maker, Side((peer,), None, (RankSource(peer, line),), past=True)), ran)
        if parting is not None:
            yield parting


def _came_as_often(traces: Mapping[int, Trace], peer: int, rank: int, line: Source | None) -> bool:
    """True if a peer made as many messages at a line as the rank that waits there: it has left out no round of it."""
    if line is None or peer not in traces:
        return False
    here, there = (sum(_often_made(traces[one], line, op) for op in OTHER_END) for one in (rank, peer))
    return there >= here


def _has_gone_on(finding: Finding, peer: int) -> bool:
    """True if a rank is not on its way to a message: it is known to lack it, or waits in a collective."""
    calls = [side.call for side in finding.sides if peer in side.ranks and side.call is not None]
    return finding.code == P2P_UNMATCHED.code or any(call.op not in OTHER_END for call in calls)


def _peer(trace: Trace, call: Call) -> int | None:
    """The global rank at the other end of a rank's last such message that has not ended."""
    slots = trace.slots
    same = [index for index, known in enumerate(trace.signatures) if (known.op, known.peer) == (call.op, call.peer)]
    open_rows = (slots["p2p_sequence"] > 0) & (slots["state"] != State.COMPLETED) & np.isin(slots["signature"], same)
    rows = np.flatnonzero(open_rows)
    if not len(rows) or call.peer is None or call.peer == ANY_SOURCE:
        return None
    group = int(slots["group"][rows[-1]])
    members = trace.groups[group].ranks if group < len(trace.groups) else ()
    return members[call.peer] if call.peer < len(members) else None


def _stands(side: Side, rank: int) -> Source | None:
    """The line at which a rank of a side stands."""
    own = [one.source for one in side.sources if one.rank == rank] or [one.source for one in side.sources]
    return own[0] if own else side.stood if side.stood.file else None


def _made(
    traces: dict[int, Trace], peer: int, rank: int, op: str, stands: Source, ran: Ran
) -> Iterator[tuple[Source, tuple[int, ...]]]:
    """The lines past which a peer came without the other end of a message of ``rank``, and other ranks that were there.

    They are those at which others made ends for ``rank``; of its own earlier ends; or of the ends that others made for
    a rank as far from them.
    """
    others = [trace for rank, trace in traces.items() if rank != peer][:_ASKED]
    places = _last_lines(traces[peer], stands) if peer in traces else None
    for line, makers in _other_ends(others, op, lambda _, to: to == rank).items():
        # A rank that came by at other times has not parted there for good.
        been = ran.ever([peer], line.file, line.line, line.line)
        if not been and (places is None or comes_past(*places, line) is not False):
            yield line, makers
    own = _other_ends([traces[peer]] if places else [], op, lambda _, to: to == rank)
    alike = own or _other_ends(others, op, lambda one, to: to - one == rank - peer)
    if places is not None and len(alike) == 1:
        [line] = alike
        if comes_past(*places, line):
            yield line, tuple(one.rank for one in others if line in one.sources)


def _last_lines(trace: Trace, stands: Source) -> tuple[Source | None, Source | None] | None:
    """The lines of the call before those at which a rank stands, and of these; None where they are not known.

    The first is None if there was no call before, the second if the rank has gone on for good.
    """
    lines = [trace.sources[line] if line < len(trace.sources) else None for line in _last(trace, "source")]
    if not lines or None in lines:
        return None
    if lines[-1] is None or lines[-1].stack != stands.stack:
        return lines[-1], stands
    states, calls = _last(trace, "state"), _last(trace, "signature")
    here = [place for place, line in enumerate(lines) if line is not None and line.stack == stands.stack]
    waits = [place for place in here if states[place] != State.COMPLETED]
    if not waits:
        return lines[-1], None
    # Calls of one batch have one line, and each of them another end.
    before, batch = waits[0] - 1, {calls[waits[0]]}
    while before in here and calls[before] not in batch:
        batch.add(calls[before])
        before -= 1
    if before >= 0:
        return lines[before], stands
    return (None, stands) if len(lines) == len(trace.slots) else None


def _last(trace: Trace, name: str) -> list[int]:
    column: list[int] = trace.slots[name][-_LATELY:].tolist()
    return column


def _other_ends(
    traces: Sequence[Trace], op: str, is_wanted: Callable[[int, int], bool]
) -> dict[Source, tuple[int, ...]]:
    """The last lines at which ranks completed other ends of messages, with those ranks; ``is_wanted`` asks for an end
    by the ranks that made it and for whom.
    """
    found: dict[Source, tuple[int, ...]] = {}
    for trace in traces:
        slots = trace.slots
        ends = [number for number, call in enumerate(trace.signatures) if call.op == OTHER_END[op]]
        completed = (slots["p2p_sequence"] > 0) & (slots["state"] == State.COMPLETED)
        rows = np.flatnonzero(completed & np.isin(slots["signature"], ends))
        # A rank knows many groups and calls, and makes few of the calls in few of the groups.
        kinds = (slots["signature"][rows].astype(np.int64) << _HALF) + slots["group"][rows]
        to = {kind: _at_other_end(trace, *divmod(kind, 1 << _HALF)) for kind in np.unique(kinds).tolist()}
        wanted = [kind for kind, rank in to.items() if rank is not None and is_wanted(trace.rank, rank)]
        last = slots["source"][rows[np.isin(kinds, wanted)][-1:]].tolist()
        if last and last[0] < len(trace.sources):
            line = trace.sources[last[0]]
            found[line] = (*found.get(line, ()), trace.rank)
    return found


def _at_other_end(trace: Trace, signature: int, group: int) -> int | None:
    """The global rank at the other end of a message of a group, both by their numbers in a trace."""
    peer = trace.signatures[signature].peer
    members = trace.groups[group].ranks if group < len(trace.groups) else ()
    return members[peer] if peer is not None and 0 <= peer < len(members) else None
