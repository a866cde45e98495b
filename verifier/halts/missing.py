"""The ranks that are missing: of a collective, a message, the making of a group, or a job that connects.

Every explanation that blames a wait on a rank asks this module. Three things show that a rank did not come: ranks that
waited for it have reported it, its record lacks the call and goes on for long enough, or it has ended. A rank without
such evidence is not blamed.

SC201 and SC702: ranks that did not come to a collective in time, as those that waited there reported it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, Record, State, number, source_of
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, Trace, record_at
from simcoll.verifier.agreement.p2p_matching import Unmatched
from simcoll.verifier.findings.finding import Finding, Side, lines
from simcoll.verifier.findings.rules import CALL_SKIPPED, MISSING_RANK, NON_MEMBER_CALL, RANK_EXITED_EARLY
from simcoll.verifier.halts.failures import Nature
from simcoll.verifier.halts.job import Creation, Job, left_group, rank_locations, waiting_makers
from simcoll.verifier.halts.wait_graph import Wait, WaitGraph, fallen

_UNSEEN_NS = 7 * 10**9
"""The extra time for which a call must be open where no record shows the missing rank: in a Gloo dump the last call may
have ended, and on a busy machine a dump takes ten seconds."""


@dataclass(frozen=True, slots=True)
class ReportedWait:
    """One collective that some ranks waited in: the ranks' reports, and the ranks that were missing by these."""

    group: Group
    sequence: int
    reports: dict[int, Event] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)

    @property
    def given_up_ns(self) -> int:
        """The time at which the first of the waiting ranks gave up, and reported it."""
        return min(event.time_ns for event in self.reports.values())

    @property
    def began_ns(self) -> int:
        """The latest time at which they had begun to wait."""
        return self.given_up_ns - self.waited_ms * 10**6

    @property
    def waited_ms(self) -> int:
        """The longest time (ms) for which they had waited by then."""
        return max((number(event, "waited_ms") or 0 for event in self.reports.values()), default=0)


def reported_waits(job: Job) -> list[ReportedWait]:
    """The collectives whose waiting ranks failed for want of others that had not failed themselves, by number.

    A wait that a rank handled, and went on, is the program's own business (a probe, a retry). Only the first of waits
    that may follow from each other is given.
    """
    if job.clean:
        return []
    waits: dict[tuple[Group, int], ReportedWait] = {}
    for rank in job.traces:
        for event in job.events(rank, "missing"):
            _note(waits, job.group(rank, event.data.get("group")), rank, event)
    for wait in waits.values():
        # A rank that waited there itself did come.
        wait.missing.difference_update(wait.reports)
    found = sorted((wait for wait in waits.values() if _matters(job, wait)), key=lambda wait: wait.sequence)
    return found if len(found) < 2 else _independent(job, found, waits.values())


def _note(waits: dict[tuple[Group, int], ReportedWait], group: Group | None, rank: int, event: Event) -> None:
    sequence, absent = number(event, "sequence"), event.data.get("missing")
    if group is None or sequence is None or not isinstance(absent, list):
        return
    wait = waits.setdefault((group, sequence), ReportedWait(group, sequence))
    wait.reports[rank] = event
    wait.missing.update(rank for rank in absent if type(rank) is int and rank in group.ranks)


def _matters(job: Job, wait: ReportedWait) -> bool:
    dead = [rank for rank in wait.missing if rank in job.failures and job.failures[rank].noticed_ns < wait.given_up_ns]
    fatal = any(_ended_by_it(job, rank) for rank in wait.reports)
    return bool(wait.missing) and not dead and fatal and not _already_apart(job, wait)


def _ended_by_it(job: Job, rank: int) -> bool:
    """True if a waiting rank failed for it, or at least did not get any further."""
    if rank in job.failures:
        return job.failures[rank].nature is not Nature.OWN
    return rank not in job.ended


def _already_apart(job: Job, wait: ReportedWait) -> bool:
    """True if a mismatch among the same ranks came before: then the missing ranks are where it left them."""
    return any(
        mismatch.time_ns < wait.given_up_ns
        and wait.missing & set(mismatch.finding.ranks)
        and (set(job.failures) & wait.missing or _is_ahead(mismatch.finding, wait))
        for mismatch in job.mismatches
    )


def _is_ahead(finding: Finding, wait: ReportedWait) -> bool:
    """True if a call is lacking on one side, so that the last call of the other has no partner."""
    return finding.code == CALL_SKIPPED.code and finding.group == wait.group


def _independent(job: Job, found: Sequence[ReportedWait], waits: Iterable[ReportedWait]) -> list[ReportedWait]:
    """The first of all waits, and the first of those whose ranks no open call connects with the ranks before.

    A wait that began after another one was given up may follow from that.
    """
    from networkx.utils import UnionFind  # it takes a third of the start of a command that reads records

    together: UnionFind[int] = UnionFind(job.traces)
    for wait in waits:
        together.union(*wait.reports, *wait.missing)
    for group in {group for trace in job.traces.values() for group in groups_of_open_calls(trace)}:
        together.union(*group)
    first: dict[int, ReportedWait] = {}
    for wait in found:
        first.setdefault(together[min(wait.reports)], wait)
    earliest = found[0]
    return [one for one in first.values() if one is earliest or one.began_ns < earliest.given_up_ns]


