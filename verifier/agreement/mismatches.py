"""Checks on all groups of a job that their ranks make the same calls, and folds repeated findings by cause.

Some ranks may have left a black box and others only a dump. A field that a dump leaves out is left out of the
statements of all ranks that are compared with it; so the ranks that state it are compared among themselves as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from simcoll.core.record import Source
from simcoll.core.trace import Trace
from simcoll.verifier.agreement.columns import GroupColumns, Suspect, columns_of
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.agreement.majority import consensus
from simcoll.verifier.agreement.skipped_calls import EditFinding, by_lines, edit_finding
from simcoll.verifier.findings.describe import frames_shown
from simcoll.verifier.findings.finding import Finding, Severity, errors_of
from simcoll.verifier.findings.rules import CALL_SKIPPED


def agreement_of(traces: Sequence[Trace], columns: Sequence[GroupColumns]) -> Agreement:
    """The result of the same-call check of traces, whose collectives ``columns`` are."""
    found = check_agreement(columns, traces)
    full = [trace for trace in traces if not trace.unknown]
    if not full or len(full) == len(traces):
        return found
    unknown = frozenset[str]().union(*(trace.unknown for trace in traces))
    judged = {_group(one) for one in found.mismatches if one.finding.severity is Severity.ERROR}
    more = [
        one
        for one in check_agreement(columns_of(full), full).mismatches
        if _group(one) not in judged or not unknown.isdisjoint(one.finding.differing)
    ]
    mismatches = sorted([*found.mismatches, *more], key=lambda one: one.time_ns)
    return Agreement(tuple(mismatches), found.agreed)


def _group(one: Mismatch) -> object:
    group = one.finding.group
    return None if group is None else (group.name, group.ranks)


_FOLDED = 100
"""Distinct findings of one group beyond which the rest is counted only."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A finding on one collective, and the time at which its first rank made the call (wall clock, nanoseconds).

    ``until_ns`` is the end of the last call that it affected: where one rank is a call ahead, all calls that follow.
    ``lasting`` says that its ranks cannot recover: every later mismatch among them follows from this one.
    """

    finding: Finding
    time_ns: int
    until_ns: int = 0
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of the same-call check: mismatches in order of time, and the number of collectives that agree."""

    mismatches: tuple[Mismatch, ...]
    agreed: int


def check_agreement(groups: Sequence[GroupColumns], traces: Sequence[Trace]) -> Agreement:
    """Judge every collective that all or some ranks recorded."""
    # In detail mode a call that disagrees does not run, on any rank: the calls after it are not shifted.
    steady = bool(traces) and all(trace.mode == "detail" for trace in traces)
    mismatches: list[Mismatch] = []
    agreed = 0
    checked: dict[object, GroupColumns] = {}
    for columns in groups:
        agreed += columns.check(checked)
        found, tolerated = _of_group(columns, steady)
        mismatches += found
        agreed += tolerated
    return Agreement(tuple(sorted(mismatches, key=lambda mismatch: mismatch.time_ns)), agreed)


def _of_group(columns: GroupColumns, steady: bool) -> tuple[list[Mismatch], int]:
    """The mismatches of one group, and the number of positions that agree though their words do not add up to zero."""
    causes = _Causes()
    tolerated = 0
    for suspect in columns.suspects():
        findings = causes.judge(columns, suspect, steady)
        tolerated += suspect.complete and not errors_of(findings)
        if errors_of(findings) and not steady:
            # From here on one rank may be a call ahead, so that everything would seem to differ.
            return _aligned(columns, causes.mismatches()), tolerated
    if not causes.errors():
        departures = by_lines(columns)
        last = columns.last_ns() if departures else 0
        for found in departures:
            causes.add_edit(columns, found, last)
    return causes.mismatches(), tolerated


