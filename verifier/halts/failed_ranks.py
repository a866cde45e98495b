"""SC601, SC701 and SC702: ranks that failed, and which failure is the cause.

SC601 also where the job went on: calls that some ranks refused and handled, while others made them and waited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from simcoll.core.device_errors import device_error
from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, Record, Source, State, source_of, text
from simcoll.verifier.findings.describe import record_text
from simcoll.verifier.findings.finding import Finding, Severity, Side, lines
from simcoll.verifier.findings.rules import INVALID_ARGUMENT, RANK_EXITED_EARLY, RANK_FAILED
from simcoll.verifier.halts.failures import Failure, Nature, nature_of, opening
from simcoll.verifier.halts.job import Job, device_record, rank_locations
from simcoll.verifier.halts.missing import ended_ranks, wrong_leavers


def refused_on_some(job: Job) -> list[Finding]:
    """A call was refused on some ranks, which handled that and went on, while others made it and waited.

    A refusal that ends a rank is a failure of its own; one that every rank handles alike is the program's own business.
    In a job that ended well it is a warning.
    """
    refused: dict[tuple[Group, int], dict[int, Event]] = {}
    for rank in job.traces if job.tells("rejected") else ():
        for event in job.events(rank, "rejected"):
            group, sequence = job.group(rank, event.data.get("group")), event.data.get("sequence")
            own = _is_refusal(event)
            ended = rank in job.failures and is_refusal_of(event, job.failures[rank])
            if group is not None and type(sequence) is int and own and not ended:
                refused.setdefault((group, sequence), {})[rank] = event
    return [
        _partly_refused(job, group, sequence, events)
        for (group, sequence), events in refused.items()
        if _went_on(job, group, sequence, events)
    ]


def _is_refusal(event: Event) -> bool:
    """True if the call itself was refused: no other error, such as one of the device, made it fail."""
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
        f"({text(first, 'type')}: {opening(text(first, 'message'))}), while {ranks_text(waiting)} went on"
    )
    sides = [Side((rank,), None, lines([(rank, source_of(events[rank].data))]), "refused") for rank in ranks[:_SIDES]]
    return INVALID_ARGUMENT.finding(
        message,
        severity=Severity.WARNING if job.clean else Severity.ERROR,
        group=group,
        sequence=sequence,
        ranks=[*ranks, *waiting],
        culprits=ranks,
        sides=sides,
    )


def is_refusal_of(event: Event, failure: Failure) -> bool:
    """True if a failure is the exception with which this call was refused."""
    return bool(failure.type) and (text(event, "type"), text(event, "message")) == (failure.type, failure.message)


def refused_instead(job: Job, missing: Finding) -> Finding | None:
    """SC601 in a missing rank's place: its call was refused above the group, and it went on without it."""
    events = {}
    for rank in missing.culprits:
        since = job.last[rank].scheduled_ns if rank in job.last else 0
        for event in job.events(rank, "rejected"):
            if _is_refusal(event) and event.data.get("group") is None and event.time_ns >= since:
                events[rank] = event
    if not events or missing.group is None or missing.sequence is None:
        return None
    return _partly_refused(job, missing.group, missing.sequence, events)


_SIDES = 4
"""So many ranks, or sets of ranks alike, are shown."""


def failed_ranks(job: Job, *, explained: bool, victims: Collection[int] = ()) -> list[Finding]:
    """SC601 or SC701: the first failure that has its cause in its own rank; the rest as in :func:`own_failure`."""
    own = own_failure(job, explained=explained, victims=victims)
    return [] if own is None else [_failed(job, own)]


def lost_peers(job: Job) -> list[Finding]:
    """A rank failed because it lost another rank, and nothing explains that loss. If a rank had ended well by then, it
    is named (SC702), otherwise the first failure (SC701).
    """
    others = [failure for failure in job.failures.values() if failure.nature is not Nature.OWN]
    return (_exited_early(job, others) or [_failed(job, others[0])]) if others else []


def own_failure(job: Job, *, explained: bool = False, victims: Collection[int] = ()) -> Failure | None:
    """The first failure that has its cause in its own rank, as far as its text and the mismatches say.

    ``explained`` says that it is known why ranks wait; the ``victims``' failures follow from that.
    """
    for failure in job.failures.values():
        ended = failure.rank in victims or (explained and failure.terminated)
        if failure.nature is Nature.OWN and not ended and not _follows_mismatch(job, failure):
            return failure
    return None


