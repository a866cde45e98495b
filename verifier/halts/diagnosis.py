"""Why a job came to a halt: SC204, SC702 and SC201 from the waits that it was in when it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import State
from simcoll.core.trace import Stall
from simcoll.verifier.agreement.p2p_channels import Unmatched
from simcoll.verifier.findings.describe import record_text
from simcoll.verifier.findings.failures import Nature
from simcoll.verifier.findings.finding import CallPlace, Finding, RankSource, Severity, Side
from simcoll.verifier.findings.rules_job import RANK_EXITED_EARLY
from simcoll.verifier.findings.rules_order import CALL_SKIPPED, DEADLOCK_CYCLE, MISSING_RANK
from simcoll.verifier.findings.rules_p2p import MEMBERSHIP_MISMATCH, P2P_UNMATCHED
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.group_creation import (
    Creation,
    by_place,
    in_the_making,
    membership_mismatches,
    unmade_groups,
)
from simcoll.verifier.halts.incidents import Job, outvoted
from simcoll.verifier.halts.p2p_unmatched import assumed_unmet, unmet_message
from simcoll.verifier.halts.rank_location import left_group, whereabouts
from simcoll.verifier.halts.unwatched import for_how_long, known_absent, standing
from simcoll.verifier.halts.wait_graph import Wait, WaitGraph, fallen, in_time, waits_of

_SHOWN = 8


def halt_findings(job: Job, stall: Stall | None, unmatched: Sequence[Unmatched] = ()) -> list[Finding]:
    """The one finding that explains the halt; none for a job that ended well or of which nothing says that it stood.

    A rank that is merely late is an error only where the job was given up for it, and a warning where it was ended from
    outside: it might have come.
    """
    if job.clean or (stall is None and not job.failures):
        return []
    waits = waits_of(job, stall, unmatched)
    if stall is not None and stall.stopped and (waits.waiting or waits.unended):
        return [_stopped(job, stall)]
    if found := _before_any_group(job, stall) or membership_mismatches(job):
        return found
    if unmade := unmade_groups(job, stall):
        return [replace(finding, severity=_severity_of_delay(stall)) for finding in unmade]
    if (cycle := waits.cycle()) and _at_one_moment(job, cycle, stall):
        return [unmet_message(cycle) or _cycle(waits, cycle)]
    if found := _ended(job, waits) or _late(job, waits, stall):
        return found
    unmet = assumed_unmet(job, waits, stall, unmatched)
    return _nobody(job, waits, stall) if unmet is None else [unmet]


def deadlock(job: Job, unmatched: Sequence[Unmatched], missing: Sequence[Finding]) -> list[Finding]:
    """SC204 in place of ranks that did not come (SC201): they stood in a call themselves, for those who missed them.

    Every wait of the cycle must have begun before the first of its ranks gave up: who comes later has met nobody.
    """
    waits = waits_of(job, None, unmatched)
    cycle = waits.cycle()
    gave_up = [job.failures[wait.rank].time_ns for wait in cycle if wait.rank in job.failures]
    if not gave_up or max(wait.record.scheduled_ns for wait in cycle) >= min(gave_up):
        return []
    found = _cycle(waits, cycle)
    return [found] if all(set(one.culprits) <= set(found.ranks) for one in missing) else []


def is_final(job: Job, stall: Stall, finding: Finding, unmatched: Sequence[Unmatched] = ()) -> bool:
    """Whether the ranks that a halt is laid to can never come; one that has work of its own to do is only late."""
    if finding.code == P2P_UNMATCHED.code:
        # What is only assumed of a host may change.
        return bool(waits_of(job, stall, unmatched).cycle())
    if finding.code == MEMBERSHIP_MISMATCH.code and not membership_mismatches(job):
        return set(finding.culprits) <= {*waits_of(job, stall).waiting, *job.ended, *in_the_making(job)}
    return finding.code != MISSING_RANK.code


def _severity_of_delay(stall: Stall | None) -> Severity:
    """A rank that was late when a job was ended from outside might have come."""
    return Severity.WARNING if stall is not None and not stall.over else Severity.ERROR


def _before_any_group(job: Job, stall: Stall | None) -> list[Finding]:
    """SC201 for ranks that do not come to ``init_process_group``, of which nothing is recorded yet."""
    for made in by_place(job):
        waiting = [creation for creation in made.values() if creation.ordinal == 0 and not creation.done]
        needed = {member for creation in waiting for member in creation.members} - set(made) - set(job.failures)
        if absent := sorted(needed & job.launched):
            return [_uninitialised(job, waiting, absent, stall)]
        size = max(trace.world_size for trace in job.traces.values())
        if unknown := sorted(rank for rank in needed if rank >= size):
            return [_too_few(waiting, unknown, size)]
    return []


def _too_few(waiting: Sequence[Creation], unknown: Sequence[int], size: int) -> Finding:
    """SC401 where ranks wait for more ranks than the job has."""
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


def _uninitialised(job: Job, waiting: Sequence[Creation], absent: Sequence[int], stall: Stall | None) -> Finding:
    ranks = sorted(creation.rank for creation in waiting)
    seconds = "" if stall is None or not stall.seconds else f" for {stall.seconds:.0f} s"
    message = f"{ranks_text(absent)} did not come to init_process_group, where {ranks_text(ranks)} waited{seconds}"
    gone = all(rank in job.ended for rank in absent)
    source = waiting[0].source
    side = Side(tuple(ranks), None, (RankSource(waiting[0].rank, source),) if source.file else (), "waited")
    return Finding(
        RANK_EXITED_EARLY.code if gone else MISSING_RANK.code,
        RANK_EXITED_EARLY.severity if gone else _severity_of_delay(stall),
        message,
        ranks=tuple(sorted({*ranks, *absent})),
        culprits=tuple(absent),
        sides=(side, *whereabouts(job, absent, stall)),
    )


def _at_one_moment(job: Job, cycle: Sequence[Wait], stall: Stall | None) -> bool:
    """Whether all waits of a cycle had begun when the first of its ranks was last seen.

    Ranks copy their black boxes one after the other: what one waited for has come since, where others went on.
    """
    if stall is None or stall.watched:
        return True
    seen = [stall.until[wait.rank] for wait in cycle if not job.traces[wait.rank].unknown]
    return not seen or max(wait.record.scheduled_ns for wait in cycle) <= min(seen)


def _cycle(waits: WaitGraph, cycle: Sequence[Wait]) -> Finding:
    """SC204; where most of the ranks wait in one of its calls, the others came in another order than they."""
    together = [
        sorted({other.rank for other in waits.all() if other.call == wait.call} & waits.stuck) for wait in cycle
    ]
    following = [*together[1:], together[0]]
    kept = [sorted(wait.needs.intersection(ranks)) for wait, ranks in zip(cycle, following, strict=True)]
    pairs = list(zip(together, cycle, kept, strict=True))
    common = cycle[0].group if len({wait.group for wait in cycle}) == 1 else None
    clauses = [
        f"{_who(wait, ranks)} {verb(ranks, 'waits', 'wait')} in {wait.where if common is None else wait.place} "
        f"for {ranks_text(after)}"
        for ranks, wait, after in pairs[:_SHOWN]
    ]
    everybody = {rank for ranks in together for rank in ranks}
    more = f", and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    return Finding(
        DEADLOCK_CYCLE.code,
        DEADLOCK_CYCLE.severity,
        f"none of them can go on: {', '.join(clauses)}{more}",
        group=common,
        ranks=tuple(sorted(everybody)),
        culprits=_out_of_order(cycle, together),
        sides=tuple(
            replace(_side(wait, f"{verb(ranks, 'waits', 'wait')} for {ranks_text(after)}"), ranks=tuple(ranks))
            for ranks, wait, after in pairs
        ),
    )


def _out_of_order(cycle: Sequence[Wait], together: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The ranks that wait in another call of a cycle than most of those do who belong to all of its groups.

    Who belongs to one group alone had no other call to come to. Which end of a message is wrong, no majority can say.
    """
    if any(wait.record.p2p_sequence for wait in cycle):
        return ()
    voters = set.intersection(*(set(wait.group.ranks) for wait in cycle))
    votes = [voters.intersection(ranks) for ranks in together]
    most = max(votes, key=len)
    others = set().union(*votes) - most
    return tuple(sorted(others)) if len(most) > len(others) else ()


