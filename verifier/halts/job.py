"""What is known of a job: its ranks' records, how the ranks ended, how it stood, and what the ranks disagree about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simcoll.core.record import Event, Group, Record
from simcoll.core.trace import LaunchOutcome, Stall, Trace, record_at
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.agreement.mismatches import Mismatch
from simcoll.verifier.agreement.p2p_matching import Matching
from simcoll.verifier.findings.failures import Failure, failures_of
from simcoll.verifier.findings.finding import CallPlace, Severity
from simcoll.verifier.halts.device_position import device_record


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of a job as a whole, by rank (global).

    ``last`` holds each rank's last record, ``ended`` when a rank ended well; ``launched`` are the ranks of which a
    launcher reports. ``stall`` is how the job stood, None where nothing shows that it did. ``mismatches`` are those of
    severity error, ``tolerated`` those that are warnings, each in order of time.
    """

    traces: Mapping[int, Trace]
    failures: Mapping[int, Failure]
    last: Mapping[int, Record]
    ended: Mapping[int, int]
    launched: frozenset[int] = frozenset()
    stall: Stall | None = None
    columns: Sequence[GroupColumns] = ()
    matching: Matching = field(default_factory=Matching)
    mismatches: Sequence[Mismatch] = ()
    tolerated: Sequence[Mismatch] = ()

    @classmethod
    def of(
        cls,
        traces: Sequence[Trace],
        outcome: LaunchOutcome | None,
        stall: Stall | None,
        columns: Sequence[GroupColumns],
        matching: Matching,
    ) -> Job:
        """What became of the ranks; :meth:`disagreeing` adds what they disagree about."""
        failures = failures_of(traces, outcome)
        by_rank = {trace.rank: trace for trace in traces}
        last = {rank: record for rank, trace in by_rank.items() if (record := _last_record(trace)) is not None}
        ended = {rank: end for rank, trace in by_rank.items() if (end := _ended(trace, failures, outcome)) is not None}
        launched = frozenset(() if outcome is None else outcome.ranks)
        return cls(by_rank, failures, last, ended, launched, stall, columns, matching)

    def disagreeing(self, mismatches: Iterable[Mismatch]) -> Job:
        """The job with what its ranks disagree about."""
        found = sorted(mismatches, key=lambda one: one.time_ns)
        errors = [one for one in found if one.finding.severity is Severity.ERROR]
        warnings = [one for one in found if one.finding.severity is Severity.WARNING]
        return replace(self, mismatches=errors, tolerated=warnings)

    @property
    def clean(self) -> bool:
        """Whether every rank ended well."""
        return not self.failures and self.traces.keys() == self.ended.keys()

    @property
    def halted(self) -> bool:
        """Whether something says that it stood, or failed."""
        return not self.clean and (self.stall is not None or bool(self.failures))

    @property
    def size(self) -> int:
        """How many ranks the job has, by the records."""
        return max(trace.world_size for trace in self.traces.values())

    @property
    def severity_of_delay(self) -> Severity:
        """How grave it is that a rank is late: in a job that was ended from outside it might have come."""
        return Severity.WARNING if self.stall is not None and not self.stall.over else Severity.ERROR

    def place(self, rank: int) -> CallPlace | None:
        """Where a rank's last call stands, or the one in which its device is; None where neither is recorded."""
        record = device_record(self.traces, rank) or self.last.get(rank)
        group = None if record is None else self.group(rank, record.group)
        return None if record is None or group is None else CallPlace.of(group, record, rank)

    def group(self, rank: int, name: object) -> Group | None:
        """The group of that name as a rank knows it; None where it knows none."""
        trace = self.traces.get(rank)
        return None if trace is None else next((group for group in trace.groups if group.name == name), None)

    def events(self, rank: int, kind: str) -> list[Event]:
        """What a rank wrote down of this kind."""
        trace = self.traces.get(rank)
        return [] if trace is None else [event for event in trace.events if event.kind == kind]


def _last_record(trace: Trace) -> Record | None:
    return record_at(trace, len(trace.slots) - 1) if len(trace.slots) else None


def _ended(trace: Trace, failures: Mapping[int, Failure], outcome: LaunchOutcome | None) -> int | None:
    """When a rank ended well by itself; None where it did not, or where it is not known."""
    end = None if outcome is None else outcome.ranks.get(trace.rank)
    exits = [event for event in trace.events if event.kind == "exit"]
    if trace.rank in failures:
        return None
    if end is not None and end.stopped:
        # The launcher stops who is left after a failure: also a rank that was at its own end by then.
        first = min((failure.time_ns for failure in failures.values()), default=0)
        return exits[-1].time_ns if exits and exits[-1].time_ns < first else None
    if end is not None and end.exit_code != 0:
        return None
    if exits:
        return exits[-1].time_ns
    return None if end is None else end.time_ns