def _follows_mismatch(job: Job, failure: Failure) -> bool:
    """True if the rank failed at a mismatch, or in handling it.

    An exception is its consequence where the rank completed no collective in between, none after the mismatched one,
    where the function that fails had made it, or where the mismatch lasts; an exit code is one where the rank took part
    at all: a program that has caught the error ends so.
    """
    if not job.mismatches or failure.time_ns < job.mismatches[0].time_ns:
        return False
    if not failure.type and (failure.exit_code or 0) > 0:
        return any(failure.rank in mismatch.finding.ranks for mismatch in job.mismatches)
    if any(one.lasting and failure.rank in one.finding.ranks for one in job.mismatches):
        return True
    last = job.last.get(failure.rank)
    if (last is not None and _is_mismatched(job, last)) or _is_of_mismatched(job, failure):
        return True
    completed = 0 if last is None else last.finished_ns
    return completed <= max(max(one.time_ns, one.until_ns) for one in job.mismatches)


def _is_of_mismatched(job: Job, failure: Failure) -> bool:
    """True if a function of torch failed that had made the mismatched call: one on objects makes several."""
    sides = (side for mismatch in job.mismatches for side in mismatch.finding.sides if failure.rank in side.ranks)
    stated = (one.source for side in sides for one in side.sources)
    return failure.api is not None and any(
        (one.file, one.line) == (failure.source.file, failure.source.line) for one in stated
    )


def _is_mismatched(job: Job, record: Record) -> bool:
    places = {
        (mismatch.finding.group.name, mismatch.finding.sequence)
        for mismatch in job.mismatches
        if mismatch.finding.group is not None
    }
    return not record.p2p_sequence and (record.group, record.sequence) in places


def _failed(job: Job, first: Failure) -> Finding:
    alike = [one for one in job.failures.values() if _same_cause(one, first)]
    noted = first.api is not None or any(is_refusal_of(event, first) for event in job.events(first.rank, "rejected"))
    # A function that fails because a peer is gone has not refused its call.
    refused = noted and first.nature is Nature.OWN and first.device_error is None
    rule = INVALID_ARGUMENT if refused else RANK_FAILED
    ranks = tuple(sorted(one.rank for one in alike))
    message = f"{_who(alike, first)}{_about_device(first)}"
    if not refused and len(job.traces) > len(ranks):
        message += "; what other ranks report came after it"
    # A rank that lost a peer, or gave up waiting for one, is not the cause.
    nobody = first.nature is not Nature.OWN or (len(ranks) == len(job.traces) and len(ranks) > 1)
    group, sequence = _refused_place(job, first) if refused else (None, None)
    return rule.finding(
        message,
        group=group,
        sequence=sequence,
        ranks=ranks,
        culprits=() if nobody else ranks,
        sides=_failed_sides(job, alike),
    )


def _who(alike: Sequence[Failure], first: Failure) -> str:
    """The ranks that failed, and the failure in words; the first of several only where its text differs from theirs."""
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
    """Ranks with the same failure text are one side; the first failure's side comes first."""
    ranks: dict[tuple[str, Source], list[int]] = {}
    for failure in failures:
        ranks.setdefault(_account(job, failure), []).append(failure.rank)
    return tuple(
        Side(tuple(sorted(alike)), None, lines([(min(alike), source)]), note, job.place(min(alike)))
        for (note, source), alike in list(ranks.items())[:_SIDES]
    )


def _account(job: Job, failure: Failure) -> tuple[str, Source]:
    last = job.last.get(failure.rank)
    source = failure.source
    note = failure.text()
    if last is not None:
        device = device_record(job.traces, failure.rank)
        at = f"; its device was in {record_text(device)}" if device is not None and device != last else ""
        note += f"{at}; its last call was {record_text(last, placed=bool(failure.type))}"
        source = source if failure.type else last.source
    return note, source


def _refused_place(job: Job, failure: Failure) -> tuple[Group | None, int | None]:
    for event in job.events(failure.rank, "rejected"):
        if is_refusal_of(event, failure):
            sequence = event.data.get("sequence")
            return job.group(failure.rank, event.data.get("group")), sequence if type(sequence) is int else None
    return None, None


def _exited_early(job: Job, victims: Sequence[Failure]) -> list[Finding]:
    """SC702: a rank ended well while a peer still had a collective with it, and that peer lost the connection."""
    for victim in victims:
        last = job.last.get(victim.rank)
        group = None if last is None else job.group(victim.rank, last.group)
        gone = [] if group is None else ended_ranks(job, group.ranks, victim.time_ns)
        if group is not None and last is not None and gone:
            return [_exited(job, group, last, victim, gone)]
    return []


def _exited(job: Job, group: Group, last: Record, victim: Failure, gone: Sequence[int]) -> Finding:
    message = (
        f"{ranks_text(gone)} had ended when rank {victim.rank} still made {last.call.op} (collective {last.sequence})"
    )
    waited = Side((victim.rank,), last.call, lines([(victim.rank, last.source)]), victim.text())
    return RANK_EXITED_EARLY.finding(
        message,
        group=group,
        sequence=last.sequence,
        ranks=[victim.rank, *gone],
        culprits=wrong_leavers(job, group, gone),
        sides=(waited, *rank_locations(job, gone)),
    )