def _ended(job: Job, waits: WaitGraph) -> list[Finding]:
    """SC702: a rank ended well while others still had a collective to do with it."""
    for wait in in_time(waits.all()):
        gone = sorted(rank for rank in wait.needs if rank in job.ended)
        if gone and not wait.any:
            message = (
                f"{ranks_text(gone)} had ended while rank {wait.rank} still waited in {wait.where} for "
                f"{verb(gone, 'it', 'them')}"
            )
            sides = (_side(wait, "waits"), *whereabouts(job, gone, group=wait.group))
            wrong, code = outvoted(job, wait.group, gone), RANK_EXITED_EARLY.code
            return [_finding(code, RANK_EXITED_EARLY.severity, message, wait, wrong, sides, ranks=gone)]
    return []


def _late(job: Job, waits: WaitGraph, stall: Stall | None) -> list[Finding]:
    """SC201: ranks that are there, and did not come to what others wait in."""
    gone = set(job.ended) | {rank for rank in fallen(job) if rank not in waits.by_rank}
    # What simcoll takes to connect is not the rank's own delay.
    gone |= set() if stall is None else stall.connecting
    for wait in in_time(waits.all()):
        # Who waits in something else is not late: who keeps it is, or nobody, where all have come to what it waits in.
        late = known_absent(job, wait, wait.needs - waits.stuck - gone - waits.waiting, stall)
        if not late or wait.any:
            continue
        waiting = sorted({other.rank for other in waits.all() if other.call == wait.call})
        recorded = job.traces.keys() & set(wait.group.ranks)
        most = stall is not None and not stall.watched and 2 * len(late) > len(recorded)
        if most and stall is not None and len(recorded) == len(wait.group.ranks) and not wait.group.partial:
            return [_made_alone(job, wait, waiting, late, stall)]
        message = f"{ranks_text(late)} did not come to {_number(wait)}, where {_who(wait, waiting)} waited"
        given_up = _until_ended(job, wait, waiting)
        message += given_up or for_how_long(wait, stall)
        # Whoever had not come when torch gave up did not come in time.
        severity = Severity.ERROR if given_up else _severity_of_delay(stall)
        note = f"waited{_queued_behind(job, wait)}"
        sides = (replace(_side(wait, note), ranks=tuple(waiting)), *whereabouts(job, late, stall, wait.group))
        code = MISSING_RANK.code
        if all(left_group(job, rank, wait.group) is not None for rank in late):
            code, severity = RANK_EXITED_EARLY.code, RANK_EXITED_EARLY.severity
            message += ", but had destroyed the group"
        # Where most did not come, and some left no record, any of them may be wrong.
        culprits = () if most else late
        return [_finding(code, severity, message, wait, culprits, sides, ranks=[*waiting, *late])]
    return []


