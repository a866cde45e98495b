"""SC401 and SC402: process groups that ranks made differently, and calls on groups to which a rank does not belong.

Ranks that do not meet in ``init_process_group`` are SC201 or SC702. SC402 also says if the calls did harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Event, Group, Source, State, number, source_of, text
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.agreement.mismatches import Mismatch
from simcoll.verifier.findings.finding import Finding, RankSource, Severity, Side, lines
from simcoll.verifier.findings.rules import (
    INVALID_ARGUMENT,
    MEMBERSHIP_MISMATCH,
    MISSING_RANK,
    NON_MEMBER_CALL,
    RANK_EXITED_EARLY,
)
from simcoll.verifier.halts.failures import Nature
from simcoll.verifier.halts.job import Creation, Job, left_group, rank_locations, waiting_makers
from simcoll.verifier.halts.missing import groups_of_open_calls, not_connecting, not_making


def membership_mismatches(job: Job) -> list[Finding]:
    """The ranks gave different members for one group. The first such group is named.

    It is an error even where all goes well: torch connects ranks under the group's number, and each takes those that it
    meets for its own members. What a rank gives for a group that it does not belong to does no harm, nor do groups in
    which each rank is alone. In a job that ended well, default groups that all ranks got count as jobs of their own
    within the job.
    """
    for made in job.makings:
        if job.clean and all(creation.ordinal == 0 and creation.done for creation in made.values()):
            continue
        members = {creation.members for creation in made.values() if creation.rank in creation.members}
        if len(members) > 1 and any(len(one) > 1 for one in members):
            return [_differing(made)]
    return []


def named_differently(job: Job) -> list[Finding]:
    """Members wait for each other in the making of a group, which they name differently.

    Torch names a group by the number of groups that its rank has made. From 2.15 on it counts those too that their
    members alone make, with ``use_local_synchronization``.
    """
    for made in job.makings if job.halted else ():
        waiting = waiting_makers(made)
        parts: dict[int, list[Creation]] = {}
        for one in waiting:
            if one.before is not None:
                parts.setdefault(one.before, []).append(one)
        if len(parts) > 1 and len({one.members for one in waiting}) == 1:
            return [_counted_apart(parts)]
    return []


def unmade_groups(job: Job) -> list[Finding]:
    """Members wait for a member that never began to make the group, and may only be late."""
    for made in job.makings if job.halted else ():
        if absent := not_making(job, made):
            return [_made_by_some(job, made, absent)]
    return []


def made_by_members_only(job: Job) -> list[Finding]:
    """A warning: only the members made a group, and the other ranks ended well without making it.

    torch numbers groups on each rank: the next one that all ranks make has another number on the members.
    """
    lives = {creation.life for made in job.makings for creation in made.values()}
    for made in job.makings:
        first = next(iter(made.values()))
        # Where the default group was made again, a rank that made no group leaves no sign of having been there.
        others = job.traces.keys() - made.keys() if first.ordinal and len(lives) == 1 else set()
        without = sorted(rank for rank in others if rank in job.ended and not job.traces[rank].problems)
        if without and all(one.done and one.rank in one.members for one in made.values()):
            return [_lonely(made, without)]
    return []


def used_after_their_end(job: Job) -> list[Finding]:
    """A rank made calls on a group after it had destroyed it.

    A warning where the backend ran them all the same, an error where another rank failed in a call of the group, whose
    connections are closed with it.
    """
    left = job.traces if job.tells("destroyed") else {}
    rows = {rank: found for rank, trace in left.items() if (found := _after_the_end(trace)) is not None}
    if not rows:
        return []
    records = {rank: record for rank, row in rows.items() if (record := record_at(job.traces[rank], row)) is not None}
    first = records[min(records)]
    group = job.group(min(records), first.group)
    message = (
        f"{ranks_text(records)} called {first.call.op} on group {first.group} after "
        f"{verb([*records], 'it', 'they')} had destroyed it"
    )
    sides = [Side((rank,), one.call, lines([(rank, one.source)]), "had destroyed it") for rank, one in records.items()]
    return [
        INVALID_ARGUMENT.finding(
            message,
            severity=Severity.ERROR if any(failed_in(job, rank, group) for rank in job.failures) else Severity.WARNING,
            group=group,
            sequence=first.sequence or None,
            ranks=records,
            culprits=() if len(records) == len(job.traces) > 1 else records,
            sides=tuple(sides[:_SIDES]),
        )
    ]


def failed_in(job: Job, rank: int, group: Group | None) -> bool:
    """True if a rank failed, and its last call, which it did not complete, was one of this group."""
    last = job.last.get(rank)
    failed = rank in job.failures and last is not None and last.state is not State.COMPLETED
    return failed and last is not None and group is not None and job.group(rank, last.group) == group


def _after_the_end(trace: Trace) -> int | None:
    """The row of the first call on a group that the rank had destroyed by its name, and not made anew."""
    slots = trace.slots
    for place, event in enumerate(trace.events):
        if event.kind != "destroyed" or not text(event, "group"):
            continue
        again = (later.time_ns for later in trace.events[place:] if later.kind == "creating")
        mine = [index for index, group in enumerate(trace.groups) if group.name == text(event, "group")]
        ran = np.isin(slots["group"], mine) & (slots["state"] != State.REJECTED)
        later = ran & (slots["scheduled_ns"] > event.time_ns) & (slots["scheduled_ns"] < next(again, _NEVER))
        if later.any():
            return int(np.flatnonzero(later)[0])
    return None


def _lonely(made: Mapping[int, Creation], without: Sequence[int]) -> Finding:
    makers, first = [*made.values()], next(iter(made.values()))
    message = (
        f"only {_ranks(makers)} made {_name(first)}, of {ranks_text(first.members)}, without "
        f"use_local_synchronization; {ranks_text(without)} did not make it, and "
        f"{verb(without, 'numbers', 'number')} later groups differently"
    )
    return MEMBERSHIP_MISMATCH.finding(
        message,
        severity=Severity.WARNING,
        ranks={*made, *without},
        culprits=(),
        sides=(_side(makers, f"members: {ranks_text(first.members)}"),),
        differing=("members",),
    )


def _differing(made: Mapping[int, Creation]) -> Finding:
    parts: dict[tuple[int, ...], list[Creation]] = {}
    for creation in made.values():
        parts.setdefault(creation.members, []).append(creation)
    sides = sorted(parts.values(), key=len, reverse=True)
    majority = 2 * len(sides[0]) > len(made)
    culprits = tuple(sorted(one.rank for side in sides[1:] for one in side)) if majority else ()
    clauses = [
        f"{_ranks(side)} {verb([one.rank for one in side], 'makes', 'make')} it with {ranks_text(side[0].members)}"
        for side in sides
    ]
    first = next(iter(made.values()))
    return MEMBERSHIP_MISMATCH.finding(
        f"the ranks make {_name(first)} with different members: {', '.join(clauses[:4])}",
        ranks=made,
        culprits=culprits,
        sides=tuple(_side(side, f"members: {ranks_text(side[0].members)}") for side in sides),
        differing=("members",),
    )


def _counted_apart(parts: Mapping[int, Sequence[Creation]]) -> Finding:
    """``parts``: those who wait, by the number of groups that each made before."""
    waiting = [one for side in parts.values() for one in side]
    clauses = [f"{_ranks(side)} made {before}" for before, side in sorted(parts.items(), reverse=True)]
    ranks, members = _ranks(waiting), ranks_text(waiting[0].members)
    message = (
        f"{ranks} wait for each other in the making of {_name(waiting[0])}, of {members}, under different names: torch "
        f"names a group by how many its rank made before ({', '.join(clauses[:4])}), from torch 2.15 on with those "
        "that only their members make (use_local_synchronization)"
    )
    return MEMBERSHIP_MISMATCH.finding(
        message,
        ranks=[one.rank for one in waiting],
        culprits=(),
        sides=tuple(_side(side, f"groups made before: {before}") for before, side in sorted(parts.items())),
        differing=("members",),
    )


def _made_by_some(job: Job, made: Mapping[int, Creation], missing: Sequence[int]) -> Finding:
    waiting = waiting_makers(made)
    first = waiting[0]
    members = ranks_text(first.members)
    # Most of the members, or of all ranks, each of which has to make it and waits in a call, have no such group to make
    # there, if those that are missing wait for those who make it.
    open_calls = [groups_of_open_calls(job.traces[rank]) for rank in missing]
    elsewhere = [trace for rank, trace in job.traces.items() if rank not in made]
    most = 2 * len(missing) > len(first.members) or (
        len(elsewhere) > len(made) and all(map(groups_of_open_calls, elsewhere))
    )
    alone = most and all(any(set(made) & {*of} for of in one) for one in open_calls)
    message = (
        f"{_ranks(waiting)} {verb([one.rank for one in waiting], 'waits', 'wait')} in the making of "
        f"{_name(first)}, of {members}, which {ranks_text(missing)} did not make"
    )
    return MEMBERSHIP_MISMATCH.finding(
        message,
        severity=job.severity_of_delay,
        ranks={*missing, *made},
        culprits=tuple(sorted(made)) if alone else missing,
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
    """Ranks wait in ``init_process_group`` for ranks that were launched and do not come, or that the job does not have.

    The missing ranks have recorded nothing yet. It is SC702 where they have ended, SC401 where the given world size is
    wrong, otherwise SC201.
    """
    for made in job.makings if job.halted else ():
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
    return MEMBERSHIP_MISMATCH.finding(
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
    return (RANK_EXITED_EARLY if gone else MISSING_RANK).finding(
        message,
        severity=None if gone else job.severity_of_delay,
        ranks={*ranks, *absent},
        culprits=absent,
        sides=(side, *rank_locations(job, absent, stall)),
    )


_SIDES = 8


_NEVER = np.iinfo(np.int64).max
_NOT_ENDED = (State.SCHEDULED, State.STARTED, State.FAILED)


@dataclass(slots=True)
class _Case:
    """The calls of one line: each rank's first event, and the last count that it wrote down."""

    function: str
    source: Source
    events: dict[int, Event] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


