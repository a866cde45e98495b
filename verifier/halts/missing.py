"""SC201: ranks that did not come to a collective in time, and where each of them is instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, Record
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.findings.failures import Nature, number, source_of
from simcoll.verifier.findings.finding import Finding, Side
from simcoll.verifier.findings.rules_job import RANK_EXITED_EARLY
from simcoll.verifier.findings.rules_order import CALL_SKIPPED, MISSING_RANK
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.incidents import Job, group_of, outvoted
from simcoll.verifier.halts.rank_location import left_group, whereabouts

_WORTH_SAYING_MS = 100


@dataclass(slots=True)
class _Wait:
    """One collective that some ranks waited in: who reported it, who was missing by these reports."""

    group: Group
    sequence: int
    events: dict[int, Event]
    missing: set[int]


def missing_ranks(job: Job) -> list[Finding]:
    """One finding for each collective whose waiting ranks failed for want of others that had not failed themselves.

    A wait that a rank handled, and went on, is the program's own business (a probe, a retry).
    """
    if job.clean:
        return []
    waits: dict[tuple[Group, int], _Wait] = {}
    for rank, trace in job.traces.items():
        for event in trace.events:
            if event.kind == "missing":
                _note(waits, group_of(job, rank, event), rank, event)
    findings = [_report(job, wait) for wait in waits.values() if _matters(job, wait)]
    return sorted(findings, key=lambda finding: finding.sequence or 0)[:1]


def _note(waits: dict[tuple[Group, int], _Wait], group: Group | None, rank: int, event: Event) -> None:
    sequence, absent = number(event, "sequence"), event.data.get("missing")
    if group is None or sequence is None or not isinstance(absent, list):
        return
    wait = waits.setdefault((group, sequence), _Wait(group, sequence, {}, set()))
    wait.events[rank] = event
    wait.missing.update(rank for rank in absent if type(rank) is int and rank in group.ranks)


def _matters(job: Job, wait: _Wait) -> bool:
    # A rank that waited there itself did come.
    wait.missing.difference_update(wait.events)
    since = min(event.time_ns for event in wait.events.values())
    dead = [rank for rank in wait.missing if rank in job.failures and job.failures[rank].noticed_ns < since]
    fatal = any(_ended_by_it(job, rank) for rank in wait.events)
    return bool(wait.missing) and not dead and fatal and not _already_apart(job, wait)


def _ended_by_it(job: Job, rank: int) -> bool:
    """Whether a waiting rank failed for it, or at least did not get any further."""
    if rank in job.failures:
        return job.failures[rank].nature is not Nature.OWN
    return rank not in job.ended


def _already_apart(job: Job, wait: _Wait) -> bool:
    """Whether a mismatch among the same ranks came before: then the missing ranks are where it left them."""
    since = min(event.time_ns for event in wait.events.values())
    return any(
        mismatch.time_ns < since
        and wait.missing & set(mismatch.finding.ranks)
        and (set(job.failures) & wait.missing or _is_ahead(mismatch.finding, wait))
        for mismatch in job.mismatches
    )


def _is_ahead(finding: Finding, wait: _Wait) -> bool:
    """Whether a call lacks on one side, so that the last call of the other meets nobody."""
    return finding.code == CALL_SKIPPED.code and finding.group == wait.group


def _report(job: Job, wait: _Wait) -> Finding:
    missing = sorted(wait.missing)
    came = sorted(wait.events)
    record = _record(job, came, wait)
    call = "the collective" if record is None else record.call.op
    waited = max((number(event, "waited_ms") or 0 for event in wait.events.values()), default=0)
    left = all(left_group(job, rank, wait.group) is not None for rank in missing)
    rule = RANK_EXITED_EARLY if left or all(rank in job.ended for rank in missing) else MISSING_RANK
    for_how_long = f" for {waited / 1000:.1f} s" if waited >= _WORTH_SAYING_MS else ""
    message = (
        f"{ranks_text(missing)} did not come to {call} (collective {wait.sequence}), where {ranks_text(came)} "
        f"waited{for_how_long}{', but had destroyed the group' if left else ''}"
    )
    return Finding(
        rule.code,
        rule.severity,
        message,
        group=wait.group,
        sequence=wait.sequence,
        ranks=tuple(sorted({*missing, *came})),
        culprits=outvoted(job, wait.group, missing) if rule is RANK_EXITED_EARLY else tuple(missing),
        sides=(_waiting_side(wait, came, record), *whereabouts(job, missing, group=wait.group)),
        before=_before(job, came, wait),
    )


def _waiting_side(wait: _Wait, came: Sequence[int], record: Record | None) -> Side:
    stated = lines((rank, source_of(wait.events[rank].data)) for rank in came)
    return Side(tuple(came), None if record is None else record.call, stated, "waited")


def _record(job: Job, came: Sequence[int], wait: _Wait) -> Record | None:
    for rank in came:
        rows = _rows(job.traces[rank], wait.group, wait.sequence)
        if rows:
            return record_at(job.traces[rank], rows[-1])
    return None


def _before(job: Job, came: Sequence[int], wait: _Wait) -> tuple[Record, ...]:
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