def _aligned(columns: GroupColumns, by_position: list[Mismatch]) -> list[Mismatch]:
    """The mismatches once the ranks' sequences are aligned; calls at one position are then judged as usual."""
    columns = columns.by_stack()
    agreed = consensus(columns)
    if agreed is None:
        return by_position
    causes, last = _Causes(), columns.last_ns()
    agreed.realigned.check()
    for split in agreed.splits:
        found = edit_finding(columns, agreed.start, split)
        if found is not None:
            causes.add_edit(agreed.realigned, found, last)
    for suspect in agreed.realigned.suspects():
        causes.judge(agreed.realigned, suspect, False)
    return causes.mismatches() if causes.errors() else by_position


@dataclass(slots=True)
class _Causes:
    """Findings by their cause: repetitions from the same lines are one finding with a count."""

    _found: dict[object, Mismatch] = field(default_factory=dict)
    _places: dict[object, list[int]] = field(default_factory=dict)
    _compared: dict[bytes, tuple[list[Finding], list[object]]] = field(default_factory=dict)

    def judge(self, columns: GroupColumns, suspect: Suspect, steady: bool) -> list[Finding]:
        """Compare the calls at one position and add the findings; equal positions are compared once."""
        if suspect.key not in self._compared:
            records = columns.records(suspect.sequence)
            before = columns.before(suspect.sequence, records)
            time_ns = min((record.scheduled_ns for record in records.values()), default=0)
            findings = compare(columns.group, records, strict=steady, unknown=columns.words.unknown)
            found = [replace(one, sequence=suspect.sequence, before=before) for one in findings]
            self._compared[suspect.key] = found, [_cause(one) for one in found]
            for one in found:
                self.add(one, time_ns)
            return found
        findings, causes = self._compared[suspect.key]
        for cause in causes:
            self._places[cause].append(suspect.sequence)
        return findings

    def add(self, found: Finding, time_ns: int, until_ns: int = 0) -> None:
        """Add a finding, or count it where its cause is known."""
        key = _cause(found)
        self._places.setdefault(key, []).append(found.sequence or 0)
        if key not in self._found and len(self._found) < _FOLDED:
            self._found[key] = Mismatch(found, time_ns, max(time_ns, until_ns))

    def add_edit(self, columns: GroupColumns, found: EditFinding, last_ns: int) -> None:
        """Add a call skipped, extra or exchanged; ``columns`` are aligned, ``last_ns`` is when they ended."""
        witness = columns.group.ranks.index(found.finding.ranks[0])
        before = columns.before(found.finding.sequence or 0, (witness,))
        # Where a call is lacking, all later calls of that rank meet the wrong calls.
        until = last_ns if found.finding.code == CALL_SKIPPED.code else 0
        self.add(replace(found.finding, before=before), found.time_ns, until)

    def errors(self) -> bool:
        """True if a finding is an error."""
        return bool(errors_of(mismatch.finding for mismatch in self._found.values()))

    def mismatches(self) -> list[Mismatch]:
        """One mismatch a cause."""
        return [_with_repetitions(mismatch, self._places[key]) for key, mismatch in self._found.items()]


def _cause(finding: Finding) -> object:
    """The key under which findings are one: same rule, same culprits, same ranks at the same lines.

    Where all ranks have the same line, the callers that tell the ranks apart belong to the key.
    """
    sources = {id(stated.source): stated.source for side in finding.sides for stated in side.sources}
    told = len({(source.file, source.line) for source in sources.values()}) == 1
    places = {key: _place(finding, source, told) for key, source in sources.items()}
    sides = frozenset(
        (side.ranks, tuple(places[id(stated.source)] for stated in side.sources) or side.call) for side in finding.sides
    )
    return finding.code, finding.severity, finding.culprits, finding.differing, sides


def _place(finding: Finding, source: Source, told: bool) -> object:
    frames = [one.frame for one in frames_shown(finding.sides, source)] if told else []
    return source.file, source.line, tuple((frame.file, frame.line) for frame in frames)


def _with_repetitions(mismatch: Mismatch, sequences: Sequence[int]) -> Mismatch:
    later = len(sequences) - 1
    if not later:
        return mismatch
    often = "once more" if later == 1 else f"{later} times more"
    message = f"{mismatch.finding.message} ({often} from these lines, the last time at collective {sequences[-1]})"
    return replace(mismatch, finding=replace(mismatch.finding, message=message))
