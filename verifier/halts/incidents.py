"""What became of the job beside its collectives: SC201, SC601, SC701 and SC702, and which of them is the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.device_errors import device_error
from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.agreement.mismatches import Mismatch
from simcoll.verifier.findings.describe import record_text
from simcoll.verifier.findings.failures import Failure, Nature, first_line, nature_of, source_of, text
from simcoll.verifier.findings.finding import CallPlace, Finding, Severity, Side
from simcoll.verifier.findings.rules_job import INVALID_ARGUMENT, RANK_EXITED_EARLY, RANK_FAILED
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.device_position import device_record
from simcoll.verifier.halts.rank_location import whereabouts

_SIDES = 4
"""So many ranks, or sets of ranks alike, are shown."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of the job as a whole. ``last`` holds each rank's last record, ``ended`` when a rank ended well.

    ``mismatches`` are those of severity error; ``launched`` are the ranks of which a launcher tells.
    """

    traces: Mapping[int, Trace]
    failures: Mapping[int, Failure]
    mismatches: Sequence[Mismatch]
    last: Mapping[int, Record]
    ended: Mapping[int, int]
    clean: bool
    launched: frozenset[int] = frozenset()

    def place(self, rank: int) -> CallPlace | None:
        """Where a rank's last call stands, or the one in which its device is; None where neither is recorded."""
        record = device_record(self.traces, rank) or self.last.get(rank)
        group = None if record is None else group_named(self, rank, record.group)
        return None if record is None or group is None else CallPlace.of(group, record, rank)


def last_record(trace: Trace) -> Record | None:
    """The last call that a rank wrote down."""
    return record_at(trace, len(trace.slots) - 1) if len(trace.slots) else None


def first_failure(job: Job, explained: bool) -> list[Finding]:
    """SC601 or SC701: the failure that came first, unless another finding accounts for it.

    ``explained`` says that ranks that did not come are reported already. What a failure's text blames on a mismatch,
    a missing rank or a broken connection is a consequence, as long as something is there that it can follow from.
    """
    own = own_failure(job, explained=explained)
    if own is not None:
        return [_failed(job, own)]
    others = [failure for failure in job.failures.values() if failure.nature is not Nature.OWN]
    if not others or job.mismatches or explained:
        return []
    if early := exited_early(job, others):
        return early
    return [_failed(job, others[0])]


def own_failure(job: Job, *, explained: bool = False) -> Failure | None:
    """The first failure that has its cause in its own rank, as far as its text and the mismatches say.

    ``explained`` says that it is known why ranks wait.
    """
    for failure in job.failures.values():
        ended = explained and failure.terminated
        if failure.nature is Nature.OWN and not ended and not _follows_mismatch(job, failure):
            return failure
    return None


def _follows_mismatch(job: Job, failure: Failure) -> bool:
    """Whether the rank failed at a mismatch, or in handling it.

    An exception is its consequence where the rank completed no collective in between, failed in the very call, or where
    the mismatch lasts; an exit code is where the rank took part at all: that is how a program ends that has caught the
    error.
    """
    if not job.mismatches or failure.time_ns < job.mismatches[0].time_ns:
        return False
    if not failure.type and (failure.exit_code or 0) > 0:
        return any(failure.rank in mismatch.finding.ranks for mismatch in job.mismatches)
    if any(one.lasting and failure.rank in one.finding.ranks for one in job.mismatches):
        return True
    last = job.last.get(failure.rank)
    if last is not None and last.state is not State.COMPLETED and _is_mismatched(job, last):
        return True
    completed = 0 if last is None else last.finished_ns
    return completed <= max(max(one.time_ns, one.until_ns) for one in job.mismatches)


def _is_mismatched(job: Job, record: Record) -> bool:
    places = {
        (mismatch.finding.group.name, mismatch.finding.sequence)
        for mismatch in job.mismatches
        if mismatch.finding.group is not None
    }
    return not record.p2p_sequence and (record.group, record.sequence) in places


