"""SC201 and SC702: ranks that did not come to a collective in time, as those that waited there reported it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Record
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.findings.failures import source_of
from simcoll.verifier.findings.finding import Finding, Side
from simcoll.verifier.findings.rules_job import RANK_EXITED_EARLY
from simcoll.verifier.findings.rules_order import MISSING_RANK
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.job import Job
from simcoll.verifier.halts.missing import ReportedWait, outvoted, reported_waits
from simcoll.verifier.halts.rank_location import left_group, rank_locations

_WORTH_SAYING_MS = 100


def missing_ranks(job: Job) -> list[Finding]:
    """One finding for each such collective whose ranks nothing connects with those of another one."""
    return [_report(job, wait) for wait in reported_waits(job)]


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
    return Finding(
        rule.code,
        rule.severity,
        message,
        group=wait.group,
        sequence=wait.sequence,
        ranks=tuple(sorted({*missing, *came})),
        culprits=outvoted(job, wait.group, missing) if rule is RANK_EXITED_EARLY else tuple(missing),
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