def calls_of_outsiders(job: Job) -> list[Mismatch]:
    """SC402 for each line from which ranks called a group that they do not belong to, in order of time.

    An error where no group can be meant whose members all make the call, where a rank failed next, and where it went on
    while members of a group of its own wait for it at that very line. Many programs make such calls on purpose, on
    every rank: those go on unharmed, and are warned of.
    """
    cases: dict[tuple[str, str, int], _Case] = {}
    for rank, trace in job.traces.items() if job.tells("non_member") else ():
        for event in trace.events:
            if event.kind == "non_member":
                source, function = source_of(event.data), text(event, "function")
                case = cases.setdefault((function, source.file, source.line), _Case(function, source))
                case.events.setdefault(rank, event)
                case.counts[rank] = number(event, "count") or 1
    found = [_judge(job, case) for case in cases.values()]
    return sorted(found, key=lambda mismatch: mismatch.time_ns)


def _judge(job: Job, case: _Case) -> Mismatch:
    candidates = {rank: _groups_that_call(job, case, rank) for rank in case.events}
    alone = [rank for rank, groups in candidates.items() if not groups]
    harmed = [rank for rank, event in case.events.items() if _failed_next(job, rank, event)]
    waiting = {other for rank in case.events for other in _waiting_there(job, case, rank)}
    unheard = bool(alone) and not any(trace.dropped for trace in job.traces.values())
    grave = bool(harmed) or bool(waiting) or unheard
    ranks = tuple(sorted(case.events))
    groups = {group for found in candidates.values() for group in found}
    finding = NON_MEMBER_CALL.finding(
        _message(case, ranks, alone, sorted(waiting)),
        severity=Severity.ERROR if grave else Severity.WARNING,
        group=groups.pop() if len(groups) == 1 else None,
        ranks=ranks,
        culprits=() if len(ranks) == len(job.traces) > 1 else ranks,
        sides=tuple(
            Side((rank,), None, lines([(rank, source_of(case.events[rank].data))]), "is no member")
            for rank in ranks[:_SIDES]
        ),
    )
    return Mismatch(finding, min(event.time_ns for event in case.events.values()))


