"""Findings on the collectives of whole traces: which positions disagree, and which of those have their own cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simcoll.call import Call
from simcoll.verifier.columns import GroupColumns, Suspect
from simcoll.verifier.compare import compare
from simcoll.verifier.finding import Finding, Severity
from simcoll.verifier.trace import Trace

_FOLDED = 100
"""Distinct findings of one group beyond which the rest is counted only."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A finding on one collective, and when its first rank made the call (wall clock, nanoseconds).

    ``lasting`` says that its ranks cannot get right again: whatever goes wrong among them later follows from it.
    """

    finding: Finding
    time_ns: int
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the same-call check gives: mismatches in order of time, and how many collectives agree."""

    mismatches: tuple[Mismatch, ...]
    agreed: int


def check_agreement(groups: Sequence[GroupColumns], traces: Sequence[Trace]) -> Agreement:
    """Judge every collective that all or some ranks recorded."""
    # In detail mode a call that disagrees does not run, on any rank: what follows it is not shifted.
    steady = bool(traces) and all(trace.mode == "detail" for trace in traces)
    mismatches: list[Mismatch] = []
    agreed = 0
    for columns in groups:
        agreed += columns.check()
        found, tolerated = _of_group(columns, steady)
        mismatches += found
        agreed += tolerated
    return Agreement(tuple(sorted(mismatches, key=lambda mismatch: mismatch.time_ns)), agreed)


def _of_group(columns: GroupColumns, steady: bool) -> tuple[list[Mismatch], int]:
    """The mismatches of one group, and how many positions agree although their words do not add up to zero."""
    cache: dict[object, list[Finding]] = {}
    causes: dict[object, Mismatch] = {}
    repeated: dict[object, list[int]] = {}
    tolerated = 0
    for suspect in columns.suspects():
        findings = _compare(columns, suspect, steady, cache)
        grave = any(finding.severity is Severity.ERROR for finding in findings)
        tolerated += suspect.complete and not grave
        for found in findings:
            key = _cause(found)
            repeated.setdefault(key, []).append(suspect.sequence)
            if key not in causes and len(causes) < _FOLDED:
                causes[key] = Mismatch(replace(found, before=suspect.before), _time(suspect))
        if grave and not steady:
            # From here on one rank may be a call ahead, so that everything would seem to differ.
            break
    return [_with_repetitions(mismatch, repeated[key]) for key, mismatch in causes.items()], tolerated


def _compare(
    columns: GroupColumns, suspect: Suspect, steady: bool, cache: dict[object, list[Finding]]
) -> list[Finding]:
    key: frozenset[tuple[int, Call, object]] = frozenset(
        (rank, record.call, record.source) for rank, record in suspect.records.items()
    )
    if key not in cache:
        cache[key] = compare(columns.group, suspect.records, strict=steady)
    return [replace(finding, sequence=suspect.sequence) for finding in cache[key]]


def _cause(finding: Finding) -> object:
    """What makes two findings one: same rule, same culprits, same ranks at the same lines."""
    sides = frozenset(
        (side.ranks, tuple((stated.source.file, stated.source.line) for stated in side.sources) or side.call)
        for side in finding.sides
    )
    return finding.code, finding.severity, finding.culprits, finding.differing, sides


def _time(suspect: Suspect) -> int:
    return min((record.scheduled_ns for record in suspect.records.values()), default=0)


def _with_repetitions(mismatch: Mismatch, sequences: Sequence[int]) -> Mismatch:
    later = len(sequences) - 1
    if not later:
        return mismatch
    often = "once more" if later == 1 else f"{later} times more"
    message = f"{mismatch.finding.message} ({often} from these lines, the last time at collective {sequences[-1]})"
    return replace(mismatch, finding=replace(mismatch.finding, message=message))
