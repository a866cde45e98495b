"""SC401, and SC201 or SC702 in ``init_process_group``: process groups that the ranks did not make alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcoll.core.ranges import ranks_text, verb
from simcoll.verifier.findings.finding import Finding, RankSource, Side
from simcoll.verifier.findings.rules_job import RANK_EXITED_EARLY
from simcoll.verifier.findings.rules_order import MISSING_RANK
from simcoll.verifier.findings.rules_p2p import MEMBERSHIP_MISMATCH
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.group_creation import Creation, by_place, waiting_makers
from simcoll.verifier.halts.job import Job
from simcoll.verifier.halts.missing import not_connecting, not_making
from simcoll.verifier.halts.rank_location import rank_locations


def membership_mismatches(job: Job) -> list[Finding]:
    """The ranks made a group of different members. The first such group is named.

    It is an error even where all goes well: torch connects ranks under the group's number, and each takes those that it
    meets for its own members. What a rank says of a group that it does not belong to does no harm, and neither do
    groups in which each rank is alone. In a job that ended well, default groups that all ranks got were jobs of their
    own within the job.
    """
    for made in by_place(job):
        if job.clean and all(creation.ordinal == 0 and creation.done for creation in made.values()):
            continue
        members = {creation.members for creation in made.values() if creation.rank in creation.members}
        if len(members) > 1 and any(len(one) > 1 for one in members):
            return [_differing(made)]
    return []


def unmade_groups(job: Job) -> list[Finding]:
    """Members wait in the making of a group that another member never began to make. It may only be late."""
    for made in by_place(job) if job.halted else ():
        if absent := not_making(job, made):
            return [_made_by_some(job, made, absent)]
    return []


def _differing(made: Mapping[int, Creation]) -> Finding:
    parts: dict[tuple[int, ...], list[Creation]] = {}
    for creation in made.values():
        parts.setdefault(creation.members, []).append(creation)
    sides = sorted(parts.values(), key=len, reverse=True)
    majority = 2 * len(sides[0]) > len(made)
    culprits = tuple(sorted(one.rank for side in sides[1:] for one in side)) if majority else ()
    clauses = [
        f"{_ranks(side)} {verb([one.rank for one in side], 'makes', 'make')} it of {ranks_text(side[0].members)}"
        for side in sides
    ]
    first = next(iter(made.values()))
    return Finding(
        MEMBERSHIP_MISMATCH.code,
        MEMBERSHIP_MISMATCH.severity,
        f"the ranks make {_name(first)} of other members: {', '.join(clauses[:4])}",
        ranks=tuple(sorted(made)),
        culprits=culprits,
        sides=tuple(_side(side, f"members: {ranks_text(side[0].members)}") for side in sides),
        differing=("members",),
    )


def _made_by_some(job: Job, made: Mapping[int, Creation], missing: Sequence[int]) -> Finding:
    waiting = waiting_makers(made)
    first = waiting[0]
    members = ranks_text(first.members)
    message = (
        f"{_ranks(waiting)} {verb([one.rank for one in waiting], 'waits', 'wait')} in the making of "
        f"{_name(first)}, of {members}, which {ranks_text(missing)} did not make"
    )
    return Finding(
        MEMBERSHIP_MISMATCH.code,
        job.severity_of_delay,
        message,
        ranks=tuple(sorted({*missing, *made})),
        culprits=tuple(missing),
        sides=(_side(waiting, f"members: {members}"), *rank_locations(job, missing)),
        differing=("members",),
    )


def _name(creation: Creation) -> str:
    return f"group number {creation.ordinal}" if creation.ordinal else "the default group"


def _side(made: Sequence[Creation], note: str) -> Side:
    ranks = tuple(sorted(creation.rank for creation in made))
    return Side(ranks, None, lines((creation.rank, creation.source) for creation in made), note)


def _ranks(made: Sequence[Creation]) -> str:
    return ranks_text(creation.rank for creation in made)


def unconnected_ranks(job: Job) -> list[Finding]:
    """Ranks wait in ``init_process_group`` for others that do not come though launched, or that the job does not have.

    Nothing is recorded of these yet. SC702 where they have ended; SC401 where the world size that was given is wrong.
    """
    for made in by_place(job) if job.halted else ():
        waiting = waiting_makers(made, connecting=True)
        absent, lacking = not_connecting(job, made)
        if absent:
            return [_uninitialised(job, waiting, absent)]
        if lacking:
            return [_too_few(job, waiting, lacking)]
    return []


def _too_few(job: Job, waiting: Sequence[Creation], unknown: Sequence[int]) -> Finding:
    """SC401 where ranks wait for more ranks than the job has."""
    size = job.size
    ranks = sorted(creation.rank for creation in waiting)
    message = (
        f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in init_process_group for {ranks_text(unknown)}, "
        f"and the job has {size} ranks: the world size that was given is wrong"
    )
    sources = lines((creation.rank, creation.source) for creation in waiting)
    side = Side(tuple(ranks), None, sources, "waited")
    return Finding(
        MEMBERSHIP_MISMATCH.code,
        MEMBERSHIP_MISMATCH.severity,
        message,
        ranks=tuple(ranks),
        culprits=() if len(ranks) == size else tuple(ranks),
        sides=(side,),
        differing=("members",),
    )


def _uninitialised(job: Job, waiting: Sequence[Creation], absent: Sequence[int]) -> Finding:
    stall = job.stall
    ranks = sorted(creation.rank for creation in waiting)
    seconds = "" if stall is None or not stall.seconds else f" for {stall.seconds:.0f} s"
    message = f"{ranks_text(absent)} did not come to init_process_group, where {ranks_text(ranks)} waited{seconds}"
    gone = all(rank in job.ended for rank in absent)
    source = waiting[0].source
    side = Side(tuple(ranks), None, (RankSource(waiting[0].rank, source),) if source.file else (), "waited")
    return Finding(
        RANK_EXITED_EARLY.code if gone else MISSING_RANK.code,
        RANK_EXITED_EARLY.severity if gone else job.severity_of_delay,
        message,
        ranks=tuple(sorted({*ranks, *absent})),
        culprits=tuple(absent),
        sides=(side, *rank_locations(job, absent, stall)),
    )