def _failed(job: Job, first: Failure) -> Finding:
    alike = [one for one in job.failures.values() if _same_cause(one, first)]
    noted = first.api is not None or any(_refusal_of(event, first) for event in _events(job, first.rank, "rejected"))
    # A function that fails because a peer is gone refuses nothing.
    refused = noted and first.nature is Nature.OWN and first.device_error is None
    rule = INVALID_ARGUMENT if refused else RANK_FAILED
    ranks = tuple(sorted(one.rank for one in alike))
    message = f"{_who(alike, first)}{_about_device(first)}"
    if not refused and len(job.traces) > len(ranks):
        message += "; what other ranks report came after it"
    everyone = len(ranks) == len(job.traces) and len(ranks) > 1
    group, sequence = _refused_place(job, first) if refused else (None, None)
    return Finding(
        rule.code,
        rule.severity,
        message,
        group=group,
        sequence=sequence,
        ranks=ranks,
        culprits=() if everyone else ranks,
        sides=_failed_sides(job, alike),
    )


def _who(alike: Sequence[Failure], first: Failure) -> str:
    """Who failed and how; which of several was the first is told where it says something else than they do."""
    if all(one.text() == first.text() for one in alike):
        return f"{ranks_text([one.rank for one in alike])} {first.text()}"
    others = [one.rank for one in alike if one.rank != first.rank]
    return f"rank {first.rank} {first.text().removesuffix('.')}, and so did {ranks_text(others)}"


def _about_device(failure: Failure) -> str:
    error = failure.device_error
    return "" if error is None else f"; {error.value}"


def _same_cause(one: Failure, first: Failure) -> bool:
    if one.rank == first.rank:
        return True
    if not first.type or one.nature is not first.nature:
        return False
    here = bool(one.source.file) and one.source == first.source
    return one.type == first.type and (here or one.message == first.message)


def _failed_sides(job: Job, failures: Sequence[Failure]) -> tuple[Side, ...]:
    """Ranks that say the same of their failure are one side; who failed first comes first."""
    ranks: dict[tuple[str, Source], list[int]] = {}
    for failure in failures:
        ranks.setdefault(_told(job, failure), []).append(failure.rank)
    return tuple(
        Side(tuple(sorted(alike)), None, lines([(min(alike), source)]), note, job.place(min(alike)))
        for (note, source), alike in list(ranks.items())[:_SIDES]
    )


def _told(job: Job, failure: Failure) -> tuple[str, Source]:
    last = job.last.get(failure.rank)
    source = failure.source
    note = failure.text()
    if last is not None:
        device = device_record(job.traces, failure.rank)
        at = f"; its device was in {record_text(device)}" if device is not None and device != last else ""
        note += f"{at}; its last call was {record_text(last, placed=bool(failure.type))}"
        source = source if failure.type else last.source
    return note, source


def _events(job: Job, rank: int, kind: str) -> list[Event]:
    trace = job.traces.get(rank)
    return [] if trace is None else [event for event in trace.events if event.kind == kind]


def _refusal_of(event: Event, failure: Failure) -> bool:
    return bool(failure.type) and (text(event, "type"), text(event, "message")) == (failure.type, failure.message)


def _refused_place(job: Job, failure: Failure) -> tuple[Group | None, int | None]:
    for event in _events(job, failure.rank, "rejected"):
        if _refusal_of(event, failure):
            sequence = event.data.get("sequence")
            return group_of(job, failure.rank, event), sequence if type(sequence) is int else None
    return None, None


def group_of(job: Job, rank: int, event: Event) -> Group | None:
    """The group that an event names, as its rank knows it; None where it names none."""
    name = event.data.get("group")
    return next((group for group in job.traces[rank].groups if group.name == name), None)


def refused_on_some(job: Job) -> list[Finding]:
    """SC601: some ranks' call was refused and they handled it, while others made the same call and waited.

    What ends a rank is :func:`first_failure`'s; what every rank handles alike is the program's own business. In a job
    that ended well it is a warning.
    """
    refused: dict[tuple[Group, int], dict[int, Event]] = {}
    for rank in job.traces:
        for event in _events(job, rank, "rejected"):
            group, sequence = group_of(job, rank, event), event.data.get("sequence")
            own = _is_refusal(event)
            ended = rank in job.failures and _refusal_of(event, job.failures[rank])
            if group is not None and type(sequence) is int and own and not ended:
                refused.setdefault((group, sequence), {})[rank] = event
    return [
        _partly_refused(job, group, sequence, events)
        for (group, sequence), events in refused.items()
        if _went_on(job, group, sequence, events)
    ]