def _who(wait: Wait, waiting: Sequence[int]) -> str:
    """Those who waited: the host of a rank may be somewhere else than its device.

    What is still to be proved the device has not been given.
    """
    if not wait.on_device or wait.record.state is State.SCHEDULED:
        return ranks_text(waiting)
    return f"the {verb(waiting, 'device', 'devices')} of {ranks_text(waiting)}"


def _until_ended(job: Job, wait: Wait, waiting: Sequence[int]) -> str:
    """For how long ranks waited of which torch's watchdog then ended one."""
    ended = [failure for rank in waiting if (failure := job.failures.get(rank)) and failure.nature is Nature.WATCHDOG]
    if not ended:
        return ""
    first = min(ended, key=lambda failure: failure.time_ns)
    seconds = (first.time_ns - wait.record.scheduled_ns) / 1e9
    return f" for {seconds:.0f} s, until torch's NCCL watchdog ended rank {first.rank} (SIGABRT)"


def _queued_behind(job: Job, wait: Wait) -> str:
    """What the host of a waiting rank has queued behind the call, where it has gone on."""
    last = job.last.get(wait.rank)
    if not wait.on_device or last is None or last == wait.record:
        return ""
    return f"; behind it are queued calls up to {record_text(last)}"


def _made_alone(job: Job, wait: Wait, waiting: Sequence[int], late: Sequence[int], stall: Stall) -> Finding:
    """SC202 where most of a group did not come, and nobody saw that something holds them up."""
    message = (
        f"{ranks_text(waiting)} waited{for_how_long(wait, stall)} in {_number(wait)}, which "
        f"{ranks_text(late)} did not make: most of the group"
    )
    sides = (replace(_side(wait, "waited"), ranks=tuple(waiting)), *whereabouts(job, late, stall, wait.group))
    return _finding(CALL_SKIPPED.code, _severity_of_delay(stall), message, wait, waiting, sides, ranks=late)


