"""The outcome of ranks in one process: results, exceptions, records, and the verdict that a real job would get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from simcoll.backends.engine.schedules import RecordedSchedule, schedule_text
from simcoll.backends.engine.tickets import was_ended_by_others
from simcoll.core.record import Record, Source, source_document
from simcoll.core.trace import LaunchOutcome, MemoryTrace, RankExit, Stall, record_at
from simcoll.verifier.findings.finding import Finding, Report, Verdict, errors_of
from simcoll.verifier.postmortem import judge

T = TypeVar("T")

_SIGTERM = -15


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The outcome of a run. All ranks are global.

    ``report`` is the verdict, ``results`` are the programs' return values, ``exceptions`` those of ranks that did not
    return, ``traces`` each rank's records, ``seconds`` the virtual time of the run. ``schedule`` replays the run: the
    decisions that differ from the default ones, empty for the default order; ``decisions`` is the number of all.
    """

    report: Report
    results: Mapping[int, T]
    exceptions: Mapping[int, BaseException]
    traces: Sequence[MemoryTrace] = ()
    seconds: float = 0.0
    schedule: str = ""
    decisions: int = 0

    def __str__(self) -> str:
        """The verdict and the findings."""
        return str(self.report)

    def records(self, rank: int) -> list[Record]:
        """The records of a rank's (global) calls, in order."""
        trace = next(trace for trace in self.traces if trace.rank == rank)
        found = (record_at(trace, row) for row in range(len(trace.slots)))
        return [record for record in found if record is not None]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, causes first."""
        return self.report.findings

    @property
    def ok(self) -> bool:
        """True if no rank failed and nothing of severity error was found."""
        return not errors_of(self.findings) and not self.exceptions and self.report.verdict is not Verdict.FAILED


@dataclass(slots=True)
class Ending:
    """The end of a rank, as a launcher would see it: ``error`` is None where its program returned."""

    error: BaseException | None
    time_ns: int

    @property
    def stopped(self) -> bool:
        """True if the rank was ended because of others: it was stuck, or another rank had failed."""
        return self.error is not None and was_ended_by_others(self.error)

    def exit(self) -> RankExit:
        """The rank's end as that of a process."""
        if self.error is None:
            return RankExit(0, self.time_ns)
        return RankExit(_SIGTERM if self.stopped else exit_code(self.error), self.time_ns, self.stopped)


def exit_code(error: BaseException) -> int:
    """The exit code of a process whose program raises this; 0 for a ``sys.exit()`` that reports success."""
    if not isinstance(error, SystemExit):
        return 1
    return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)


def exception_event(error: BaseException, line: Source) -> dict[str, object]:
    """The event by which a rank records the exception that ends it."""
    return {
        "type": type(error).__name__,
        "message": str(error),
        "source": source_document(line),
        "api": None,
    }


def outcome_of(
    results: Mapping[int, T],
    endings: Mapping[int, Ending],
    traces: Sequence[MemoryTrace],
    stall: Stall | None,
    choices: RecordedSchedule,
    seconds: float,
) -> Outcome[T]:
    """The outcome of ranks that shared a process, all of which have ended."""
    return Outcome(
        _verdict(traces, endings, stall),
        results,
        {rank: ending.error for rank, ending in sorted(endings.items()) if ending.error is not None},
        traces,
        seconds,
        schedule_text(choices.deviations),
        choices.made,
    )


def _verdict(traces: Sequence[MemoryTrace], endings: Mapping[int, Ending], stall: Stall | None) -> Report:
    """Judge ranks that shared a process as a job of processes is judged."""
    outcome = LaunchOutcome({rank: ending.exit() for rank, ending in sorted(endings.items())})
    report = judge(traces, outcome, stall)
    if report.verdict is Verdict.OK and any(ending.error is not None for ending in endings.values()):
        # For example ranks that had to be ended although their calls have no findings.
        return replace(report, verdict=Verdict.FAILED)
    return report