def _is_refusal(event: Event) -> bool:
    """Whether the call itself was refused: nothing else made it fail, such as an error of the device."""
    about = text(event, "type"), text(event, "message")
    return nature_of(*about) is Nature.OWN and device_error(*about) is None


def _went_on(job: Job, group: Group, sequence: int, refused: Mapping[int, Event]) -> list[int]:
    """The members that made the call and were not refused."""
    made = []
    for rank in group.ranks:
        trace = job.traces.get(rank)
        if trace is None or rank in refused:
            continue
        names = [index for index, known in enumerate(trace.groups) if known == group]
        slots = trace.slots
        hit = (slots["sequence"] == sequence) & (slots["p2p_sequence"] == 0)
        if names and bool((hit & (slots["group"] == names[0]) & (slots["state"] != State.REJECTED)).any()):
            made.append(rank)
    return made


def _partly_refused(job: Job, group: Group, sequence: int, events: Mapping[int, Event]) -> Finding:
    ranks = tuple(sorted(events))
    first = events[ranks[0]]
    waiting = _went_on(job, group, sequence, events)
    message = (
        f"{text(first, 'function') or 'a call'} was refused on {ranks_text(ranks)} "
        f"({text(first, 'type')}: {first_line(text(first, 'message'))}), while {ranks_text(waiting)} went on"
    )
    sides = [Side((rank,), None, lines([(rank, source_of(events[rank].data))]), "refused") for rank in ranks[:_SIDES]]
    return Finding(
        INVALID_ARGUMENT.code,
        Severity.WARNING if job.clean else Severity.ERROR,
        message,
        group=group,
        sequence=sequence,
        ranks=tuple(sorted([*ranks, *waiting])),
        culprits=ranks,
        sides=tuple(sides),
    )


def refused_instead(job: Job, missing: Finding) -> list[Finding]:
    """SC601 in a missing rank's place: its call was refused above the group, and it went on without it."""
    events = {}
    for rank in missing.culprits:
        since = job.last[rank].scheduled_ns if rank in job.last else 0
        for event in _events(job, rank, "rejected"):
            if _is_refusal(event) and event.data.get("group") is None and event.time_ns >= since:
                events[rank] = event
    if not events or missing.group is None or missing.sequence is None:
        return []
    return [_partly_refused(job, missing.group, missing.sequence, events)]


def exited_early(job: Job, victims: Sequence[Failure]) -> list[Finding]:
    """SC702: a rank ended well while a peer still had a collective to do with it, and lost the connection."""
    for victim in victims:
        last = job.last.get(victim.rank)
        group = None if last is None else group_named(job, victim.rank, last.group)
        gone = [
            rank
            for rank in (() if group is None else group.ranks)
            if job.ended.get(rank, victim.time_ns + 1) <= victim.time_ns and rank not in job.failures
        ]
        if group is not None and last is not None and gone:
            return [_exited(job, group, last, victim, gone)]
    return []


def outvoted(job: Job, group: Group, left: Sequence[int]) -> tuple[int, ...]:
    """Who is wrong where some of a group left: those, or the others if most of those left of whom anything is known."""
    known = [rank for rank in group.ranks if rank in job.traces]
    if 2 * len(left) <= len(known):
        return tuple(left)
    return tuple(rank for rank in known if rank not in left)


def _exited(job: Job, group: Group, last: Record, victim: Failure, gone: Sequence[int]) -> Finding:
    message = (
        f"{ranks_text(gone)} had ended when rank {victim.rank} still made {last.call.op} (collective {last.sequence})"
    )
    waited = Side((victim.rank,), last.call, lines([(victim.rank, last.source)]), victim.text())
    return Finding(
        RANK_EXITED_EARLY.code,
        RANK_EXITED_EARLY.severity,
        message,
        group=group,
        sequence=last.sequence,
        ranks=tuple(sorted([victim.rank, *gone])),
        culprits=outvoted(job, group, gone),
        sides=(waited, *whereabouts(job, gone)),
    )


def group_named(job: Job, rank: int, name: str) -> Group | None:
    """The group of that name in a rank's record; None where it has none."""
    trace = job.traces.get(rank)
    return None if trace is None else next((group for group in trace.groups if group.name == name), None)
