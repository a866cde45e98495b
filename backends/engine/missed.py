"""Who finds out that a rank has ended: what the proof of a collective (``detail`` mode) sees of connections.

A rank that has ended has closed its connections. Whoever waits for its word notices, and says so to those with whom it
exchanges words itself. A rank that waits for the word of one that is merely late notices nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.engine.world import World
from simcoll.core.record import Source, source_document
from simcoll.proof.allreduce import AllReducePlan


def missed(world: World, ended: Collection[int]) -> Iterator[tuple[Ticket, list[int]]]:
    """The calls in which ranks wait that notice who has ended (global ranks), each with those who have not come.

    The first call of a group connects its ranks: there nobody notices.
    """
    for met in world.incomplete():
        ticket = next(iter(met.values()))
        ranks = ticket.group.ranks
        absent = [place for place in range(len(ranks)) if place not in met]
        gone = [place for place in absent if ranks[place] in ended]
        for place in sorted(noticing(len(ranks), met, gone)) if gone and ticket.sequence > 1 else ():
            yield met[place], [ranks[other] for other in absent]


def missing_event(ticket: Ticket, absent: list[int], line: Source) -> dict[str, object]:
    """What a rank writes down of ranks (global) that it waits for in vain."""
    return {
        "group": ticket.group.name,
        "sequence": ticket.sequence,
        "missing": absent,
        "waited_ms": 0,
        "source": source_document(line),
    }


def noticing(size: int, present: Collection[int], ended: Collection[int]) -> set[int]:
    """The ranks (group ranks) in a collective of ``size`` that notice that others, of those absent, have ended."""
    plans = {rank: AllReducePlan(rank, size) for rank in present}
    blocked = _blocked(plans)
    found = {rank for rank in present if blocked.get(rank) in ended}
    told = set(found)
    while told:
        told = {rank for rank in present if rank not in found and told.intersection(plans[rank].peers)}
        found |= told
    return found


def _blocked(plans: dict[int, AllReducePlan]) -> dict[int, int]:
    """Whose word each rank waits for, when all have gone as far as they can."""
    steps = {rank: _steps(plan) for rank, plan in plans.items()}
    sent: Counter[tuple[int, int]] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, left in steps.items():
            while left and (left[0][0] or sent[left[0][1], rank]):
                sends, peer = left.pop(0)
                sent[(rank, peer) if sends else (peer, rank)] += 1 if sends else -1
                moved = True
    return {rank: left[0][1] for rank, left in steps.items() if left}


def _steps(plan: AllReducePlan) -> list[tuple[bool, int]]:
    """What a rank does in a sum: whether it sends, and to or from whom."""
    if plan.keeper is not None:
        return [(True, plan.keeper), (False, plan.keeper)]
    exchanged = [(sends, partner) for partner in plan.partners for sends in (True, False)]
    if plan.guest is None:
        return exchanged
    return [(False, plan.guest), *exchanged, (True, plan.guest)]
