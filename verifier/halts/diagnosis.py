"""The causes of a halt, from the waits that the job was in when it ended: SC204, SC702 and SC201."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import State
from simcoll.verifier.agreement.p2p_matching import Matching
from simcoll.verifier.findings.describe import record_text
from simcoll.verifier.findings.finding import Finding, Rule, Severity, Side, record_side
from simcoll.verifier.findings.rules import (
    CALL_SKIPPED,
    DEADLOCK_CYCLE,
    MEMBERSHIP_MISMATCH,
    MISSING_RANK,
    P2P_UNMATCHED,
    RANK_EXITED_EARLY,
)
from simcoll.verifier.halts.failures import Nature
from simcoll.verifier.halts.inferred import for_how_long, standing_calls
from simcoll.verifier.halts.job import Job, in_the_making, left_group, rank_locations
from simcoll.verifier.halts.membership import membership_mismatches
from simcoll.verifier.halts.missing import ended_ranks, late_ranks, wrong_leavers
from simcoll.verifier.halts.p2p_unmatched import unmet_message
from simcoll.verifier.halts.wait_graph import Wait, WaitGraph, in_time, waits_of

_SHOWN = 8


def deadlock_before_failures(job: Job, missing: Sequence[Finding]) -> list[Finding]:
    """SC204 in place of ranks that did not come (SC201): they waited in a cycle themselves, with those that missed them
    or without.

    Every wait of the cycle must have begun before the first of its ranks gave up, or of those that missed them where
    none did: a rank that came later met no other.
    """
    waits = waits_of(replace(job, stall=None))
    cycle = waits.cycle()
    failed = [wait.rank for wait in cycle if wait.rank in job.failures]
    failed = failed or [rank for one in missing for rank in one.ranks if rank in job.failures]
    gave_up = [job.failures[rank].time_ns for rank in failed]
    if not cycle or not gave_up or max(wait.record.scheduled_ns for wait in cycle) >= min(gave_up):
        return []
    found = _cycle(job, waits, cycle)
    return [found] if any(set(one.culprits) <= set(found.ranks) for one in missing) else []


def is_final(job: Job, finding: Finding, waits: WaitGraph) -> bool:
    """True if the ranks named for a halt can never come; a rank that has work of its own to do is only late."""
    if finding.code == P2P_UNMATCHED.code:
        # An assumption about a host may prove wrong later.
        return bool(waits.cycle())
    if finding.code == MEMBERSHIP_MISMATCH.code and not membership_mismatches(job):
        # A host goes on while its device is blocked in a message.
        waiting = waits_of(replace(job, matching=Matching())).waiting
        return set(finding.culprits) <= {*waiting, *job.ended, *in_the_making(job)}
    return finding.code != MISSING_RANK.code


def deadlock(job: Job, waits: WaitGraph) -> list[Finding]:
    """Ranks wait for each other in a cycle: across groups, messages, or devices and hosts. The shortest is named.

    Where a single message without its other end closes a cycle of devices, that message is reported (SC304). Every wait
    of the cycle had begun when the first of its ranks was last seen.
    """
    cycle = waits.cycle()
    if not cycle or not _at_one_moment(job, cycle):
        return []
    return [unmet_message(cycle) or _cycle(job, waits, cycle)]


def _at_one_moment(job: Job, cycle: Sequence[Wait]) -> bool:
    """True if all waits of a cycle had begun when the first of its ranks was last seen.

    Ranks copy their black boxes one after the other: a rank's wait may have ended while others were still copying.
    """
    stall = job.stall
    if stall is None or stall.watched:
        return True
    seen = [stall.until[wait.rank] for wait in cycle if not job.traces[wait.rank].unknown]
    return not seen or max(wait.record.scheduled_ns for wait in cycle) <= min(seen)


def _cycle(job: Job, waits: WaitGraph, cycle: Sequence[Wait]) -> Finding:
    """SC204; where most of the ranks wait in one of its calls, the others are those that came in another order."""
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
    return DEADLOCK_CYCLE.finding(
        f"none of them can go on: {', '.join(clauses)}{more}",
        group=common,
        ranks=everybody,
        culprits=_out_of_order(job, cycle, together),
        sides=tuple(
            replace(
                record_side(
                    wait.rank, wait.group, wait.record, f"{verb(ranks, 'waits', 'wait')} for {ranks_text(after)}"
                ),
                ranks=tuple(ranks),
            )
            for ranks, wait, after in pairs
        ),
    )


def _out_of_order(job: Job, cycle: Sequence[Wait], together: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The ranks of all groups of a cycle that wait in another of its calls than most such ranks do, or did.

    A rank that belongs to one group alone had no other call to come to. No majority shows which end of a message is
    wrong.
    """
    if any(wait.record.p2p_sequence for wait in cycle):
        return ()
    voters = set.intersection(*(set(wait.group.ranks) for wait in cycle))
    # Who has given up in one of the calls may have come to another one by that.
    gave_up = [_failed_in(job, wait, voters) for wait in cycle]
    everywhere = set().union(*gave_up)
    votes = [voters & ({*ranks} - everywhere | failed) for ranks, failed in zip(together, gave_up, strict=True)]
    most = max(votes, key=len)
    others = set().union(*votes) - most
    return tuple(sorted(others)) if len(most) > len(others) else ()


