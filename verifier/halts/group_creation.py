"""SC401: process groups that the ranks did not make alike.

``new_group`` must be called by every rank, with the same members, in the same order: torch names groups by counting,
and a member waits for the other members under that name. Groups made with ``use_local_synchronization`` do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Event, Source
from simcoll.core.trace import Stall
from simcoll.verifier.findings.failures import number, source_of
from simcoll.verifier.findings.finding import Finding, Side
from simcoll.verifier.findings.rules_p2p import MEMBERSHIP_MISMATCH
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.incidents import Job
from simcoll.verifier.halts.rank_location import whereabouts


@dataclass(frozen=True, slots=True)
class Creation:
    """One rank's making of a group: the ``ordinal``-th since the default group was made for the ``life``-th time."""

    rank: int
    life: int
    ordinal: int
    members: tuple[int, ...]
    source: Source
    time_ns: int
    done: bool


def creations_of(rank: int, events: Sequence[Event]) -> list[Creation]:
    """The groups that a rank made or began to make, in order."""
    done = {_place(event) for event in events if event.kind == "created"}
    found = []
    for event in events:
        place, members = _place(event), event.data.get("ranks")
        if event.kind != "creating" or place is None or not isinstance(members, list):
            continue
        if all(type(member) is int for member in members):
            found.append(
                Creation(rank, *place, tuple(members), source_of(event.data), event.time_ns, done=place in done)
            )
    return found


def _place(event: Event) -> tuple[int, int] | None:
    life, ordinal = number(event, "life"), number(event, "ordinal")
    return None if life is None or ordinal is None else (life, ordinal)


def membership_mismatches(job: Job) -> list[Finding]:
    """The first group that the ranks made of other members.

    It is an error even where all goes well: torch connects ranks under the group's number, and each takes those that it
    meets for its own members. What a rank states of a group that it does not belong to does no harm, and neither do
    groups in which each rank is alone. In a job that ended well, default groups that all ranks got were jobs of their
    own within the job.
    """
    for made in by_place(job):
        if job.clean and all(creation.ordinal == 0 and creation.done for creation in made.values()):
            continue
        stated = {creation.members for creation in made.values() if creation.rank in creation.members}
        if len(stated) > 1 and any(len(members) > 1 for members in stated):
            return [_differing(made)]
    return []


def unmade_groups(job: Job, stall: Stall | None) -> list[Finding]:
    """The first group in whose making members wait for another one that never began to make it, in a job that halted.

    That one may only be late: see :func:`in_the_making` for those who are not.
    """
    return [finding for made in by_place(job) if (finding := _by_some(job, made, stall)) is not None][:1]


def in_the_making(job: Job) -> set[int]:
    """The ranks that are inside the making of a group of theirs."""
    return {one.rank for made in by_place(job) for one in made.values() if not one.done and one.rank in one.members}


def by_place(job: Job) -> list[Mapping[int, Creation]]:
    """Who made the first group, the second and so on, by rank."""
    found: dict[tuple[int, int], dict[int, Creation]] = {}
    for rank, trace in job.traces.items():
        for creation in creations_of(rank, trace.events):
            found.setdefault((creation.life, creation.ordinal), {})[rank] = creation
    return [found[place] for place in sorted(found)]


def _differing(made: Mapping[int, Creation]) -> Finding:
    parts: dict[tuple[int, ...], list[Creation]] = {}
    for creation in made.values():
        parts.setdefault(creation.members, []).append(creation)
    sides = sorted(parts.values(), key=len, reverse=True)
    majority = 2 * len(sides[0]) > len(made)
    culprits = tuple(sorted(one.rank for side in sides[1:] for one in side)) if majority else ()
    said = [
        f"{_ranks(side)} {verb([one.rank for one in side], 'makes', 'make')} it of {ranks_text(side[0].members)}"
        for side in sides
    ]
    first = next(iter(made.values()))
    return Finding(
        MEMBERSHIP_MISMATCH.code,
        MEMBERSHIP_MISMATCH.severity,
        f"the ranks make {_name(first)} of other members: {', '.join(said[:4])}",
        ranks=tuple(sorted(made)),
        culprits=culprits,
        sides=tuple(_side(side, f"members: {ranks_text(side[0].members)}") for side in sides),
        differing=("members",),
    )


def _by_some(job: Job, made: Mapping[int, Creation], stall: Stall | None) -> Finding | None:
    """Some members wait in the making of a group that another member, which is still there, never began to make."""
    waiting = [creation for creation in made.values() if not creation.done and creation.rank in creation.members]
    missing = sorted(
        {
            member
            for creation in waiting
            for member in creation.members
            if member not in made and member in job.traces and member not in job.failures
            if stall is None or stall.misses(member, creation.time_ns)
        }
    )
    if not missing:
        return None
    first = waiting[0]
    members = ranks_text(first.members)
    message = (
        f"{_ranks(waiting)} {verb([one.rank for one in waiting], 'waits', 'wait')} in the making of "
        f"{_name(first)}, of {members}, which {ranks_text(missing)} did not make"
    )
    return Finding(
        MEMBERSHIP_MISMATCH.code,
        MEMBERSHIP_MISMATCH.severity,
        message,
        ranks=tuple(sorted({*missing, *made})),
        culprits=tuple(missing),
        sides=(_side(waiting, f"members: {members}"), *whereabouts(job, missing)),
        differing=("members",),
    )


def _name(creation: Creation) -> str:
    return f"group number {creation.ordinal}" if creation.ordinal else "the default group"


def _side(made: Sequence[Creation], note: str) -> Side:
    ranks = tuple(sorted(creation.rank for creation in made))
    return Side(ranks, None, lines((creation.rank, creation.source) for creation in made), note)


def _ranks(made: Sequence[Creation]) -> str:
    return ranks_text(creation.rank for creation in made)
