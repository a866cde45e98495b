"""What a report adds where records are all that is known: fields that they leave out, moments that they do not show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from simcoll.verifier.describe import fields_text
from simcoll.verifier.finding import Finding
from simcoll.verifier.incidents import Job
from simcoll.verifier.inferred import is_dump
from simcoll.verifier.matching import Matching
from simcoll.verifier.ranges import ranks_text
from simcoll.verifier.stated import unknown_fields
from simcoll.verifier.trace import Life, Stall, Trace, reached
from simcoll.verifier.unwatched import open_waits

_OVERWRITTEN = (1 << 32) - 1
"""The last sequence that a ring dropped of a group of which it has nothing left."""


def with_unknown(findings: Iterable[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """Findings that name the fields which their calls must agree on and which the records leave out."""
    unknown = frozenset[str]().union(*(trace.unknown for trace in traces))
    return tuple(_with_unknown(finding, unknown) if unknown else finding for finding in findings)


def _with_unknown(finding: Finding, unknown: frozenset[str]) -> Finding:
    fields = unknown_fields({side.call.op for side in finding.sides if side.call is not None}, unknown)
    more = [name for name in fields if name not in (*finding.unknown, *finding.differing)]
    return replace(finding, unknown=(*finding.unknown, *more))


def notes_of_records(job: Job, stall: Stall | None, findings: Sequence[Finding], matching: Matching) -> list[str]:
    """What the records cannot say, once for the report."""
    traces = list(job.traces.values())
    unknown = frozenset[str]().union(*(trace.unknown for trace in traces))
    notes = []
    if text := fields_text(unknown):
        notes.append(f"these records do not state {text}: mismatches of these were not judged")
    if not any(finding.culprits for finding in findings):
        notes += _not_at_once([trace for trace in traces if is_dump(trace)])
        if stall is not None and not stall.watched and not findings:
            notes += open_waits(job, stall, matching.unmatched)
    return notes


def _not_at_once(dumps: Sequence[Trace]) -> list[str]:
    """A note on ranks whose dumps end before what others did: of these calls nobody was late."""
    come = {trace.rank: reached(trace) for trace in dumps}
    furthest: dict[Life, int] = {}
    for mine in come.values():
        for life, sequence in mine.items():
            furthest[life] = max(furthest.get(life, 0), sequence if sequence < _OVERWRITTEN else 0)
    behind = sorted(rank for rank, mine in come.items() if any(furthest[life] > mine[life] for life in mine))
    if not behind:
        return []
    return [
        f"the dumps were not written at one moment: those of {ranks_text(behind)} end before calls that others show; "
        "whether these ranks came to them is not known"
    ]