def _failed_in(job: Job, wait: Wait, ranks: Collection[int]) -> set[int]:
    """The ranks whose call of the collective in which another waits has failed."""
    found = set()
    for rank in ranks:
        trace = job.traces.get(rank)
        if trace is not None and wait.group in trace.groups:
            slots, lives = trace.slots, [index for index, group in enumerate(trace.groups) if group == wait.group]
            there = (slots["group"] == lives[-1]) & (slots["sequence"] == wait.record.sequence)
            if bool((there & (slots["p2p_sequence"] == 0) & (slots["state"] == State.FAILED)).any()):
                found.add(rank)
    return found


def ended_peer(job: Job, waits: WaitGraph) -> list[Finding]:
    """A rank ended well while others wait for it in a call."""
    for wait in in_time(waits.all()):
        gone = ended_ranks(job, sorted(wait.needs))
        if gone and not wait.any:
            message = (
                f"{ranks_text(gone)} had ended while rank {wait.rank} still waited in {wait.where} for "
                f"{verb(gone, 'it', 'them')}"
            )
            sides = (
                record_side(wait.rank, wait.group, wait.record, "waits"),
                *rank_locations(job, gone, group=wait.group),
            )
            culprits = wrong_leavers(job, wait.group, gone)
            if (other := _missed_elsewhere(job, waits, wait, gone)) is not None:
                message += f"; rank {other.rank} waits for rank {wait.rank} in {other.where}"
                culprits = (wait.rank,)
            return [_finding(RANK_EXITED_EARLY, None, message, wait, culprits, sides, gone)]
    return []


def _missed_elsewhere(job: Job, waits: WaitGraph, wait: Wait, gone: Collection[int]) -> Wait | None:
    """The wait for a rank of two, of which the other one has ended, in a group that is not theirs: the rank is missing
    there, at a line to which further ranks came, and alone it has ever come to the line at which it waits.
    """
    if len(wait.group.ranks) != 2 or wait.record.p2p_sequence:
        return None
    others = (one for one in waits.all() if wait.rank in one.needs and not one.any and not one.record.p2p_sequence)
    found = next((one for one in others if not one.needs.intersection(gone)), None)
    if found is None or not wait.record.source.file:
        return None
    # Where ranks have parts of their own, each is alone at its lines.
    came_here, came_there = (
        {rank for rank, trace in job.traces.items() if any(source.stack == stack for source in trace.sources)}
        for stack in (wait.record.source.stack, found.record.source.stack)
    )
    return found if came_here == {wait.rank} and came_there - {wait.rank, found.rank} else None


def late_rank(job: Job, waits: WaitGraph) -> list[Finding]:
    """Ranks that are alive, and in no call themselves, did not come to the call in which others wait (SC201).

    In a job that was ended from outside this is a warning: they might have come. Ranks that had destroyed the group are
    SC702. Where by the records most of a group did not come, the ranks that wait made a call too many (SC202). Where no
    monitor watched the job, the record of a late rank must go on for long enough without the call.
    """
    stall = job.stall
    for wait in in_time(waits.all()):
        late = late_ranks(job, waits, wait)
        if not late:
            continue
        waiting = sorted({other.rank for other in waits.all() if other.call == wait.call})
        recorded = job.traces.keys() & set(wait.group.ranks)
        most = stall is not None and not stall.watched and 2 * len(late) > len(recorded)
        if most and len(recorded) == len(wait.group.ranks) and not wait.group.partial:
            return [_made_alone(job, wait, waiting, late)]
        message = f"{ranks_text(late)} did not come to {_number(wait)}, where {_who(wait, waiting)} waited"
        given_up = _until_ended(job, wait, waiting)
        message += given_up or for_how_long(job, wait)
        # A rank that had not arrived when torch's watchdog gave up is an error: it did not come in time.
        severity = Severity.ERROR if given_up else job.severity_of_delay
        note = f"waited{_queued_behind(job, wait)}"
        sides = (
            replace(record_side(wait.rank, wait.group, wait.record, note), ranks=tuple(waiting)),
            *rank_locations(job, late, job.stall, wait.group),
        )
        rule = MISSING_RANK
        if all(left_group(job, rank, wait.group) is not None for rank in late):
            rule, severity = RANK_EXITED_EARLY, RANK_EXITED_EARLY.severity
            message += ", but had destroyed the group"
        # Where most did not come, and some left no record, any of them may be wrong.
        culprits = () if most else late
        return [_finding(rule, severity, message, wait, culprits, sides, [*waiting, *late])]
    return []


