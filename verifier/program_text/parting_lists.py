"""Finds which rank's list of sends and receives lacks an end of a message, or has one too many, and by what condition.

All messages of a list have one line. Ranks that give that line a list with the same end for the rank as far from them,
and those that never do, say which of the two ends of a message is the odd one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcoll.core.record import Source
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.findings.finding import Finding, Parting
from simcoll.verifier.program_text.forks import NOT, TOOK
from simcoll.verifier.program_text.message_lists import OTHER_END, ListedMessage, asks_for_list, shorter_by

_ASKED = 64
"""Ranks whose lists are looked at."""
_LATELY = 4096
"""Messages of a rank, the last ones, that are looked at."""
_ENDS = 4
"""Other ends that a list lacks, whose conditions are looked for."""
_WITNESSES = 2
"""Ranks that have to make an end before one that lacks it is to blame."""


@dataclass(frozen=True, slots=True)
class _Away:
    """A send or receive, and how far from its rank the other end is, in a ring of all ranks."""

    op: str
    distance: int


_List = tuple[ListedMessage, ...]


def with_shorter_list(
    finding: Finding, waiting: Trace, peer: Trace, op: str, traces: Mapping[int, Trace], *, alone: bool = False
) -> Finding:
    """The finding on a message (``op``) of ``waiting`` to or from ``peer``, with the condition that parted their lists.

    It is returned as it is where neither of the two lists is known to be the odd one: by those of other ranks or, with
    ``alone``, by others of the peer's own.
    """
    others = [one for one in traces.values() if one.rank not in (waiting.rank, peer.rank)][:_ASKED]
    wanted = ListedMessage(OTHER_END[op], waiting.rank)
    for line in _lines_of_lists(waiting, others, peer):
        lists = _lists(peer, line)
        lacking = [one for one in lists if wanted not in one]
        # At the ends of a row of ranks others say nothing of a ring.
        neighbours = 2 * abs(waiting.rank - peer.rank) <= peer.world_size
        makers, lackers = _voices(others if neighbours else (), line, _away(wanted, peer))
        if not lacking or not (makers or (alone and len(lacking) < len(lists))):
            continue
        found = _parted(line, peer, lacking[-1], wanted, makers, (peer.rank,))
        found = _with_others(found, line, peer, lacking[-1], [traces[rank] for rank in makers])
        blamed = (peer.rank,) if len(makers) >= _WITNESSES and len(makers) > len(lackers) + 1 else ()
        return _told(finding, found, blamed)
    return _with_longer_list(finding, waiting, ListedMessage(op, peer.rank), others)


def with_emptied_list(
    finding: Finding, waiting: Trace, peer: Trace, op: str, traces: Mapping[int, Trace], asked: Source
) -> Finding:
    """The finding on a message of ``waiting``, with the conditions that left the peer's list without any.

    It is returned as it is where the line ``asked``, which kept the peer from the messages, does not ask for the list.
    """
    others = [one for one in traces.values() if one.rank not in (waiting.rank, peer.rank)][:_ASKED]
    wanted = ListedMessage(OTHER_END[op], waiting.rank)
    lines = (line for line in _made_at(waiting) if line.file == asked.file and asks_for_list(line, asked.line))
    line = next(lines, None)
    if line is None:
        return finding
    makers, lackers = _voices(others, line, _away(wanted, peer))
    lists = {one.rank: made[-1] for one in others if (made := _lists(one, line))}
    expected = [
        ListedMessage(OTHER_END[one.op], rank) for rank, made in lists.items() for one in made if one.peer == peer.rank
    ]
    # All who wait for the rank name the same condition first.
    ends = {end: _voices(others, line, _away(end, peer))[0] for end in (wanted, *expected)}
    named = [one for end, having in ends.items() if (one := _parted(line, peer, (), end, having, (peer.rank,)))]
    found = min(named, key=lambda one: one.source.line, default=None)
    found = _with_those_of(found, line, peer, (), [*ends])
    blamed = (peer.rank,) if len(makers) >= _WITNESSES and len(makers) > len(lackers) + 1 else ()
    return _told(finding, found, blamed)


def _with_longer_list(finding: Finding, waiting: Trace, made: ListedMessage, others: Sequence[Trace]) -> Finding:
    """The finding, if the rank that waits alone has such a message in its list."""
    end = _away(made, waiting)
    for line in _lines_of_lists(waiting, others, waiting):
        makers, lackers = _voices(others, line, end)
        own = [made in each for each in _lists(waiting, line)]
        if makers or len(lackers) < _WITNESSES or not any(own):
            continue
        by_rank = {one.rank: one for one in others}
        lacker = by_rank[lackers[0]]
        wanted = ListedMessage(made.op, (lacker.rank + end.distance) % lacker.world_size)
        found = _parted(line, lacker, _lists(lacker, line)[-1], wanted, (waiting.rank,), lackers)
        return _told(finding, found, () if all(own) else (waiting.rank,))
    return finding


def _told(finding: Finding, parted: Parting | None, blamed: tuple[int, ...]) -> Finding:
    if parted is None and not blamed:
        return finding
    culprits = finding.culprits or blamed
    return replace(finding, culprits=culprits, parted=finding.parted if parted is None else parted)


def _parted(
    line: Source, lacker: Trace, made: _List, wanted: ListedMessage, makers: Sequence[int], lackers: Sequence[int]
) -> Parting | None:
    shorter = shorter_by(line, lacker.rank, lacker.world_size, wanted, made)
    if shorter is None:
        return None
    did = (TOOK, NOT) if shorter.true else (NOT, TOOK)
    sides = [(tuple(sorted(ranks)), done) for ranks, done in zip((makers, lackers), did, strict=True)]
    return Parting(shorter.source, tuple(one for one in sides if one[0]), others=shorter.others)


def _with_others(
    parted: Parting | None, line: Source, lacker: Trace, made: _List, makers: Sequence[Trace]
) -> Parting | None:
    """The parting with the conditions by which a list lacks other ends as well, which all makers have there."""
    if parted is None or not makers:
        return parted
    mine = {_away(one, lacker) for one in made}
    theirs = [{_away(one, trace) for one in lists[-1]} for trace in makers if (lists := _lists(trace, line))]
    ends = sorted(set.intersection(*theirs) - mine, key=lambda one: (one.op, one.distance))
    size = lacker.world_size
    wanted = [ListedMessage(end.op, (lacker.rank + end.distance) % size) for end in ends]
    return _with_those_of(parted, line, lacker, made, wanted)


def _with_those_of(
    parted: Parting | None, line: Source, lacker: Trace, made: _List, wanted: Sequence[ListedMessage]
) -> Parting | None:
    """The parting with the conditions by which a list lacks other ends as well."""
    if parted is None:
        return None
    found = {parted.source.line: parted.source, **{one.line: one for one in parted.others}}
    for end in wanted[:_ENDS]:
        shorter = shorter_by(line, lacker.rank, lacker.world_size, end, made)
        for one in () if shorter is None else (shorter.source, *shorter.others):
            found.setdefault(one.line, one)
    return replace(parted, others=tuple(found.values())[1:])


def _lines_of_lists(waiting: Trace, others: Sequence[Trace], rank: Trace) -> Iterator[Source]:
    """The lines at which a rank gave lists of messages, and others too, the last ones first."""
    theirs = {source.stack for trace in (waiting, *others) for source in _made_at(trace)}
    yield from (source for source in _made_at(rank) if source.stack in theirs)


def _made_at(trace: Trace) -> list[Source]:
    """The lines at which a rank sent or received lately, the last one first."""
    rows = np.flatnonzero(trace.slots["p2p_sequence"] > 0)[-_LATELY:][::-1]
    numbers = dict.fromkeys(trace.slots["source"][rows].tolist())
    return [trace.sources[number] for number in numbers if number < len(trace.sources)]


def _lists(trace: Trace, line: Source) -> list[_List]:
    """The lists of messages that a rank gave a line, oldest first: one ends where a message would come twice."""
    slots = trace.slots
    rows = np.flatnonzero(slots["p2p_sequence"] > 0)[-_LATELY:].tolist()
    found: list[list[ListedMessage]] = []
    last = -2
    for row in rows:
        record = record_at(trace, row)
        if record is None or record.call.peer is None or record.source.stack != line.stack:
            continue
        members, peer = trace.groups[int(slots["group"][row])].ranks, record.call.peer
        if not 0 <= peer < len(members):
            continue
        one = ListedMessage(record.call.op, members[peer])
        if last != row - 1 or one in found[-1]:
            found.append([])
        found[-1].append(one)
        last = row
    return [tuple(one) for one in found]


def _away(one: ListedMessage, trace: Trace) -> _Away:
    return _Away(one.op, (one.peer - trace.rank) % trace.world_size)


def _voices(others: Sequence[Trace], line: Source, end: _Away) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks all of whose lists of a line have such an end, and those one of whose lists lacks it."""
    makers: list[int] = []
    lackers: list[int] = []
    for trace in others:
        lists = _lists(trace, line)
        have = [any(_away(one, trace) == end for one in each) for each in lists]
        if lists:
            (makers if all(have) else lackers).append(trace.rank)
    return tuple(makers), tuple(lackers)