def groups_of_open_calls(trace: Trace) -> set[tuple[int, ...]]:
    """The ranks that calls which have not ended well connect with each other."""
    slots = trace.slots
    rows = slots[(slots["state"] != State.COMPLETED) & (slots["state"] != State.REJECTED)]
    return {trace.groups[index].ranks for index in np.unique(rows["group"]).tolist() if index < len(trace.groups)}


def wrong_leavers(job: Job, group: Group, left: Sequence[int]) -> tuple[int, ...]:
    """The side that is wrong when some ranks left: the leavers, or the rest if most left."""
    known = [rank for rank in group.ranks if rank in job.traces]
    if 2 * len(left) <= len(known):
        return tuple(left)
    return tuple(rank for rank in known if rank not in left)


def ended_ranks(job: Job, ranks: Iterable[int], by_ns: int | None = None) -> list[int]:
    """Those of these ranks that had ended well, by this time (wall clock, nanoseconds) where one is given."""
    return [rank for rank in ranks if rank in job.ended and (by_ns is None or job.ended[rank] <= by_ns)]


def late_ranks(job: Job, waits: WaitGraph, wait: Wait) -> list[int]:
    """The ranks that are alive, and are known not to have come to the call in which another waits."""
    gone = set(job.ended) | {rank for rank in fallen(job) if rank not in waits.by_rank}
    # The time that simcoll takes to connect is not the rank's own delay.
    gone |= set() if job.stall is None else job.stall.connecting
    if job.launched:
        # Those of another host, whose records are not here, may well have come.
        gone |= wait.needs - job.launched - job.traces.keys()
    # A rank that waits elsewhere is not late; the rank it waits for is.
    return [] if wait.any else _known_absent(job, wait, wait.needs - waits.stuck - gone - waits.waiting)


def _known_absent(job: Job, wait: Wait, late: Collection[int]) -> list[int]:
    """The ranks that are known not to have come.

    A rank that goes on in other groups has work to do before it comes. A rank without evidence is blamed only if it, or
    a minority like it, is all that a complete call still waits for; or if most records end right before a call that few
    made.
    """
    stall = job.stall
    if stall is None or stall.watched:
        return sorted(late)
    since = wait.record.scheduled_ns
    idle = {rank: max(since, job.last[rank].scheduled_ns) if rank in job.last else since for rank in late}
    if seen := sorted(rank for rank, last in idle.items() if stall.misses(rank, last)):
        return seen
    few = 2 * len(late) < len(wait.group.ranks)
    most = 2 * len(late) > len(wait.group.ranks) and all(_is_just_before(job.last.get(rank), wait) for rank in late)
    long = stall.misses(wait.rank, since + min(_UNSEEN_NS, stall.writing_ns))
    known = (few or most) and wait.record.state is not State.FAILED and set(idle.values()) == {since}
    return sorted(late) if known and stall.dated and long else []


def _is_just_before(last: Record | None, wait: Wait) -> bool:
    place = wait.group.name, wait.record.sequence - 1
    return last is not None and not last.p2p_sequence and (last.group, last.sequence) == place


def unseen_ranks(job: Job, waits: WaitGraph, wait: Wait) -> list[int]:
    """The ranks that no record shows to have come, late or not."""
    return [] if wait.any else sorted(wait.needs - waits.waiting - set(job.ended))


def never_comes(job: Job, one: Unmatched) -> bool:
    """True if the other end of a message can never come: its rank has ended, or waits for ranks that can not come.

    A rank is not blamed for a message that it may still come to.
    """
    stall = job.stall
    if stall is not None and (one.rank, one.group.name, one.record.p2p_sequence) in stall.never_met:
        return True
    peers = one.peers
    if not all(rank in job.traces for rank in peers):
        return False
    if len(ended_ranks(job, peers)) == len(peers):
        return True
    failed = one.record.state is State.FAILED and one.rank in job.failures
    return failed and not any(waits_in_a_call(job, rank) for rank in peers)


def waits_in_a_call(job: Job, rank: int) -> bool:
    """True if a rank waits in a call, or failed in its last wait."""
    slots = job.traces[rank].slots
    collective = (slots["p2p_sequence"] == 0) & ((slots["flags"] & ASYNCHRONOUS) == 0)
    waiting = ((slots["flags"] & AWAITED) != 0) | collective
    pending = (slots["state"] == State.SCHEDULED) | (slots["state"] == State.STARTED)
    if bool((pending & waiting).any()):
        return True
    failed = slots[slots["state"] == State.FAILED]
    last = int(slots["scheduled_ns"].max(initial=0))
    return rank not in job.ended and bool(len(failed)) and int(np.max(failed["finished_ns"])) >= last