def _message(case: _Case, ranks: Sequence[int], alone: Sequence[int], waiting: Sequence[int]) -> str:
    often = max(case.counts.values())
    times = f", at least {often} times" if often > 1 else ""
    members = ", and there is no group whose members all made this call" if alone else ""
    if waiting:
        verbs = verb(waiting, "waits", "wait")
        members = f", while {ranks_text(waiting)} {verbs} there for {ranks_text(ranks)}, in a group of their own"
    return (
        f"{ranks_text(ranks)} called {case.function} on a group to which "
        f"{'it does' if len(ranks) == 1 else 'they do'} not belong{times}: nothing was done there{members}"
    )


def _groups_that_call(job: Job, case: _Case, outsider: int) -> list[Group]:
    """The groups without this rank all of whose members call it too: from the same line, or else the same function."""
    groups = {group for trace in job.traces.values() for group in trace.groups if outsider not in group.ranks}
    here = [group for group in groups if any(_calls_from(job, rank, group, case) for rank in group.ranks)]
    calls = _calls_from if here else _calls
    return [
        group
        for group in here or groups
        if all(calls(job, rank, group, case) or _may_have_called(job, rank) for rank in group.ranks)
    ]


def _waiting_there(job: Job, case: _Case, outsider: int) -> list[int]:
    """Members of a group of the outsider's own that are in a call from this line, which it left out as it went on."""
    trace, since = job.traces[outsider], case.events[outsider].time_ns
    went_on = outsider in job.ended or any(left_group(job, outsider, group) is not None for group in trace.groups)
    if not went_on and not bool((trace.slots["scheduled_ns"] > since).any()):
        return []
    own = [group for group in trace.groups if outsider in group.ranks and len(group.ranks) > 1]
    missed = [group for group in own if not _calls_from(job, outsider, group, case)]
    return [rank for group in missed for rank in group.ranks if _calls_from(job, rank, group, case, ended=False)]


