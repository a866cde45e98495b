"""The failures of ranks, and those of them that are only the consequence of something else."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from simcoll.core.device_errors import DeviceError, device_error
from simcoll.core.process import signal_name
from simcoll.core.record import UNKNOWN_SOURCE, Event, Source, State, source_of, text
from simcoll.core.trace import DUMPED, LaunchOutcome, Trace
from simcoll.verifier.halts.device_queue import open_rows

_SIGNAL_SEEN_NS = 500_000_000
"""A launcher sees a signal's victim at its next look; peers notice at once and write down when."""

_MISMATCH = re.compile(r"Detected mismatch between collectives")
_MISSING = re.compile(r"failed to pass monitoredBarrier|[Pp]lease check rank 0 logs for faulty rank")
_CONNECTION = re.compile(
    r"[Cc]onnection (was )?(closed|reset|refused)|Broken pipe|caused pair closure|Connection timed out"
    r"|[Tt]imed out (waiting|after)|recvValue failed|sendBytes failed|failed to recv|remote process exited"
    r"|[Ss]ocket [Tt]imeout|[Ww]ait timeout|NCCL communicator was aborted|unhandled system error"
    r"|stop_waiting response|Broken connection"
    r"|ncclRemoteError|collective operation timeout|timed out in blocking wait|NCCL timeout"
    r"|NCCL operation timed out|Operation timed out( after|!)"
    r"|NCCL communicator encountered error set by ProcessGroupNCCL|possible application crash on rank 0"
)
"""A rank's texts about a peer that is gone, or does not come. The texts of NCCL and of ProcessGroupNCCL are those of
torch/csrc/distributed/c10d: NCCLUtils.cpp, ProcessGroupNCCL.cpp and, from torch 2.15 on, nccl2/."""

_SECOND_NS = 1_000_000_000
_TIMEOUT_NS = 30 * _SECOND_NS
_DUMPED_TIMEOUT_NS = 3 * _SECOND_NS
"""For so long a rank's device must have stood in its last call for a SIGABRT to be the watchdog's: torch's default is
ten minutes, and a minute more for the dumps. A dump that a rank has left by then says that something took too long."""

_NEVER = 1 << 63


class Nature(Enum):
    """The cause of a failure by its own text; ``WATCHDOG``: torch ended the rank because a call took too long."""

    OWN = "own"
    MISMATCH = "mismatch"
    MISSING = "missing"
    CONNECTION = "connection"
    WATCHDOG = "watchdog"


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one rank (global): an uncaught exception, or else an exit code (negative: a signal)."""

    rank: int
    time_ns: int
    nature: Nature
    type: str = ""
    message: str = ""
    source: Source = UNKNOWN_SOURCE
    api: str | None = None
    exit_code: int | None = None

    @property
    def terminated(self) -> bool:
        """True if SIGTERM ended it, as it ends ranks that hang: no cause where the cause of the hang is known."""
        return self.exit_code == -signal.SIGTERM

    @property
    def device_error(self) -> DeviceError | None:
        """The error of the rank's device that its text tells of, or None."""
        return device_error(self.type, self.message) if self.nature is Nature.OWN and self.type else None

    @property
    def noticed_ns(self) -> int:
        """The earliest time at which its peers noticed."""
        killed = self.exit_code is not None and self.exit_code < 0
        return self.time_ns - (_SIGNAL_SEEN_NS if killed else 0)

    def text(self) -> str:
        """The failure in words, without the rank."""
        if self.type:
            return f"raised {self.type}: {opening(self.message)}" if self.message else f"raised {self.type}"
        if self.nature is Nature.WATCHDOG:
            return "was ended by SIGABRT, as torch's NCCL watchdog does after the group's timeout"
        if self.exit_code is not None and self.exit_code < 0:
            return f"was killed by {signal_name(-self.exit_code)}"
        return f"exited with code {self.exit_code}"


def failures_of(traces: Sequence[Trace], outcome: LaunchOutcome | None) -> dict[int, Failure]:
    """The failure of each rank that failed, earliest first. Ranks that the launcher stopped have not failed."""
    found = {}
    for trace in traces:
        for event in trace.events:
            if event.kind == "exception" and text(event, "type") != "KeyboardInterrupt":
                found[trace.rank] = _raised(trace.rank, event)
    for rank, end in {} if outcome is None else outcome.ranks.items():
        if end.exit_code and not end.stopped and rank not in found:
            found[rank] = Failure(rank, end.time_ns, Nature.OWN, exit_code=end.exit_code)
    found |= _ended_by_watchdog({trace.rank: trace for trace in traces}, found)
    stopped = [rank for rank, failure in found.items() if failure.terminated]
    if len(stopped) < len(found):
        for rank in stopped:
            del found[rank]
    return dict(sorted(found.items(), key=lambda item: item[1].noticed_ns))


def _ended_by_watchdog(traces: Mapping[int, Trace], found: Mapping[int, Failure]) -> dict[int, Failure]:
    """The failures that are torch's doing: its watchdog, a thread in C++, ends a process whose call takes too long.

    Once it has ended a rank, those that end so after it follow: it tells the others to write their dumps, and to end.
    """
    aborted = [one for one in found.values() if one.exit_code == -signal.SIGABRT]
    dumps = [event.time_ns for trace in traces.values() for event in trace.events if event.kind == DUMPED]
    first_dump = min(dumps, default=_NEVER)
    stood = [one.time_ns for one in aborted if _stood(traces.get(one.rank), one.time_ns, first_dump)]
    first = min(stood, default=_NEVER)
    return {one.rank: replace(one, nature=Nature.WATCHDOG) for one in aborted if one.time_ns >= first}


def _stood(trace: Trace | None, ended_ns: int, dumped_ns: int) -> bool:
    """True if a rank's device had been in its last call for long when it ended; ``dumped_ns`` is the first dump."""
    if trace is None:
        return False
    # All calls of a dump are calls that a device runs.
    rows = np.flatnonzero(trace.slots["state"] <= State.STARTED) if trace.unknown else open_rows(trace)
    limit = _DUMPED_TIMEOUT_NS if dumped_ns <= ended_ns else _TIMEOUT_NS
    return bool(len(rows)) and ended_ns - int(trace.slots["scheduled_ns"][rows[-1]]) >= limit


def _raised(rank: int, event: Event) -> Failure:
    message = text(event, "message")
    return Failure(
        rank,
        event.time_ns,
        nature_of(text(event, "type"), message),
        text(event, "type"),
        message,
        source_of(event.data),
        text(event, "api") or None,
    )


def nature_of(kind: str, message: str) -> Nature:
    """Judge by the exception's type and text; an exception may quote the one that caused it."""
    if kind == "MissingRankError" or _MISSING.search(message):
        return Nature.MISSING
    if kind == "CollectiveMismatchError" or _MISMATCH.search(message):
        return Nature.MISMATCH
    if device_error(kind, message) is not None:
        return Nature.OWN
    return Nature.CONNECTION if _CONNECTION.search(message) else Nature.OWN


def opening(message: str) -> str:
    """The first line of a message, with the next one where a colon announces it, cut at 300 characters."""
    first, *more = (line.strip() for line in message.strip().splitlines() or ("",))
    second = next(filter(None, more), "") if first.endswith(":") else ""
    said = f"{first} {second}" if second else first
    return said if len(said) <= 300 else said[:297] + "..."
