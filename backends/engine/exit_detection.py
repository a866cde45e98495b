"""Finds the ranks that detect by their connections that another rank has ended, as in a proof (``detail`` mode).

A rank that has ended has closed its connections. A rank that waits for its word in the sum detects that, and tells the
ranks with which it exchanges words itself. A rank that waits for one that is merely late detects nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.engine.world import World
from simcoll.core.record import Source, source_document
from simcoll.proof.allreduce import AllReducePlan


def detected_exits(world: World, ended: Collection[int]) -> Iterator[tuple[Ticket, list[int]]]:
    """The calls of ranks that wait and detect that others have ended, each with the (global) ranks that are missing.

    The first call of a group connects its ranks: there no rank detects it.
    """
    for met in world.incomplete():
        ticket = next(iter(met.values()))
        ranks = ticket.group.ranks
        absent = [place for place in range(len(ranks)) if place not in met]
        gone = [place for place in absent if ranks[place] in ended]
        for place in sorted(detecting_ranks(len(ranks), met, gone)) if gone and ticket.sequence > 1 else ():
            yield met[place], [ranks[other] for other in absent]


def missing_event(ticket: Ticket, absent: list[int], line: Source) -> dict[str, object]:
    """The event by which a rank records missing ranks (global)."""
    return {
        "group": ticket.group.name,
        "sequence": ticket.sequence,
        "missing": absent,
        "waited_ms": 0,
        "source": source_document(line),
    }


def detecting_ranks(size: int, present: Collection[int], ended: Collection[int]) -> set[int]:
    """The group ranks of those ``present`` in a collective of ``size`` that detect that others have ``ended``."""
    plans = {rank: AllReducePlan(rank, size) for rank in present}
    blocked = _blocked(plans)
    found = {rank for rank in present if blocked.get(rank) in ended}
    informed = set(found)
    while informed:
        informed = {rank for rank in present if rank not in found and informed.intersection(plans[rank].peers)}
        found |= informed
    return found


def _blocked(plans: dict[int, AllReducePlan]) -> dict[int, int]:
    """The rank whose word each rank waits for, once no rank can go further."""
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
    """A rank's steps in a sum: True where it sends, and its peer."""
    if plan.keeper is not None:
        return [(True, plan.keeper), (False, plan.keeper)]
    exchanged = [(sends, partner) for partner in plan.partners for sends in (True, False)]
    if plan.guest is None:
        return exchanged
    return [(False, plan.guest), *exchanged, (True, plan.guest)]