def _may_have_called(job: Job, rank: int) -> bool:
    """True if a rank left no record, or failed by itself, so that it may have made the call."""
    failure = job.failures.get(rank)
    return rank not in job.traces or (failure is not None and failure.nature is Nature.OWN and not failure.terminated)


def _calls_from(job: Job, rank: int, group: Group, case: _Case, *, ended: bool = True) -> bool:
    """True if a rank calls a group from the case's line; not ``ended``: if such a call never came to its end."""
    trace = job.traces.get(rank)
    place = (case.source.file, case.source.line)
    if trace is None:
        return False
    sources = [index for index, source in enumerate(trace.sources) if (source.file, source.line) == place]
    return _has_row(trace, group, "source", sources, ended=ended)


def _calls(job: Job, rank: int, group: Group, case: _Case) -> bool:
    """True if a member makes a call of the function's kind."""
    trace = job.traces.get(rank)
    if trace is None:
        return False
    # isend is a send, all_gather_object an all_gather, broadcast_object_list a broadcast.
    name = case.function.removeprefix("i") if case.function in ("isend", "irecv") else case.function
    signatures = [index for index, call in enumerate(trace.signatures) if name.startswith(call.op)]
    return _has_row(trace, group, "signature", signatures)


def _has_row(trace: Trace, group: Group, column: str, values: Sequence[int], *, ended: bool = True) -> bool:
    slots = trace.slots if ended else trace.slots[np.isin(trace.slots["state"], _NOT_ENDED)]
    names = [index for index, known in enumerate(trace.groups) if known == group]
    return any(bool(((slots["group"] == name) & (slots[column] == value)).any()) for name in names for value in values)


def _failed_next(job: Job, rank: int, event: Event) -> bool:
    """True if the rank failed after the call, of itself, before it had completed another."""
    failure, last = job.failures.get(rank), job.last.get(rank)
    if failure is None or failure.nature is not Nature.OWN or failure.time_ns < event.time_ns:
        return False
    return last is None or last.finished_ns <= event.time_ns