def _who(wait: Wait, waiting: Sequence[int]) -> str:
    """The ranks that waited, or their devices where the hosts may have gone on.

    A call that is still to be proved has not been queued on the device.
    """
    if not wait.on_device or wait.record.state is State.SCHEDULED:
        return ranks_text(waiting)
    return f"the {verb(waiting, 'device', 'devices')} of {ranks_text(waiting)}"


def _until_ended(job: Job, wait: Wait, waiting: Sequence[int]) -> str:
    """The time for which ranks had waited when torch's watchdog ended one of them."""
    ended = [failure for rank in waiting if (failure := job.failures.get(rank)) and failure.nature is Nature.WATCHDOG]
    if not ended:
        return ""
    first = min(ended, key=lambda failure: failure.time_ns)
    seconds = (first.time_ns - wait.record.scheduled_ns) / 1e9
    return f" for {seconds:.0f} s, until torch's NCCL watchdog ended rank {first.rank} (SIGABRT)"


def _queued_behind(job: Job, wait: Wait) -> str:
    """The last call that the host of a waiting rank has queued behind the one it waits in, in words; else empty."""
    last = job.last.get(wait.rank)
    if not wait.on_device or last is None or last == wait.record:
        return ""
    return f"; behind it are queued calls up to {record_text(last)}"


def _made_alone(job: Job, wait: Wait, waiting: Sequence[int], late: Sequence[int]) -> Finding:
    """SC202 where most of a group did not come, and no record shows that something blocks them."""
    message = (
        f"{ranks_text(waiting)} waited{for_how_long(job, wait)} in {_number(wait)}, which "
        f"{ranks_text(late)} did not make: most of the group"
    )
    sides = (
        replace(record_side(wait.rank, wait.group, wait.record, "waited"), ranks=tuple(waiting)),
        *rank_locations(job, late, job.stall, wait.group),
    )
    return _finding(CALL_SKIPPED, job.severity_of_delay, message, wait, waiting, sides, late)


def stopped_processes(job: Job, waits: WaitGraph) -> list[Finding]:
    """A signal stopped the processes of ranks: they exist and do nothing. The monitor saw that."""
    stall = job.stall
    if stall is None or not stall.stopped or not (waits.waiting or waits.unended):
        return []
    stopped = sorted(stall.stopped)
    message = (
        f"the {verb(stopped, 'process', 'processes')} of {ranks_text(stopped)} {verb(stopped, 'was', 'were')} stopped "
        f"by a signal (SIGSTOP), and the job stood still for {stall.seconds:.0f} s"
    )
    last = next((job.last[rank] for rank in stopped if rank in job.last), None)
    recorded = next((rank for rank in stopped if rank in job.traces), None)
    found = MISSING_RANK.finding(
        message,
        group=None if last is None or recorded is None else job.group(recorded, last.group),
        sequence=None if last is None or last.p2p_sequence else last.sequence,
        ranks=job.traces,
        culprits=stopped,
        sides=tuple(rank_locations(job, stopped, stall)),
    )
    return [found]


def nobody_missing(job: Job, waits: WaitGraph) -> list[Finding]:
    """The job was given up while ranks waited, and no rank is known to be missing. The finding has the place of each
    rank.

    If members are only known by their calls, and all ranks stand in calls of different groups, it is a deadlock
    (SC204).
    """
    stall = job.stall
    if stall is None or not stall.over or not (waits.waiting or waits.unended):
        return []
    if not stall.watched:
        return standing_calls(job, waits, stall)
    ranks = sorted(job.traces)
    unseen = sorted(set(range(job.size)) - job.traces.keys())
    known = (
        f"{ranks_text(unseen)} left no record here, and no other rank is known to be missing"
        if unseen
        else "no rank is known to be missing"
    )
    message = f"the job stood still for {stall.seconds:.0f} s, and {known}: the place of each rank is listed below"
    return [MISSING_RANK.finding(message, ranks=ranks, sides=rank_locations(job, ranks, stall))]


def _number(wait: Wait) -> str:
    """The collective by its number, or the message by its other end."""
    record = wait.record
    if not record.p2p_sequence:
        return f"{record.call.op} (collective {record.sequence})"
    return "a receive of its message" if record.call.op == "send" else "a send to it"


def _finding(
    rule: Rule,
    severity: Severity | None,
    message: str,
    wait: Wait,
    culprits: Sequence[int],
    sides: Sequence[Side],
    ranks: Sequence[int],
) -> Finding:
    return rule.finding(
        message,
        severity=severity,
        group=wait.group,
        sequence=None if wait.record.p2p_sequence else wait.record.sequence,
        ranks={wait.rank, *ranks, *culprits},
        culprits=culprits,
        sides=sides,
    )