def _stopped(job: Job, stall: Stall) -> Finding:
    """SC201 for processes that a signal has stopped: they are there, and do nothing."""
    stopped = sorted(stall.stopped)
    message = (
        f"the {verb(stopped, 'process', 'processes')} of {ranks_text(stopped)} {verb(stopped, 'was', 'were')} stopped "
        f"by a signal (SIGSTOP), and the job stood still for {stall.seconds:.0f} s"
    )
    last = next((job.last[rank] for rank in stopped if rank in job.last), None)
    trace = next((job.traces[rank] for rank in stopped if rank in job.traces), None)
    group = None if last is None or trace is None else next((g for g in trace.groups if g.name == last.group), None)
    return Finding(
        MISSING_RANK.code,
        MISSING_RANK.severity,
        message,
        group=group,
        sequence=None if last is None or last.p2p_sequence else last.sequence,
        ranks=tuple(sorted(job.traces)),
        culprits=tuple(stopped),
        sides=tuple(whereabouts(job, stopped, stall)),
    )


def _nobody(job: Job, waits: WaitGraph, stall: Stall | None) -> list[Finding]:
    """SC201 without a culprit: the job was given up although nobody is known to be missing."""
    if stall is None or not stall.over or not (waits.waiting or waits.unended):
        return []
    if not stall.watched:
        return standing(job, waits, stall)
    message = (
        f"the job stood still for {stall.seconds:.0f} s, and no rank is known to be missing: where each rank is stands "
        "below"
    )
    ranks = sorted(job.traces)
    return [
        Finding(
            MISSING_RANK.code,
            MISSING_RANK.severity,
            message,
            ranks=tuple(ranks),
            sides=tuple(whereabouts(job, ranks, stall)),
        )
    ]


def _number(wait: Wait) -> str:
    """The collective by its number, or the message by its other end."""
    record = wait.record
    if not record.p2p_sequence:
        return f"{record.call.op} (collective {record.sequence})"
    return "a receive of its message" if record.call.op == "send" else "a send to it"


def _side(wait: Wait, note: str) -> Side:
    stated = lines([(wait.rank, wait.record.source)])
    return Side((wait.rank,), wait.record.call, stated, note, CallPlace.of(wait.group, wait.record, wait.rank))


def _finding(
    code: str,
    severity: Severity,
    message: str,
    wait: Wait,
    culprits: Sequence[int],
    sides: Sequence[Side],
    *,
    ranks: Sequence[int] = (),
) -> Finding:
    return Finding(
        code,
        severity,
        message,
        group=wait.group,
        sequence=None if wait.record.p2p_sequence else wait.record.sequence,
        ranks=tuple(sorted({wait.rank, *ranks, *culprits})),
        culprits=tuple(culprits),
        sides=tuple(sides),
    )