def not_connecting(job: Job, made: Mapping[int, Creation]) -> tuple[list[int], list[int]]:
    """The ranks for which others wait in ``init_process_group``: those launched, and those that the job lacks."""
    needed = {member for one in waiting_makers(made, connecting=True) for member in one.members}
    needed -= {*made, *job.failures}
    size = job.size
    return sorted(needed & job.launched), sorted(rank for rank in needed if rank >= size)


def not_making(job: Job, made: Mapping[int, Creation]) -> list[int]:
    """The live members of a group for which others wait in its making and that never began to make it."""
    return sorted(
        {
            member
            for creation in waiting_makers(made)
            for member in creation.members
            if member not in made and member in job.traces and member not in job.failures
            if job.stall is None or job.stall.misses(member, creation.time_ns)
        }
    )


_WORTH_SAYING_MS = 100


def missing_ranks(job: Job, kept: Collection[int]) -> list[Finding]:
    """One finding for each such collective whose ranks are not connected with those of another one.

    None where a message keeps one of the missing (``kept``), nor where ranks outside the group made the awaited call:
    the program named the wrong group; nor where the missing wait for a rank whose call there is another one than that
    of the others.
    """
    found = [_report(job, wait) for wait in reported_waits(job) if not _kept_by_the_odd_one(job, wait)]
    called = [_lines(one.finding) for one in job.mismatches if one.finding.code == NON_MEMBER_CALL.code]
    return [one for one in found if not set(kept) & set(one.culprits) and not any(_lines(one) & of for of in called)]


def _kept_by_the_odd_one(job: Job, wait: ReportedWait) -> bool:
    """True if the missing wait, in other groups, for a rank whose call there is not that of the others that came."""
    there = (one.finding for one in job.mismatches)
    odd = {rank for one in there if (one.group, one.sequence) == (wait.group, wait.sequence) for rank in one.culprits}
    groups = [groups_of_open_calls(job.traces[rank]) for rank in wait.missing if rank in job.traces]
    return bool(odd and groups) and all(
        any(odd.intersection(ranks) for ranks in of - {wait.group.ranks}) for of in groups
    )


def _lines(finding: Finding) -> set[tuple[str, int]]:
    return {(one.source.file, one.source.line) for side in finding.sides for one in side.sources}


def _report(job: Job, wait: ReportedWait) -> Finding:
    missing = sorted(wait.missing)
    came = sorted(wait.reports)
    record = _record(job, came, wait)
    call = "the collective" if record is None else record.call.op
    left = all(left_group(job, rank, wait.group) is not None for rank in missing)
    rule = RANK_EXITED_EARLY if left or all(rank in job.ended for rank in missing) else MISSING_RANK
    for_how_long = f" for {wait.waited_ms / 1000:.1f} s" if wait.waited_ms >= _WORTH_SAYING_MS else ""
    message = (
        f"{ranks_text(missing)} did not come to {call} (collective {wait.sequence}), where {ranks_text(came)} "
        f"waited{for_how_long}{', but had destroyed the group' if left else ''}"
    )
    return rule.finding(
        message,
        group=wait.group,
        sequence=wait.sequence,
        ranks={*missing, *came},
        culprits=wrong_leavers(job, wait.group, missing) if rule is RANK_EXITED_EARLY else tuple(missing),
        sides=(_waiting_side(wait, came, record), *rank_locations(job, missing, group=wait.group)),
        before=_before(job, came, wait),
    )


def _waiting_side(wait: ReportedWait, came: Sequence[int], record: Record | None) -> Side:
    sources = lines((rank, source_of(wait.reports[rank].data)) for rank in came)
    return Side(tuple(came), None if record is None else record.call, sources, "waited")


def _record(job: Job, came: Sequence[int], wait: ReportedWait) -> Record | None:
    for rank in came:
        rows = _rows(job.traces[rank], wait.group, wait.sequence)
        if rows:
            return record_at(job.traces[rank], rows[-1])
    return None


def _before(job: Job, came: Sequence[int], wait: ReportedWait) -> tuple[Record, ...]:
    trace = job.traces[came[0]]
    rows = [
        row
        for sequence in range(max(wait.sequence - 3, 1), wait.sequence)
        for row in _rows(trace, wait.group, sequence)
    ]
    return tuple(record for row in rows if (record := record_at(trace, row)) is not None)


def _rows(trace: Trace, group: Group, sequence: int) -> list[int]:
    indices: Mapping[Group, int] = {known: index for index, known in enumerate(trace.groups)}
    slots = trace.slots
    mask = (slots["group"] == indices.get(group, -1)) & (slots["sequence"] == sequence) & (slots["p2p_sequence"] == 0)
    return [int(row) for row in mask.nonzero()[0]]
