"""SC601: calls that were refused on some ranks, which handled it, while others made them and waited."""

from __future__ import annotations

from collections.abc import Mapping

from simcoll.core.device_errors import device_error
from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, State
from simcoll.verifier.findings.failures import Failure, Nature, first_line, nature_of, source_of, text
from simcoll.verifier.findings.finding import Finding, Severity, Side
from simcoll.verifier.findings.rules_job import INVALID_ARGUMENT
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.job import Job

_SIDES = 4
"""So many ranks are shown."""


def refused_on_some(job: Job) -> list[Finding]:
    """A call was refused on some ranks, which handled that and went on, while others made it and waited.

    What ends a rank is a failure of its own; what every rank handles alike is the program's own business. In a job
    that ended well it is a warning.
    """
    refused: dict[tuple[Group, int], dict[int, Event]] = {}
    for rank in job.traces:
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


def is_refusal_of(event: Event, failure: Failure) -> bool:
    """Whether a failure is the exception with which this call was refused."""
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
