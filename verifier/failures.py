"""How ranks failed, and which failures are only the consequence of something else."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from simcoll.record import UNKNOWN_SOURCE, Event, Source
from simcoll.verifier.trace import LaunchOutcome, Trace

_SIGNAL_SEEN_NS = 500_000_000
"""A launcher sees a signal's victim at its next look; peers notice at once and write down when."""

_MISMATCH = re.compile(r"Detected mismatch between collectives")
_MISSING = re.compile(r"failed to pass monitoredBarrier|[Pp]lease check rank 0 logs for faulty rank")
_CONNECTION = re.compile(
    r"[Cc]onnection (was )?(closed|reset|refused)|Broken pipe|caused pair closure|Connection timed out"
    r"|[Tt]imed out (waiting|after)|recvValue failed|sendBytes failed|failed to recv|remote process exited"
    r"|[Ss]ocket [Tt]imeout|[Ww]ait timeout|NCCL communicator was aborted|unhandled system error"
    r"|stop_waiting response|Broken connection"
)


class Nature(Enum):
    """What a failure's own text says about its cause."""

    OWN = "own"
    MISMATCH = "mismatch"
    MISSING = "missing"
    CONNECTION = "connection"


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank (global) failed: an uncaught exception, or else an exit code (negative: a signal)."""

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
        """Whether it was ended by SIGTERM, as ranks that hang are: that is no cause where it is known why they hang."""
        return self.exit_code == -signal.SIGTERM

    @property
    def noticed_ns(self) -> int:
        """When its peers noticed, at the earliest."""
        killed = self.exit_code is not None and self.exit_code < 0
        return self.time_ns - (_SIGNAL_SEEN_NS if killed else 0)

    def text(self) -> str:
        """The failure in words, without the rank."""
        if self.type:
            return f"raised {self.type}: {first_line(self.message)}" if self.message else f"raised {self.type}"
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
    stopped = [rank for rank, failure in found.items() if failure.terminated]
    if len(stopped) < len(found):
        for rank in stopped:
            del found[rank]
    return dict(sorted(found.items(), key=lambda item: item[1].noticed_ns))


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
    return Nature.CONNECTION if _CONNECTION.search(message) else Nature.OWN


def text(event: Event, name: str) -> str:
    """A text of an event; empty where it is absent or no text."""
    value = event.data.get(name)
    return value if isinstance(value, str) else ""


def number(event: Event, name: str) -> int | None:
    """An integer of an event; None where it is absent or none."""
    value = event.data.get(name)
    return value if type(value) is int else None


def source_of(data: Mapping[str, object]) -> Source:
    """The source line of an event, a list of file, line, function and code; unknown where it is malformed."""
    value = data.get("source")
    if not isinstance(value, list) or len(value) != 4:
        return UNKNOWN_SOURCE
    file, line, function, code = value
    if not isinstance(file, str) or type(line) is not int or not isinstance(function, str):
        return UNKNOWN_SOURCE
    return Source(file, line, function, code if isinstance(code, str) else "")


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def first_line(message: str) -> str:
    """The first line of a message, cut at 300 characters."""
    line = message.strip().split("\n", 1)[0]
    return line if len(line) <= 300 else line[:297] + "..."
